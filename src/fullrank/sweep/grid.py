"""A grid of settings and seeds as the plan of a sweep, in one stage, or in two if one setting is chosen on held-out
training images.
"""

import hashlib
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from fullrank.errors import UserError, suggest
from fullrank.recipes import Recipe
from fullrank.sweep.cell import Cell, EvaluationPlan, Setting
from fullrank.sweep.choice import choose
from fullrank.sweep.row import Row

STAGE, CHOICE, CHOSEN = "stage", "choice", "chosen setting"
"""The setting that marks the runs of the first stage, also in campaigns, its value, and the setting of these runs that
names what is chosen."""
VALIDATION = 0.1
"""Share of the training images on which a setting is chosen, unless the recipe holds out a share of its own."""
LONGEST_NAME = 120
MAX_CELLS = 100_000
MARKS = (1, 2, 3, 5, 10, 20, 30, 50, 100, 200, 300, 500, 1000)
"""Epochs after which the online classifier is scored, unless the recipe says when."""

Axes = Mapping[str, Sequence[Setting]]
"""Name of a setting → its values."""
Build = Callable[[dict[str, Setting]], Recipe]
"""Returns the recipe of one combination of the settings."""


def combinations(axes: Axes) -> list[dict[str, Setting]]:
    """Return the Cartesian product of the axes; the last axis varies fastest.

    Raises:
        UserError: an axis has no value or the same value twice, or there are too many combinations.

    >>> combinations({"objective": ["frossl", "vicreg"], "optimizer.lr": [0.1, 0.3]})[1]
    {'objective': 'frossl', 'optimizer.lr': 0.3}
    """
    count = 1
    for name, values in axes.items():
        if not values:
            raise UserError(f"--{name} has no value, expected at least one")
        if len(set(map(repr, values))) < len(values):
            raise UserError(f"--{name} has a value twice ({', '.join(map(str, values))}); remove one")
        count *= len(values)
    if count > MAX_CELLS:
        raise UserError(f"the grid has {count:,} combinations, expected at most {MAX_CELLS:,}; give fewer values")
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def grid_plan(
    axes: Axes,
    build: Build,
    *,
    seeds: Sequence[int] = (0,),
    evaluate: EvaluationPlan | None = None,
    chosen: str | None = None,
) -> Callable[[Sequence[Row]], list[Cell]]:
    """Return the plan of all combinations and seeds. All recipes are built at once, so that a wrong value is found
    before the first run.

    Args:
        axes: name of a setting → its values.
        build: returns the recipe of a combination.
        seeds: the seeds of each combination.
        evaluate: what is measured after training; None: the defaults.
        chosen: a setting whose value is chosen for each combination of the others: a first stage trains every value
            with one more seed on nine tenths of the training images and scores it on the other tenth (or on the share
            `data.validation` of the recipe); the second stage trains only the best value, with `seeds` and no
            validation images, and is scored on the test images.

    Raises:
        UserError: a value is wrong, two combinations are the same recipe, or `chosen` is no axis.

    >>> plan = grid_plan({"objective": ["frossl", "vicreg"]}, lambda values: Recipe(**values), seeds=(0, 1))
    >>> [cell.name for cell in plan([])]
    ['frossl-seed0', 'frossl-seed1', 'vicreg-seed0', 'vicreg-seed1']
    """
    evaluate = evaluate or EvaluationPlan()
    check_seeds(seeds)
    if chosen is not None and len(axes.get(chosen, ())) < 2:
        raise UserError(f"--choose {chosen} needs at least two values of --{chosen}{suggest(chosen, list(axes))}")
    if chosen is not None and not evaluate.probes:
        raise UserError(
            "--choose compares the first of --probes on the validation images, but there is none; give --probes linear"
        )
    combos = combinations(axes)
    recipes = [build(values) for values in combos]
    for (i, one), (j, other) in itertools.combinations(enumerate(recipes), 2):
        if one == other:
            raise UserError(f"{describe(combos[i])} and {describe(combos[j])} are the same recipe; remove one")
    names = unique_names([cell_name(values, axes) for values in combos], combos)
    compared = (
        recipes
        if chosen is None
        else [replace(recipe, data=replace(recipe.data, validation=0.0)) for recipe in recipes]
    )
    finals = [
        [
            Cell(f"{name}-seed{seed}" if name else f"seed{seed}", replace(recipe, seed=seed), values, evaluate)
            for seed in seeds
        ]
        for name, recipe, values in zip(names, compared, combos, strict=True)
    ]
    if chosen is None:
        return lambda rows: [cell for cells in finals for cell in cells]

    others = [name for name in axes if name != chosen]
    seed, probe = max(seeds) + 1, evaluate.probes[0]
    choices = [
        Cell(
            f"choice-{name}",
            replace(recipe, seed=seed, data=replace(recipe.data, validation=recipe.data.validation or VALIDATION)),
            {**values, STAGE: CHOICE, CHOSEN: chosen},
            EvaluationPlan(probes=(probe,)),
        )
        for name, recipe, values in zip(names, recipes, combos, strict=True)
    ]

    def plan(rows: Sequence[Row]) -> list[Cell]:
        ended = [row for row in rows if row.settings.get(STAGE) == CHOICE]
        if len(ended) < len(choices):
            return choices
        best = choose(ended, chosen, others, lambda row: row.score(probe))
        final = [
            cells
            for cells, values in zip(finals, combos, strict=True)
            if best.get(tuple(values[n] for n in others)) == values[chosen]
        ]
        return [*choices, *(cell for cells in final for cell in cells)]

    return plan


def check_seeds(seeds: Sequence[int]) -> None:
    """Check that there are seeds, each once.

    Raises:
        UserError: there are none, one is no seed, or one is given twice.
    """
    if not seeds or any(
        isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**32 - 1 for seed in seeds
    ):
        raise UserError(f"the seeds are {list(seeds)!r:.60}, expected at least one integer from 0 to 4294967294")
    if len(set(seeds)) < len(seeds):
        raise UserError(f"--seeds has a seed twice ({', '.join(map(str, seeds))}); remove one")


def seeds_of(values: Sequence[int]) -> tuple[int, ...]:
    """Return the seeds of --seeds: one number says how many, several numbers are the seeds.

    Raises:
        UserError: the number is below 1 or too large, or a seed is wrong.

    >>> seeds_of([3]), seeds_of([0, 5, 7])
    ((0, 1, 2), (0, 5, 7))
    """
    if len(values) == 1 and not isinstance(values[0], bool):
        if not 1 <= values[0] <= 10_000:
            raise UserError(
                f"--seeds is {values[0]}, expected the number of seeds, from 1 to 10,000, or several seeds such as 0 5 7"
            )
        return tuple(range(values[0]))
    check_seeds(values)
    return tuple(values)


def describe(values: Mapping[str, Setting]) -> str:
    """Return a combination in words.

    >>> describe({"objective": "frossl", "optimizer.lr": 0.1})
    'objective frossl, optimizer.lr 0.1'
    """
    return ", ".join(f"{name} {value}" for name, value in values.items()) or "the recipe"


def cell_name(values: Mapping[str, Setting], axes: Axes) -> str:
    """Return a name for a combination, which is the name of a folder on every system; settings with one value are left
    out.

    >>> axes = {"objective": ["frossl", "vicreg"], "optimizer.lr": [1e-3, 3e-3], "projector.widths": ["512,64", "64"], "epochs": [2]}
    >>> cell_name({"objective": "vicreg", "optimizer.lr": 0.003, "projector.widths": "512,64", "epochs": 2}, axes)
    'vicreg-lr0.003-widths512,64'
    """
    varied = [name for name in values if len(axes[name]) > 1]
    last = [name.rpartition(".")[2] for name in varied]
    parts = []
    for name, short in zip(varied, last, strict=True):
        label = "" if name == "objective" else short if last.count(short) == 1 else name
        parts.append(label + re.sub(r"[^\w.,+=-]+", "_", str(values[name])))
    return "-".join(parts).lstrip(".-")


def unique_names(names: Sequence[str], combos: Sequence[Mapping[str, Setting]]) -> list[str]:
    """Return the names with a hash of the settings where two are equal on a system that ignores case, or where one is
    too long.

    >>> names = unique_names(["a_b", "A_b", "c"], [{"x": "a/b"}, {"x": "A:b"}, {"x": "c"}])
    >>> names[2], len({name.casefold() for name in names})
    ('c', 3)
    """
    folded = [name.casefold() for name in names]
    result = []
    for name, values in zip(names, combos, strict=True):
        if folded.count(name.casefold()) > 1 or len(name.encode()) > LONGEST_NAME:
            digest = hashlib.sha256(repr(sorted(values.items())).encode()).hexdigest()[:8]
            name = f"{name.encode()[:LONGEST_NAME].decode(errors='ignore')}-{digest}"
        result.append(name)
    return result


def with_marks(recipe: Recipe) -> Recipe:
    """Return the recipe with epochs at which the online classifier is scored, if it has none.

    >>> with_marks(Recipe(epochs=12)).probe.epochs
    (1.0, 2.0, 3.0, 5.0, 10.0, 12.0)
    """
    if recipe.probe.epochs:
        return recipe
    marks = (*(float(mark) for mark in MARKS if mark < recipe.epochs), float(recipe.epochs))
    return replace(recipe, probe=replace(recipe.probe, epochs=marks))
