"""The fields of a recipe by their dotted names, as in flags: given in several forms, set, compared."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import is_dataclass, replace
from typing import Any

from pydantic_core import to_jsonable_python

from fullrank.errors import UserError, suggest
from fullrank.images.reading import Reading
from fullrank.recipes.recipe import Recipe, flatten, from_dict, to_dict
from fullrank.recipes.user_code import is_imported

# Part of a recipe → the field that a plain value means: `backbone="resnet50"`.
SHORT = {
    "backbone": "backbone.name",
    "optimizer": "optimizer.name",
    "schedule": "schedule.name",
    "projector": "projector.widths",
}


def plain_fields(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return overrides under the names of the fields, with parts of a recipe as JSON objects.

    >>> plain_fields({"batch-size": 8, "backbone": "resnet50", "data.label_column": "breed"})
    {'batch_size': 8, 'backbone.name': 'resnet50', 'data.reading.label_column': 'breed'}
    """
    given = {}
    for name, value in overrides.items():
        name = name.replace("-", "_")
        if isinstance(value, str | tuple | list) and not any(map(is_dataclass, value)):
            name = SHORT.get(name, name)
        part, _, field = name.partition(".")
        if part == "data" and field in Reading.__dataclass_fields__:
            name = f"data.reading.{field}"
        given[name] = to_jsonable_python(value, fallback=lambda other: other)
    return given


def with_fields(recipe: Recipe, values: Mapping[str, Any]) -> Recipe:
    """Return a recipe with other values of some fields, by their dotted names; nothing follows from them.

    Raises:
        UserError: a field does not exist, or a value is wrong.

    >>> with_fields(Recipe(), {"optimizer.lr": 0.2, "views.1.size": 16}).views[1].size
    16
    """
    tree = to_dict(with_view_groups(recipe, values))
    tree["views"] = {str(number): view for number, view in enumerate(tree["views"])}
    known = is_imported(recipe.objective) and is_imported(recipe.method_builder)  # else hyper is not complete
    for name in sorted(values, key=lambda name: name.count(".")):
        *path, last = name.split(".")
        node: Any = tree
        for key in path:
            node = node.get(key) if isinstance(node, dict) else None
        if not isinstance(node, dict) or (known and last not in node):
            raise UserError(f"recipe: there is no field '{name}'{suggest(name, flatten(to_dict(recipe)))}")
        node[last] = values[name]
    if isinstance(tree["views"], dict):
        tree["views"] = list(tree["views"].values())
    return from_dict(tree) if values else recipe


def with_view_groups(recipe: Recipe, names: Iterable[str]) -> Recipe:
    """Return the recipe with a group of views for each number in the names of fields, such as `views.1.size`.

    A group after the recipe's last one is a copy of that one with one view; the fields that are named then change it.

    Raises:
        UserError: a group is left out.

    >>> [view.count for view in with_view_groups(Recipe(), ["views.1.size", "epochs"]).views]
    [2, 1]
    """
    if "views" in names:
        return recipe
    for number in sorted({int(match[1]) for name in names if (match := re.match(r"views\.(\d{1,9})\b", name))}):
        if number > len(recipe.views):
            raise UserError(f"views.{number} is given, but the recipe has no views.{number - 1}; add it first")
        if number == len(recipe.views):
            recipe = replace(recipe, views=(*recipe.views, replace(recipe.views[-1], count=1)))
    return recipe


def differences(a: Recipe, b: Recipe) -> list[str]:
    """Return one line for each field in which two recipes differ, such as 'epochs 3 → 5'.

    >>> differences(Recipe(epochs=3), Recipe(epochs=5, seed=1))
    ['epochs 3 → 5', 'seed 0 → 1']
    """
    left, right = flatten(to_dict(a)), flatten(to_dict(b))
    names = (name for name in sorted({*left, *right}) if left.get(name) != right.get(name))
    return [f"{name} {left.get(name)} → {right.get(name)}" for name in names]
