"""A grid of settings and seeds as the cells of a sweep, in one stage, or in two if one setting is chosen on held-out
training images.
"""

import hashlib
import itertools
import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fullrank.errors import UserError, suggest
from fullrank.plot_style import FORMATS
from fullrank.recipes import Recipe
from fullrank.recipes.recipe import is_folder_name
from fullrank.sweep.row import EvaluationPlan, Row, Setting

# The setting that marks the runs of the first stage, also in campaigns, its value, and the setting of these runs that
# names what is chosen.
STAGE, CHOICE, CHOSEN = "stage", "choice", "chosen setting"
# Share of the training images on which a setting is chosen, unless the recipe holds out a share of its own.
VALIDATION = 0.1
LONGEST_NAME = 120
# Epochs after which the online classifier is scored, unless the recipe says when.
MARKS = (1, 2, 3, 5, 10, 20, 30, 50, 100, 200, 300, 500, 1000)
# Names in the folder of a sweep that no cell may have.
RESERVED = ("logs", "rows.jsonl", "table.md", "table.csv", "report.html", *map("accuracy.{}".format, FORMATS))

# Name of a setting → its values.
Axes = Mapping[str, Sequence[Any]]
# Returns all cells that are known, given the rows of those that have ended, in the order of the cells. A later stage,
# such as the runs with a chosen learning rate, returns more cells once the rows that it depends on are there. It never
# takes a cell back.
Plan = Callable[[Sequence[Row]], Sequence["Cell"]]


@dataclass(frozen=True)
class Cell:
    """One run of a sweep. Its run directory is the folder of this name in the folder of the sweep.

    Attributes:
        settings: The values in which the cells of a sweep differ, by the name of the flag, such as optimizer.lr; the
            seed is not one of them.

    Raises:
        UserError: the name is not that of one folder.

    >>> Cell("vicreg-seed0", Recipe(objective="vicreg"), {"objective": "vicreg"}).recipe.objective
    'vicreg'
    """

    name: str
    recipe: Recipe
    settings: Mapping[str, Setting] = field(default_factory=dict)
    evaluate: EvaluationPlan = field(default_factory=EvaluationPlan)

    def __post_init__(self) -> None:
        if not is_folder_name(self.name) or self.name in RESERVED:
            raise UserError(f"the run is called '{self.name}', expected the name of one folder of its own; rename it")


def grid_plan(
    axes: Axes,
    build: Callable[[dict[str, Any]], Recipe],
    *,
    seeds: Sequence[int] = (0,),
    evaluate: EvaluationPlan = EvaluationPlan(),  # noqa: B008  frozen
    chosen: str | None = None,
) -> Plan:
    """Return the plan of all combinations and seeds. All recipes are built at once, so that a wrong value is found
    before the first run.

    Args:
        axes: name of a setting → its values.
        build: returns the recipe of a combination.
        seeds: the seeds of each combination.
        evaluate: what is measured after training.
        chosen: a setting whose value is chosen for each combination of the others: a first stage trains every value
            with one more seed on nine tenths of the training images and scores it on the other tenth (or on the share
            `data.validation` of the recipe); the second stage trains only the best value, with `seeds` and no
            validation images, and is scored on the test images.

    Raises:
        UserError: a value is wrong, two combinations are the same recipe, or `chosen` is not an axis.

    >>> plan = grid_plan({"objective": ["frossl", "vicreg"]}, lambda values: Recipe(**values), seeds=(0, 1))
    >>> [cell.name for cell in plan([])]
    ['frossl-seed0', 'frossl-seed1', 'vicreg-seed0', 'vicreg-seed1']
    """
    if chosen is not None and (len(axes.get(chosen, ())) < 2 or not evaluate.probes):
        hint = suggest(chosen, list(axes))
        raise UserError(f"--choose {chosen} needs at least two values of --{chosen}, and one of --probes{hint}")
    if chosen is not None and evaluate.probes[0] == "fractions":
        raise UserError(f"--choose {chosen} needs one score, but fractions has several; put another probe first")
    for name, values in axes.items():
        is_list = isinstance(values, Sequence) and not isinstance(values, str)
        if not is_list or not values or len(set(map(repr, values))) < len(values):
            raise UserError(f"--{name} is {values!r:.60}, expected a list of different values, such as [1, 2]")
    combos = combinations(axes)
    recipes = [build(values) for values in combos]
    settings = [{name: as_setting(value) for name, value in values.items()} for values in combos]
    names = cell_names(settings)
    for i, recipe in enumerate(recipes):
        if recipe in recipes[:i]:
            raise UserError(f"{names[recipes.index(recipe)]} and {names[i]} are the same recipe; remove one")

    def compared(i: int) -> list[Cell]:
        recipe = recipes[i] if chosen is None else _with_validation(recipes[i], 0.0)
        prefix = f"{names[i]}-" if names[i] else ""
        return [Cell(f"{prefix}seed{seed}", replace(recipe, seed=seed), settings[i], evaluate) for seed in seeds]

    if chosen is None:
        cells = [cell for i in range(len(combos)) for cell in compared(i)]
        return lambda rows: cells
    choices = []
    for name, recipe, values in zip(names, recipes, settings, strict=True):
        recipe = replace(_with_validation(recipe, recipe.data.validation or VALIDATION), seed=max(seeds) + 1)
        marked = {**values, STAGE: CHOICE, CHOSEN: chosen}
        choices.append(
            Cell(f"choice-{name}", recipe, marked, replace(evaluate, probes=evaluate.probes[:1], transfer=()))
        )

    def plan(rows: Sequence[Row]) -> list[Cell]:
        tried = [row for row in rows if row.settings.get(STAGE) == CHOICE]
        best = choose(tried, chosen, lambda row: row.score(evaluate.probes[0])) if len(tried) == len(choices) else {}
        picked = [i for i, values in enumerate(settings) if best.get(others_of(values, chosen)) == values[chosen]]
        return [*choices, *(cell for i in picked for cell in compared(i))]

    return plan


def others_of(settings: Mapping[str, Setting], key: str) -> tuple[Setting, ...]:
    """Return the values of a run's settings besides one of them, and without the marks of the first stage."""
    return tuple(value for name, value in settings.items() if name not in (key, STAGE, CHOSEN))


def as_setting(value: Any) -> Setting:
    """Return a value of the grid as a number or text: a list of numbers is joined by commas.

    >>> as_setting([512, 64]), as_setting(0.1)
    ('512,64', 0.1)
    """
    text = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return value if isinstance(value, int | float) else text


def _with_validation(recipe: Recipe, share: float) -> Recipe:
    return replace(recipe, data=replace(recipe.data, validation=share))


def combinations(axes: Axes) -> list[dict[str, Any]]:
    """Return the Cartesian product of the axes; the last axis varies fastest.

    >>> combinations({"objective": ["frossl", "vicreg"], "optimizer.lr": [0.1, 0.3]})[1]
    {'objective': 'frossl', 'optimizer.lr': 0.3}
    """
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def cell_names(combos: Sequence[Mapping[str, Setting]]) -> list[str]:
    """Return a name for each combination, that of a folder on every system; settings with one value are left out.

    Names that are too long, or equal on a system that ignores case, end in a hash of the settings.

    >>> axes = {"objective": ["frossl", "vicreg"], "optimizer.lr": [1e-3, 3e-3], "epochs": [2]}
    >>> cell_names(combinations(axes))[3]
    'vicreg-lr0.003'
    """
    varied = [name for name in combos[0] if len({repr(values[name]) for values in combos}) > 1]
    last = Counter(name.rpartition(".")[2] for name in varied)
    label = {name: part if last[part := name.rpartition(".")[2]] == 1 else name for name in varied} | {"objective": ""}
    names = ["-".join(label[n] + re.sub(r"[^\w.,+=-]+", "_", str(values[n])) for n in varied) for values in combos]
    names = [name.lstrip(".-") for name in names]
    same = Counter(name.casefold() for name in names)
    for i, (name, values) in enumerate(zip(names, combos, strict=True)):
        if same[name.casefold()] > 1 or len(name.encode()) > LONGEST_NAME:
            digest = hashlib.sha256(repr(sorted(values.items())).encode()).hexdigest()[:8]
            names[i] = f"{name.encode()[:LONGEST_NAME].decode(errors='ignore')}-{digest}"
    return names


def seeds_of(values: int | Sequence[int]) -> tuple[int, ...]:
    """Return the seeds: a number says how many, a list has the seeds themselves.

    Raises:
        UserError: there are none, one is no seed, or one is given twice.

    >>> seeds_of(3), seeds_of([0, 5, 7]), seeds_of([3])
    ((0, 1, 2), (0, 5, 7), (3,))
    """
    seeds = tuple(range(min(values, 10_000))) if isinstance(values, int) else tuple(values)
    if not seeds or len(set(seeds)) < len(seeds) or not all(0 <= seed < 2**32 - 1 for seed in seeds):
        raise UserError(f"seeds is {values}, expected their number from 1 on, or different seeds such as 0 5 7")
    return seeds


def with_marks(recipe: Recipe) -> Recipe:
    """Return the recipe with epochs at which the online classifier is scored, if it has none.

    >>> with_marks(Recipe(epochs=12)).probe.epochs
    (1.0, 2.0, 3.0, 5.0, 10.0, 12.0)
    """
    marks = (*(float(mark) for mark in MARKS if mark < recipe.epochs), float(recipe.epochs))
    return replace(recipe, probe=replace(recipe.probe, epochs=recipe.probe.epochs or marks))


def choose(rows: Iterable[Row], key: str, score: Callable[[Row], float | None]) -> dict[tuple[Setting, ...], Setting]:
    """Return the value of the setting `key` with the best mean score, for each combination of the other settings.

    A value at which a run diverged is not chosen. A combination has no choice if a run failed for another reason, or if
    all of its values diverged. Of equal scores, the first value wins.

    Args:
        rows: the rows of all values, done or failed.
        key: name of the setting to choose.
        score: the score of a row, higher is better; None if the row has none.

    Returns:
        A dict: the values of the other settings, as a tuple → the chosen value of `key`.

    >>> def row(lr, accuracy):
    ...     return Row(cell=f"{lr}", recipe="digits", objective="frossl", seed=9, status="done", data="digits",
    ...                settings={"objective": "frossl", "optimizer.lr": lr}, scores={"digits": {"linear": accuracy}})
    >>> choose([row(0.1, 0.5), row(0.3, 0.7)], "optimizer.lr", lambda row: row.score("linear"))
    {('frossl',): 0.3}
    """
    found: dict[tuple[Setting, ...], dict[Setting, list[Row]]] = {}
    for row in rows:
        found.setdefault(others_of(row.settings, key), {}).setdefault(row.settings[key], []).append(row)
    choices: dict[tuple[Setting, ...], Setting] = {}
    for combination, values in found.items():
        scores = {v: [x for r in runs if not r.diverged and (x := score(r)) is not None] for v, runs in values.items()}
        means = {v: statistics.fmean(known) for v, known in scores.items() if len(known) == len(values[v])}
        if means and all(row.is_final for runs in values.values() for row in runs):
            choices[combination] = max(means, key=lambda value: means[value])
    return choices


def edge_of_grid(chosen: Setting, tried: Iterable[Setting]) -> str:
    """Return as text whether a chosen number is the smallest or the largest of those tried: a wider grid may then have
    a better one.

    >>> edge_of_grid(0.3, [0.1, 0.3]), edge_of_grid(0.2, [0.1, 0.2, 0.3]), edge_of_grid("relu", ["relu", "gelu"])
    ('largest of 2', '', '')
    """
    numbers = [value for value in {chosen, *tried} if isinstance(value, int | float) and not isinstance(value, bool)]
    if chosen not in numbers or len(numbers) < 2:
        return ""
    edges = {min(numbers): "smallest", max(numbers): "largest"}
    return f"{edges[chosen]} of {len(numbers)}" if chosen in edges else ""
