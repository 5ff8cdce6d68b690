"""The code that a recipe names, and its import, which only a user who trusts the recipe may allow."""

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

from fullrank.errors import UserError
from fullrank.recipes.functions import import_function, imported_function
from fullrank.recipes.recipe import Recipe


def code_names(recipe: Recipe) -> tuple[str, ...]:
    """Return the names of the user's functions in a recipe: code that must be imported before the recipe is trained.

    >>> code_names(Recipe(objective="my_module:my_loss", custom_transforms=("my_module:invert",)))
    ('my_module:my_loss', 'my_module:invert')
    """
    objective = (recipe.objective,) if ":" in recipe.objective else ()
    return tuple(dict.fromkeys((*objective, *filter(None, (recipe.method_builder,)), *recipe.custom_transforms)))


def import_code(
    recipe: Recipe, trust: bool | Collection[str], notify: Callable[[str], Any] = lambda line: None
) -> Recipe:
    """Import the user's functions that a recipe names, and return the recipe with all its hyperparameters.

    Args:
        recipe: any recipe.
        trust: True: import all functions. A collection of names: import these. What was imported before in this process
            counts as trusted.
        notify: is called with one line for each import.

    Raises:
        UserError: the recipe names a function that is not trusted, the import fails, or `trust` has another type.

    >>> import_code(Recipe(), trust=False) == Recipe()
    True
    """
    if isinstance(trust, str) or not isinstance(trust, bool | Collection):
        raise UserError(f"trust is {trust!r}, expected True, False, or a list of names such as ['my_module:my_loss']")
    for name in code_names(recipe):
        trusted = trust if isinstance(trust, bool) else name in trust
        if trusted:
            import_function(name, notify=notify)
        else:
            imported_function(name)
    return replace(recipe)
