"""The weights that keep the balance of the terms of a recipe's objective."""

from typing import TYPE_CHECKING

from fullrank.objectives.balance import balance
from fullrank.recipes import user_code

if TYPE_CHECKING:
    from fullrank.recipes.recipe import Recipe


def balanced_weights(recipe: "Recipe") -> dict[str, float]:
    """Return `fullrank.objectives.balance.balance` of a recipe; {} where D is not the last width of an MLP. A weight
    "balanced" in `hyper` becomes this number.

    >>> from fullrank.recipes import Recipe
    >>> [balanced_weights(recipe) for recipe in (Recipe(), Recipe(batch_size=64), Recipe(objective="vicreg"))]
    [{'invariance': 1.0, 'variance': 1.0}, {'invariance': 0.25, 'variance': 1.0}, {'covariance': 2.0009775171065494}]
    """
    N, V, projector = recipe.batch_size, sum(view.count for view in recipe.views), recipe.projector
    if V < 2 or projector.kind != "mlp" or projector.absent:
        return {}
    hyper = recipe.hyper
    if recipe.objective == "frossl":
        hyper = user_code.hyperparameters(user_code.find_objective("frossl")) | hyper
    return balance(recipe.objective, N=N, D=projector.widths[-1], V=V, log=hyper.get("log", True))
