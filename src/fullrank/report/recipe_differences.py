"""The differences between recipes: entry by entry, and as short descriptions that distinguish the runs."""

import json
from collections.abc import Sequence
from typing import Any

from fullrank.recipes.recipe import flatten

FIRST_ENTRIES = ("objective", "projector", "hyper", "method")
"""Entries that describe a run before all others; the others follow in the order of the recipe."""
LAST_ENTRIES = ("name", "data.mean", "data.std")
"""Entries that usually follow from other entries."""
FILE_ENTRIES = ("format", "defaults")
"""Entries of recipe.json that are not fields of the recipe."""
SIZE_ENTRIES = {"low-rank": "d0", "low-rank-diagonal": "d0", "sub-vector": "d0", "dropout": "d0", "groups": "groups"}
"""Kind of projector → the entry with its size."""


def differing_entries(recipes: Sequence[dict[str, Any]]) -> dict[str, list[str | None]]:
    """Return the entries in which recipes differ: dotted name -> the JSON value in each recipe, None if a recipe lacks
    the entry.

    >>> differing_entries([{"epochs": 5, "seed": 0}, {"epochs": 5, "seed": 1}])
    {'seed': ['0', '1']}
    """
    flat = [
        {key: json.dumps(value) for key, value in flatten(recipe).items() if key not in FILE_ENTRIES}
        for recipe in recipes
    ]
    rows = {
        key: [recipe.get(key) for recipe in flat] for key in dict.fromkeys(key for recipe in flat for key in recipe)
    }
    return {key: row for key, row in rows.items() if len(set(row)) > 1}


def describe_differences(recipes: Sequence[dict[str, Any]]) -> list[str]:
    """Return a short description of each recipe that distinguishes it from the others; empty if it equals all others.

    Entries are considered one after the other, the objective and the projector first. An entry describes only those
    runs that the entries before it did not distinguish. Thus entries that follow from others, such as the
    hyperparameters of an objective, are omitted.

    >>> describe_differences([{"objective": "frossl", "hyper": {"log": True}}, {"objective": "simclr", "hyper": {"temperature": 0.2}}])
    ['frossl', 'simclr']
    >>> recipes = [{"objective": "simclr", "projector": {"kind": "mlp", "widths": widths}, "seed": 0} for widths in ([64, 64], [])]
    >>> describe_differences(recipes)
    ['projector 64-64', 'projector none']
    """
    descriptions: list[tuple[str, ...]] = [()] * len(recipes)
    differing = differing_entries([_with_projector_text(recipe) for recipe in recipes])
    for key, values in sorted(differing.items(), key=lambda row: _priority(row[0])):
        values_of: dict[tuple[str, ...], set[str]] = {}
        for description, value in zip(descriptions, values, strict=True):
            values_of.setdefault(description, set()).update(
                [] if value is None else [value]
            )  # recipes of older versions lack entries
        descriptions = [
            (*description, _entry_text(key, value)) if len(values_of[description]) > 1 else description
            for description, value in zip(descriptions, values, strict=True)
        ]
    return [", ".join(description) for description in descriptions]


def describe_projector(recipe: dict[str, Any]) -> str:
    """Return the widths of a projector, or its kind and size; empty if the recipe has none.

    >>> [describe_projector({"projector": {"kind": kind, "widths": [512], "d0": 64}}) for kind in ("mlp", "diagonal", "sub-vector")]
    ['512', 'diagonal', 'sub-vector 64']
    """
    config = recipe.get("projector")
    if not isinstance(config, dict) or not isinstance(widths := config.get("widths"), list):
        return ""
    kind = str(config.get("kind", "mlp"))
    return (
        ("-".join(map(str, widths)) or "none")
        if kind == "mlp"
        else f"{kind} {config.get(SIZE_ENTRIES.get(kind), '')}".strip()
    )


def _with_projector_text(recipe: dict[str, Any]) -> dict[str, Any]:
    """Insert the description of the projector before the projector's entries."""
    text = describe_projector(recipe)
    return (
        recipe | {"projector": text} | {f"projector.{key}": value for key, value in recipe["projector"].items()}
        if text
        else recipe
    )


def _priority(key: str) -> int:
    head = key.partition(".")[0]
    return FIRST_ENTRIES.index(head) if head in FIRST_ENTRIES else len(FIRST_ENTRIES) + (key in LAST_ENTRIES)


def _entry_text(key: str, value: str | None) -> str:
    """Return `frossl` for an objective, `epochs 5` for any other entry."""
    text = "–" if value is None else value.strip('"')
    return text if key == "objective" else f"{key} {text}"
