"""The runs that Tables 2 and 3 and Fig. 4 share.

Each method has its published recipe; a recipe that is not one of the library's stays the same but for the objective.

The runs of the tables and figures of one size have the same names, so a run is trained once.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np

from fullrank.config import from_json
from fullrank.evaluation.paired import PairedDifference, paired_by_seed
from fullrank.recipes import Recipe
from fullrank.sweep import Cell, EvaluationPlan, Plan, Row, mean_sd
from fullrank_papers.figures.figure import Rows
from fullrank_papers.figures.frossl.contenders import CONTENDERS, own_recipe
from fullrank_papers.figures.numerics import holds_for_all

EARLY = 30.0  # the paper's "first 30 epochs"
NO_PAIR = "no two runs of equal length and seed"
# The probes that tables compare, the paper's protocol first; a table shows the first that was measured.
PROBES = ("linear-sgd", "linear-imagenet", "linear")


@dataclass(frozen=True)
class Size:
    """What is trained and how it is evaluated.

    Attributes:
        recipe: FroSSL's recipe. The others are the published ones on its data set (`own_recipe`).
        marks: Epochs at which the online classifier is scored.
        epochs: Method → number of epochs, if it is not that of `recipe`.
    """

    recipe: Recipe
    seeds: int
    marks: tuple[float, ...]
    epochs: Mapping[str, int] = field(default_factory=dict)
    methods: tuple[str, ...] = tuple(CONTENDERS)
    probes: tuple[str, ...] = ("linear", "knn")


def plan(size: Size, *, data: str | None = None, transfer: Sequence[str] = ()) -> Plan:
    """Return the plan of the runs; `transfer` names other labelled images."""
    evaluate = EvaluationPlan(probes=size.probes, transfer=tuple(transfer))
    recipes = [(name, make_recipe(size, name, seed, data)) for name in size.methods for seed in range(size.seeds)]
    cells = [Cell(cell_name(size, name, recipe), recipe, {"method": name}, evaluate) for name, recipe in recipes]
    return lambda rows: cells


def cell_name(size: Size, name: str, recipe: Recipe) -> str:
    """Return a name that no other run in the folder of a size has, whichever table or figure it is for."""
    return f"{size.recipe.name}-{name}-{recipe.epochs}epochs-seed{recipe.seed}"


def make_recipe(size: Size, name: str, seed: int, data: str | None) -> Recipe:
    """Return the recipe of one run."""
    epochs = size.epochs.get(name, size.recipe.epochs)
    recipe = own_recipe(size.recipe, name, epochs)
    return replace(
        recipe,
        data=replace(recipe.data, source=data or recipe.data.source),
        probe=replace(recipe.probe, epochs=tuple(mark for mark in size.marks if mark <= epochs)),
        seed=seed,
    )


# Reading the rows.

# Method → seed → row, of the runs that are done.
Runs = Mapping[str, Mapping[int, Row]]
# Method → seed → a number of the run.
Values = Mapping[str, Mapping[int, float]]


def read_rows(rows: Rows) -> list[Row]:
    """Return the rows of a result, without their environment."""
    return [from_json(Row, row, "a run of the result") for row in rows["rows"]]


def read_runs(rows: Rows | Sequence[Row], order: Iterable[str] = CONTENDERS) -> Runs:
    """Return the runs that are done, by method in an order."""
    rows = read_rows(rows) if isinstance(rows, dict) else rows
    found: dict[Any, dict[int, Row]] = {name: {} for name in order}
    for row in rows:
        if row.is_done:
            found[row.settings["method"]][row.seed] = row
    return {name: runs for name, runs in found.items() if runs}


def count_diverged(rows: Rows) -> dict[str, int]:
    """Return method → number of its runs that diverged, of the methods that have any."""
    counts = Counter(str(row.settings["method"]) for row in read_rows(rows) if row.diverged)
    return {name: counts[name] for name in CONTENDERS if name in counts}


def numbers_of(by_seed: Mapping[int, Row], value: Callable[[Row], float | None]) -> dict[int, float]:
    """Return a number of the runs that have it and are done."""
    return {seed: x for seed, row in by_seed.items() if row.is_done and (x := value(row)) is not None}


def values_of(runs: Runs, value: Callable[[Row], float | None]) -> Values:
    """Return a number of each run that has it."""
    return {name: found for name, by_seed in runs.items() if (found := numbers_of(by_seed, value))}


def probe_accuracy(row: Row, data: str = "") -> float | None:
    """Return the accuracy of the final linear probe, of the paper's protocol if it was measured; `data` names another
    data set.
    """
    return next((score for probe in PROBES if (score := row.score(probe, data)) is not None), None)


def online_accuracy(mark: float, field: str = "accuracy") -> Callable[[Row], float | None]:
    """Return a function that returns the accuracy of the online classifier of a run at an epoch, or its "top5"."""
    return lambda row: next((getattr(score, field) for score in row.online if abs(score.epoch - mark) < 1e-6), None)


def curves(runs: Runs, score: Callable[[float], Callable[[Row], float | None]]) -> dict[str, tuple[list[float], Any]]:
    """Return method → the epochs at which all of its runs have a score, and the scores in %, (seeds, epochs)."""
    found = {}
    for name, rows in ((name, by_seed.values()) for name, by_seed in runs.items()):
        marks = [mark for mark in marks_of(runs) if all(score(mark)(row) is not None for row in rows)]
        found[name] = marks, 100 * np.array([[score(mark)(row) for mark in marks] for row in rows], dtype=float)
    return found


def all_rows(runs: Runs) -> list[Row]:
    """Return the rows of all runs."""
    return [row for by_seed in runs.values() for row in by_seed.values()]


def marks_of(runs: Runs) -> list[float]:
    """Return the epochs at which any online classifier was scored."""
    return sorted({score.epoch for row in all_rows(runs) for score in row.online})


def early_end(runs: Runs) -> float:
    """Return the end of the early phase: the last mark up to epoch 30, as in the paper, or up to half of the run if
    that is less.
    """
    limit = min([EARLY, *(row.epochs / 2 for row in all_rows(runs))])
    return max((mark for mark in marks_of(runs) if mark <= limit + 1e-6), default=limit)


def early_area(row: Row, end: float, start: float = 0.0) -> float | None:
    """Return the area under the accuracy-epoch curve of the online classifier between the epochs `start` and `end`,
    divided by the length of the span.

    The trapezoid rule over the marks there: a mean accuracy, 1 at best. None with fewer than two marks.

    >>> from fullrank.sweep import OnlineScore
    >>> online = (OnlineScore(1.0, 0.2), OnlineScore(3.0, 0.4), OnlineScore(9.0, 0.9))
    >>> round(early_area(Row(cell="a", recipe="r", objective="frossl", seed=0, status="done", online=online), 5.0), 3)
    0.3
    """
    points = [(score.epoch, score.accuracy) for score in row.online if start - 1e-6 <= score.epoch <= end + 1e-6]
    if len(points) < 2:
        return None
    areas = [(right - left) * (a + b) / 2 for (left, a), (right, b) in pairwise(points)]
    return sum(areas) / (points[-1][0] - points[0][0])


def compare(runs: Runs, values: Values, a: str, b: str) -> PairedDifference | None:
    """Return the paired difference a − b over the seeds that both have; None without such a seed, or if their runs
    differ in length.
    """
    if not {a, b} <= set(values):
        return None
    lengths = {(row.epochs, row.train_images) for name in (a, b) for row in runs[name].values()}
    return paired_by_seed(values[a], values[b]) if len(lengths) == 1 else None


def leads(runs: Runs, values: Values) -> dict[str, PairedDifference]:
    """Return FroSSL's lead over each other method."""
    return {name: gap for name in runs if name != "frossl" and (gap := compare(runs, values, "frossl", name))}


def check_leads(
    gaps: Mapping[str, PairedDifference], others: Sequence[str], bound: float = 0.0
) -> tuple[str, bool | None]:
    """Return FroSSL's least lead over some methods as text, and whether all leads exceed `bound`."""
    found = {name: gaps[name] for name in others if name in gaps}
    if not found:
        return NO_PAIR, None
    name, signs = min(found, key=lambda each: found[each].mean), [gap.exceeds(0.0) for gap in found.values()]
    counts = f"ahead of {signs.count(True)} of {len(others)}, behind {signs.count(False)}"
    text = f"{counts}; least lead, over {CONTENDERS[name].label}: {format_gap(found[name])}"
    return text, holds_for_all(gaps[name].exceeds(bound) if name in gaps else None for name in others)


def describe_runs(runs: Runs) -> str:
    """Return the data set, the number of images and of epochs of the runs as text, for captions and "expected"
    columns.
    """
    if not (rows := all_rows(runs)):
        return "no runs yet"
    images = " or ".join(f"{count:,}" for count in sorted({row.train_images for row in rows}))
    epochs = " or ".join(f"{count:g}" for count in sorted({row.epochs for row in rows}))
    plural = "" if epochs == "1" else "s"
    return f"{', '.join(sorted({row.data for row in rows}))}, {images} images, {epochs} epoch{plural}"


def describe_accuracies(values: Mapping[int, float], diverged: int = 0) -> str:
    """Return mean, standard deviation and number of seeds in percent, and how many runs diverged.

    >>> describe_accuracies({0: 0.40, 1: 0.42}), describe_accuracies({0: 0.40}, 2), describe_accuracies({}, 3)
    ('41.0 ± 1.4 (2)', '40.0 (1), 2 diverged', '3 diverged')
    """
    return ", ".join(filter(None, [mean_and_deviation(values), f"{diverged} diverged" if diverged else ""]))


def mean_and_deviation(values: Mapping[int, float], *, scale: float = 100.0, digits: int = 1) -> str:
    """Return the mean over seeds, the standard deviation and the number of seeds as text; nothing of no value.

    >>> mean_and_deviation({0: 0.40, 1: 0.42}), mean_and_deviation({0: 12.3}, scale=1.0)
    ('41.0 ± 1.4 (2)', '12.3 (1)')
    """
    return mean_sd(list(values.values()), scale=scale, digits=digits)


def format_gap(gap: PairedDifference | None) -> str:
    """Return a difference of accuracies and its 95 % interval in points; nothing without a difference."""
    if gap is None:
        return ""
    return f"{100 * gap.mean:+.1f}" + (f" ± {100 * gap.half_width:.1f}" if gap.sd is not None else "")


def markdown_table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown, the first column left and the others right.

    >>> print(markdown_table(["method", "ours"], [["FroSSL", "41.0"]]))
    | method | ours |
    | --- | ---: |
    | FroSSL | 41.0 |
    """
    rule = ["---", *["---:"] * (len(header) - 1)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, rule, *lines))
