"""A recipe, turned to another objective."""

from dataclasses import replace

from fullrank.objectives.signature import tensor_names
from fullrank.recipes.named import resolve_objective
from fullrank.recipes.recipe import Recipe

NARROW = {"wmse": 64, "corinfomax": 64}
"""The most dimensions that an objective is given: both invert or decompose a covariance of D dimensions from N samples, and their authors'
D on CIFAR-10 with N = 256 is 64 (Ermolov et al. 2021; Ozsoy et al. 2022)."""


def with_objective(recipe: Recipe, objective: str, *, method_builder: str = "") -> Recipe:
    """Return the recipe with another objective, with that one's own numbers and a projector that suits it.

    An objective of the representation R has no projector; one that inverts a covariance has a narrow one.

    Raises:
        UserError: there is no such objective.

    >>> recipe = Recipe(hyper={"invariance": 2.0})
    >>> with_objective(recipe, "wmse").projector.widths, with_objective(recipe, "directclr").projector.widths
    ((2048, 2048, 64), ())
    """
    projector = recipe.projector
    if tensor_names(resolve_objective(objective)) == ("R",):
        projector = replace(projector, kind="mlp", widths=())
    elif projector.widths and objective in NARROW:
        projector = replace(projector, widths=(*projector.widths[:-1], min(projector.widths[-1], NARROW[objective])))
    return replace(recipe, objective=objective, hyper={}, method_builder=method_builder, method={}, projector=projector)
