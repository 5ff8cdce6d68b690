"""Further groups of views, such as small crops, which the names of fields ask for: `views.1.size` in a recipe with one
group.
"""

import re
from collections.abc import Iterable
from dataclasses import replace

from fullrank.errors import UserError
from fullrank.recipes.recipe import Recipe

MOST = 100
"""Groups of views of a recipe."""


def with_view_groups(recipe: Recipe, names: Iterable[str]) -> Recipe:
    """Return the recipe with a group of views for each number in the names of fields, such as `views.1.size`.

    A group after the recipe's last one is a copy of that one with one view; the fields that are named then change it.

    Args:
        recipe: any recipe.
        names: dotted names of fields; the names of other fields are ignored.

    Raises:
        UserError: a group is left out, or there are more than `MOST`.

    >>> [view.count for view in with_view_groups(Recipe(), ["views.1.size", "epochs"]).views]
    [2, 1]
    >>> with_view_groups(Recipe(), ["views.2.size"])
    Traceback (most recent call last):
    fullrank.errors.UserError: views.2.size is a field of group 2 of the views, but the recipe has views.0 only; add views.1 first
    """
    numbered = {int(match[1]): name for name in names if (match := re.match(r"views\.([0-9]{1,9})(?:\.|$)", name))}
    last = max(numbered, default=0)
    known = len(recipe.views)
    if missing := next((number for number in range(known, min(last, MOST)) if number not in numbered), None):
        have = "views.0 only" if known == 1 else f"views.0 to views.{known - 1} only"
        raise UserError(
            f"{numbered[last]} is a field of group {last} of the views, but the recipe has {have}; add views.{missing} first"
        )
    if last >= MOST:
        raise UserError(
            f"{numbered[last]} is a field of group {last} of the views, expected at most {MOST} groups; number them from 0"
        )
    added = (replace(recipe.views[-1], count=1),) * (last + 1 - known)
    return replace(recipe, views=(*recipe.views, *added)) if added else recipe
