"""How runs differ: by the entries of their recipes, in a table or in a few words."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fullrank.recipes.recipe import flatten
from fullrank.report.summary import RunSummary, look_up

# Entries that describe a run before all others; the others follow in the order of the recipe.
FIRST_ENTRIES = ("objective", "projector", "hyper", "method")
# Entries that usually follow from other entries.
LAST_ENTRIES = ("name", "data.mean", "data.std")


def differing_entries(recipes: Sequence[dict[str, Any]]) -> dict[str, list[str | None]]:
    """Return the entries in which recipes differ: dotted name → the JSON value in each, None if a recipe lacks it.

    >>> differing_entries([{"epochs": 5, "seed": 0}, {"epochs": 5, "seed": 1}])
    {'seed': ['0', '1']}
    """
    flat = [{key: json.dumps(value) for key, value in flatten(each).items()} for each in recipes]
    rows = {key: [each.get(key) for each in flat] for key in dict.fromkeys(key for each in flat for key in each)}
    return {key: row for key, row in rows.items() if len(set(row)) > 1}


def describe_differences(recipes: Sequence[dict[str, Any]]) -> list[str]:
    """Return a short description of each recipe that distinguishes it from the others; empty if it equals all others.

    Entries are considered one after the other, the objective and the projector first. An entry describes only those
    runs that the entries before it did not distinguish. Thus entries that follow from others, such as the
    hyperparameters of an objective, are omitted.

    >>> describe_differences([{"objective": name, "hyper": {name: 1}} for name in ("frossl", "simclr")])
    ['frossl', 'simclr']
    >>> describe_differences([{"projector": {"kind": "mlp", "widths": widths}, "seed": 0} for widths in ([64, 64], [])])
    ['projector 64-64', 'projector none']
    """
    texts = [describe_projector(each) for each in recipes]
    differing = differing_entries([each | {"projector": text} for each, text in zip(recipes, texts, strict=True)])

    def priority(key: str) -> int:
        head = key.partition(".")[0]
        return FIRST_ENTRIES.index(head) if head in FIRST_ENTRIES else len(FIRST_ENTRIES) + (key in LAST_ENTRIES)

    descriptions: list[tuple[str, ...]] = [()] * len(recipes)
    for key in sorted(differing, key=priority):
        pairs = [*zip(descriptions, differing[key], strict=True)]
        for i, (before, value) in enumerate(pairs):
            if len({other for same, other in pairs if same == before and other is not None}) > 1:
                word = "–" if value is None else value.strip('"')
                descriptions[i] = (*before, word if key == "objective" else f"{key} {word}")
    return [", ".join(description) for description in descriptions]


def describe_projector(recipe: dict[str, Any]) -> str:
    """Return the widths of a projector, or its kind and size; empty if the recipe has none.

    >>> [describe_projector({"projector": {"kind": kind, "widths": [512], "d0": 64}}) for kind in ("mlp", "sub-vector")]
    ['512', 'sub-vector 64']
    """
    kind, widths = look_up(recipe, "projector.kind"), look_up(recipe, "projector.widths")
    if kind in (None, "mlp"):
        return ("-".join(map(str, widths)) or "none") if isinstance(widths, list) else ""
    size = look_up(recipe, "projector.groups" if kind == "groups" else "projector.d0")
    return f"{kind} {size or ''}".strip()


def make_labels_unique(runs: Sequence[RunSummary]) -> list[RunSummary]:
    """Number the runs; append the differences between their recipes to equal labels, and (1), (2) to the labels of
    equal recipes.
    """
    recipes = {run.label: [other.recipe for other in runs if other.label == run.label] for run in runs}
    descriptions = {label: iter(describe_differences(group)) for label, group in recipes.items()}
    found = [": ".join(filter(None, (run.label, next(descriptions[run.label])))) for run in runs]
    numbers = [f" ({found[:i].count(label) + 1})" if found.count(label) > 1 else "" for i, label in enumerate(found)]
    return [replace(run, label=found[i] + numbers[i], number=i) for i, run in enumerate(runs)]
