"""In what recipes differ: entry by entry, and in as few words as tell the runs apart."""

import json
from collections.abc import Sequence
from typing import Any

FIRST = ("objective", "projector", "hyper", "method")
"""What tells runs apart before any other entry of their recipes; the rest follows in the order of the recipe."""
LAST = ("name", "data.mean", "data.std")
"""What may follow from any other entry."""
NUMBER_OF = {"low-rank": "d0", "low-rank-diagonal": "d0", "sub-vector": "d0", "dropout": "d0", "groups": "groups"}
"""The number that a kind of projector is known by."""


def differing(recipes: Sequence[dict[str, Any]]) -> dict[str, list[str | None]]:
    """Return the entries in which recipes differ, by dotted name: for each recipe its value as JSON, None where it has no such entry.

    >>> differing([{"epochs": 5, "seed": 0}, {"epochs": 5, "seed": 1}])
    {'seed': ['0', '1']}
    """
    flat = [flatten(recipe) for recipe in recipes]
    rows = {key: [recipe.get(key) for recipe in flat] for key in dict.fromkeys(key for recipe in flat for key in recipe)}
    return {key: row for key, row in rows.items() if len(set(row)) > 1}


def telling(recipes: Sequence[dict[str, Any]]) -> list[str]:
    """Return for each recipe what tells it from the others, empty where nothing does.

    Entry by entry, the objective and the projector first, an entry is named of those runs alone that the entries before did not tell apart
    and that it does: what follows from another entry, as an objective's numbers from its name, says nothing new.

    >>> telling([{"objective": "frossl", "hyper": {"log": True}}, {"objective": "simclr", "hyper": {"temperature": 0.2}}])
    ['frossl', 'simclr']
    >>> telling([{"objective": "simclr", "projector": {"kind": "mlp", "widths": widths}, "seed": 0} for widths in ([64, 64], [])])
    ['projector 64-64', 'projector none']
    """
    said: list[tuple[str, ...]] = [()] * len(recipes)
    for key, values in sorted(differing([_worded(recipe) for recipe in recipes]).items(), key=lambda row: _rank(row[0])):
        known: dict[tuple[str, ...], set[str]] = {}
        for words, value in zip(said, values, strict=True):
            known.setdefault(words, set()).update([] if value is None else [value])  # recipes of older versions lack entries
        said = [(*words, _phrase(key, value)) if len(known[words]) > 1 else words for words, value in zip(said, values, strict=True)]
    return [", ".join(words) for words in said]


def projector(recipe: dict[str, Any]) -> str:
    """Return a projector in a word: its widths or its kind, with the number that the kind is known by; empty where it is not recorded.

    >>> [projector({"projector": {"kind": kind, "widths": [512], "d0": 64}}) for kind in ("mlp", "diagonal", "sub-vector")]
    ['512', 'diagonal', 'sub-vector 64']
    """
    spec = recipe.get("projector")
    if not isinstance(spec, dict) or not isinstance(widths := spec.get("widths"), list):
        return ""
    kind = spec.get("kind", "mlp")
    return ("-".join(map(str, widths)) or "none") if kind == "mlp" else f"{kind} {spec.get(NUMBER_OF.get(kind), '')}".strip()


def flatten(tree: Any, prefix: str = "") -> dict[str, str]:
    """Return the leaves of a nested recipe as dotted names and JSON text; a list of numbers or words is one leaf.

    >>> flatten({"hyper": {"log": True}, "views": [{"size": 32}], "widths": [64, 64]})
    {'hyper.log': 'true', 'views.0.size': '32', 'widths': '[64, 64]'}
    """
    nested = isinstance(tree, list) and any(isinstance(branch, dict | list) for branch in tree)
    branches = tree.items() if isinstance(tree, dict) else enumerate(tree) if nested else None
    if not branches:
        return {prefix: json.dumps(tree)}
    return {name: leaf for key, branch in branches for name, leaf in flatten(branch, f"{prefix}.{key}" if prefix else str(key)).items()}


def _worded(recipe: dict[str, Any]) -> dict[str, Any]:
    """The recipe with its projector as a word, before the projector's own entries."""
    words = projector(recipe)
    return recipe | {"projector": words} | {f"projector.{key}": value for key, value in recipe["projector"].items()} if words else recipe


def _rank(key: str) -> int:
    head = key.partition(".")[0]
    return FIRST.index(head) if head in FIRST else len(FIRST) + (key in LAST)


def _phrase(key: str, value: str | None) -> str:
    """`frossl` for an objective, `epochs 5` for anything else."""
    text = "–" if value is None else value.strip('"')
    return text if key == "objective" else f"{key} {text}"
