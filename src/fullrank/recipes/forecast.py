"""What a run will be, before its first step: parameters, length and disk; its time is measured on its first steps."""

import torch

from fullrank.methods import Method
from fullrank.methods.backbones import feature_dim
from fullrank.recipes.recipe import Recipe

# Optimizer → numbers that it keeps for each weight.
STATE_PER_WEIGHT = {"adam": 2, "adamw": 2, "lars": 1, "sgd": 1}


def forecast_run(recipe: Recipe, method: Method, num_images: int) -> list[str]:
    """Return lines with the size of the networks, the length of the run and its disk."""
    steps = num_images // recipe.batch_size
    D_b = feature_dim(method.backbone)
    weights = sum(tensor.nbytes for tensor in method.state_dict().values())
    kept = recipe.checkpoints if recipe.keep_checkpoints < 0 else min(recipe.keep_checkpoints, recipe.checkpoints)
    disk = weights * (kept + STATE_PER_WEIGHT[recipe.optimizer.name] * min(kept, 2)) / 1e6
    parameters = f"{count(method)} parameters, of which {count(method.backbone)} in the backbone {recipe.backbone.name}"
    epochs = f"{recipe.epochs:,} epoch{'s' * (recipe.epochs != 1)} (--epochs; --hours: those that fit into a time)"
    return [
        f"networks: {parameters}; {D_b:,} features, embeddings of {recipe.projector.dimensions(D_b):,} dimensions",
        f"length: {num_images:,} images, {epochs}, {steps * recipe.epochs:,} steps; their time is measured; "
        f"disk: about {disk:,.0f} MB for {kept} checkpoint{'s' * (kept != 1)} (--keep-checkpoints)",
    ]


def count(module: torch.nn.Module) -> str:
    """Return the number of parameters.

    >>> count(torch.nn.Linear(999, 1000)), count(torch.nn.Linear(2, 3))
    ('1.0 M', '9')
    """
    n = sum(parameter.numel() for parameter in module.parameters())
    return f"{n / 1e6:.1f} M" if n >= 1e5 else f"{n:,}"


def duration(seconds: float) -> str:
    """Return a duration in its largest sensible unit.

    >>> [duration(s) for s in (0.4, 90.0, 1500.0, 9000.0, 1e6)]
    ['1 second', '90 seconds', '25 minutes', '2.5 hours', '12 days']
    """
    for below, unit, name in ((1.5, 1.0, "second"), (120, 1, "seconds"), (7200, 60, "minutes")):
        if seconds < below:
            return f"{max(seconds / unit, 1):.0f} {name}"
    return f"{seconds / 3600:.1f} hours" if seconds < 172_800 else f"{seconds / 86_400:.0f} days"
