"""What a run will cost, before its first step: parameters, length, memory and disk."""

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from fullrank.methods import Method, feature_dim
from fullrank.recipes.recipe import Recipe, view_sizes

STATE_PER_WEIGHT = {"adam": 2, "adamw": 2, "lars": 1, "sgd": 1}
"""Optimizer → numbers that it keeps for each weight."""

POOLING = {"token": "the class token", "avg": "the average of the tokens", "map": "an attention over the tokens"}
"""timm's pooling of a vision transformer → what its features are; backbone.arguments {"global_pool": "avg"} chooses
another."""


def forecast_run(recipe: Recipe, method: Method, num_images: int) -> list[str]:
    """Return lines with the size of the networks, the length of the run, its memory and its disk.

    Args:
        recipe: the recipe that runs.
        method: its method, on the CPU; its weights, gradients and statistics do not change.
        num_images: number of training images.
    """
    steps_per_epoch = num_images // recipe.batch_size
    steps = steps_per_epoch * recipe.epochs
    images = min(recipe.batch_size // recipe.machine.devices, recipe.machine.micro_batch or recipe.batch_size)
    D_b, D = feature_dim(method.backbone), recipe.projector.dimensions(feature_dim(method.backbone))
    weights, others = weight_bytes(method), STATE_PER_WEIGHT[recipe.optimizer.name]
    memory = weights * (2 + others) + saved_bytes(method, recipe, images)
    kept = recipe.checkpoints if recipe.keep_checkpoints < 0 else min(recipe.keep_checkpoints, recipe.checkpoints)
    disk = weights * kept + weights * others * min(kept, 2)
    parameters = f"{count(method)} parameters, of which {count(method.backbone)} in the backbone {recipe.backbone.name}"
    pooling = getattr(method.backbone, "global_pool", None)  # a module for most convolutional networks
    features = f"{D_b:,} features" + (
        f" ({POOLING.get(pooling, pooling)})" if isinstance(pooling, str) and pooling else ""
    )
    return [
        f"networks: {parameters}; {features}, embeddings of {D:,} dimensions",
        f"length: {num_images:,} images, {steps_per_epoch:,} steps per epoch, epochs: {recipe.epochs:,}, {steps:,} steps in total; "
        "the time is measured on the first steps",
        f"memory: about {readable(memory)} for weights, gradients, optimizer and a step of {images} images (--machine.micro_batch), "
        f"beside the images · disk: about {readable(disk)} for {kept} checkpoint{'s' * (kept != 1)} (--keep_checkpoints)",
    ]


def saved_bytes(method: Method, recipe: Recipe, images: int) -> int:
    """Return the bytes that a forward pass of `images` images keeps for the backward pass, counted on tensors without
    data.
    """
    saved: dict[int, int] = {}

    def remember(x: Tensor) -> Tensor:
        if x.grad_fn is not None or not x.requires_grad:  # not a weight
            storage = x.untyped_storage()
            saved[storage._cdata] = storage.nbytes()
        return x

    method.eval()
    with (
        FakeTensorMode(allow_non_fake_inputs=True),
        torch.enable_grad(),
        torch.autograd.graph.saved_tensors_hooks(remember, lambda x: x),
    ):
        views = [torch.empty(V, images, recipe.data.channels, size, size) for size, V in view_sizes(recipe).items()]
        embeddings = method(views)  # alive until the hooks end, so that no storage is counted twice or lost
        total = sum(saved.values()) + sum(view.nbytes for view in views)
        del embeddings
    method.train()
    return total


def weight_bytes(method: Method) -> int:
    """Return the bytes of all parameters and buffers."""
    return sum(tensor.nbytes for tensor in method.state_dict().values())


def count(module: torch.nn.Module) -> str:
    """Return the number of parameters.

    >>> count(torch.nn.Linear(999, 1000)), count(torch.nn.Linear(2, 3))
    ('1.0 M', '9')
    """
    n = sum(parameter.numel() for parameter in module.parameters())
    return f"{n / 1e6:.1f} M" if n >= 1e5 else f"{n:,}"


def readable(size: int) -> str:
    """Return a number of bytes in MB or GB.

    >>> readable(12_400_000), readable(3_210_000_000)
    ('12 MB', '3.2 GB')
    """
    return f"{size / 1e9:,.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"


def duration(seconds: float) -> str:
    """Return a duration in its largest sensible unit.

    >>> [duration(s) for s in (0.4, 90.0, 1500.0, 9000.0, 1e6)]
    ['1 second', '90 seconds', '25 minutes', '2.5 hours', '12 days']
    """
    if seconds < 1.5:
        return "1 second"
    if seconds < 120:
        return f"{seconds:.0f} seconds"
    if seconds < 7200:
        return f"{seconds / 60:.0f} minutes"
    return f"{seconds / 3600:.1f} hours" if seconds < 172_800 else f"{seconds / 86_400:.0f} days"
