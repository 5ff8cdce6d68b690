"""Two names that the studies of the papers use for `resolve`."""

from typing import Any

from fullrank.recipes.recipe import Recipe
from fullrank.recipes.resolve import for_objective, resolve


def with_choices(recipe: Recipe, **choices: Any) -> Recipe:
    """Return a recipe with other epochs or another batch size, and what follows."""
    return resolve(recipe, choices)


def method_recipe(recipe: Recipe, objective: str) -> tuple[Recipe, str]:
    """Return the published recipe of an objective."""
    return for_objective(recipe, objective), ""
