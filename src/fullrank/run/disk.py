"""How much disk space the checkpoints of a run need."""

from fullrank.methods import Method
from fullrank.recipes import Recipe
from fullrank.training.checkpoints import KEEP_ALL, NUM_STATES

MOMENTS = {"lars": 1, "sgd": 1, "adamw": 2}
"""Optimizer → number of values in its state per trainable parameter."""


def checkpoint_bytes(recipe: Recipe, method: Method) -> int:
    """Return the bytes that the checkpoints of a run need at most: those that remain, and the one that is being written.

    >>> from fullrank.recipes import RECIPES, build_method
    >>> recipe = RECIPES["digits"]
    >>> 1e6 < checkpoint_bytes(recipe, build_method(recipe)) < 1e9
    True
    """
    weights = sum(tensor.numel() * tensor.element_size() for tensor in method.state_dict().values())
    state = MOMENTS[recipe.optimizer.name] * sum(p.numel() * p.element_size() for p in method.parameters() if p.requires_grad)
    kept = recipe.checkpoints if recipe.keep_checkpoints == KEEP_ALL else min(recipe.keep_checkpoints, recipe.checkpoints)
    return (kept + 1) * weights + (min(kept, NUM_STATES) + 1) * state
