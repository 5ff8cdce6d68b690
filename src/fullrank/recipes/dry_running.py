"""A dry run: one loss on tensors of the right shapes, so that an error in an objective or a recipe appears before any
image is read.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from fullrank.errors import UserError, exception_line, explain_errors
from fullrank.methods import Method
from fullrank.objectives import total
from fullrank.objectives.terms import RETURN_FORM, TAKE_A_GENERATOR, GlobalRandomState, form_error
from fullrank.recipes.recipe import Recipe, view_sizes


def dry_run(method: Method, recipe: Recipe, *, losses: bool = True) -> str:
    """Compute the objective on tensors of the recipe's shapes: fake tensors for the library's objectives, random
    tensors for a user's.

    Args:
        method: the method, on the CPU.
        recipe: its recipe.
        losses: whether to call a user's objective.

    Returns:
        A warning if the user's objective is not a function of its tensors and its generator, else an empty string.

    Raises:
        UserError: the objective rejects the shapes, the precision gives wrong gradients for them, or the user's
            objective raises an exception or returns no valid loss.
    """
    N, C, sizes = recipe.batch_size, recipe.data.channels, view_sizes(recipe)
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        method.eval()  # so that BatchNorm does not update its statistics
        network = recipe.method_builder or recipe.backbone.name
        failed = f"'{network}' fails on views of {' and '.join(map(str, sizes))} px"
        remedy = "give another --views.0.size or --backbone.name"
        with recorded_convolutions(method) as unsafe, explain_errors(failed, remedy):
            embeddings = method([torch.empty(V, N, C, size, size) for size, V in sizes.items()])
        if ":" not in recipe.objective:
            method.terms(embeddings)
        method.train()
    if unsafe and recipe.machine.precision.startswith("bf16") and on_cpu(recipe):
        received = f"--machine.precision {recipe.machine.precision} gives wrong gradients on a CPU (a bug of torch)"
        raise UserError(f"{received} for {unsafe[0]}; give --machine.precision 32-true, or larger views")
    return _check_loss(method, embeddings, recipe.objective) if losses and ":" in recipe.objective else ""


@contextmanager
def recorded_convolutions(method: Method) -> Iterator[list[str]]:
    """Record the convolutions whose stride is larger than their input.

    Some weights then only ever see padding. In bfloat16 on a CPU, oneDNN leaves their gradients, which are zero,
    uninitialised.
    """
    found: list[str] = []

    def record(name: str, module: Any, inputs: tuple[Tensor, ...]) -> None:
        height, width = inputs[0].shape[-2:]
        if module.stride[0] > height or module.stride[1] > width:
            found.append(f"{name}, a convolution with stride {module.stride[0]} of {height}×{width} pixels")

    convolutions = [(name, module) for name, module in method.named_modules() if isinstance(module, nn.Conv2d)]
    hooks = [module.register_forward_pre_hook(partial(record, name)) for name, module in convolutions]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def on_cpu(recipe: Recipe) -> bool:
    """Return whether the recipe trains on the CPU of this machine."""
    accelerators = torch.cuda.is_available() or torch.backends.mps.is_available()
    return recipe.machine.accelerator == "cpu" or (recipe.machine.accelerator == "auto" and not accelerators)


def _check_loss(method: Method, embeddings: dict[str, Tensor], name: str) -> str:
    """Check the loss of a user's objective on random tensors, which are not fake, so the objective may use `.item()`
    and `.numpy()`.
    """
    rng, what = torch.Generator().manual_seed(0), f"objective '{name}'"
    tensors = {key: torch.randn(fake.shape, generator=rng).requires_grad_() for key, fake in embeddings.items()}
    tensors["labels"] = torch.arange(tensors["Z"].shape[1]) % 2
    try:
        with torch.random.fork_rng(devices=()):
            state = GlobalRandomState()
            terms: Any = method.terms(tensors)
            drawn = state.changed()
            again = method.terms(tensors)
    except UserError:
        raise
    except Exception as error:
        received = ", ".join(f"{key} {tuple(tensors[key].shape)}" for key in method.input_names)
        raise UserError(f"{what} fails on {received}: {exception_line(error)}; see fullrank check {name}") from error
    if form := form_error(terms):
        raise UserError(f"{what} returns {form}, expected named scalars; {RETURN_FORM}")
    if not total(terms).requires_grad:
        remedy = "remove detach, no_grad, item and numpy from its computation"
        raise UserError(f"{what} returns a loss without gradient; {remedy}")
    if form_error(again) or again.keys() != terms.keys():
        raise UserError(f"{what} returns other terms at the second call, expected the same names; {RETURN_FORM}")
    if drawn:
        cause = f"{what} draws from the global generator of {' and '.join(drawn)}"
        return f"warning: {cause}, so each number of processes trains other weights; {TAKE_A_GENERATOR}"
    if any(not torch.allclose(terms[key], again[key], rtol=1e-4, equal_nan=True) for key in terms):
        return f"warning: {what} returns another loss at a second call with equal tensors; a resumed run would differ"
    return ""
