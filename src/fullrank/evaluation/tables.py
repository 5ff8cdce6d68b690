"""The tables of an evaluation for the terminal."""

from collections.abc import Mapping

from rich.table import Column, Table
from rich.text import Text

from fullrank.errors import printable
from fullrank.evaluation.metrics import LARGEST_CONFUSION
from fullrank.evaluation.names import MAP
from fullrank.evaluation.outcomes import main_probe
from fullrank.evaluation.result import Evaluation, ProbeScore
from fullrank.evaluation.supervised import FINE_TUNING, FROM_SCRATCH

NAMES = 24
"""Characters that remain for the names of the rows, with their borders; longer names are wrapped."""
WIDEST = 26
"""Characters of a column; a longer word in its head, such as a path, is folded."""
Cells = Mapping[str, Mapping[str, str]]
"""Column → row → text."""


def score_tables(evaluation: Evaluation, width: int = 80) -> list[Table]:
    """Build the tables for a terminal of this width: the scores, and the results by class of the main probe.

    A table that is too wide is divided, and each part repeats the first column, with which the others are compared.

    >>> score = ProbeScore(features="backbone", probe="kNN", accuracy=0.5)
    >>> [grid.row_count for grid in score_tables(Evaluation(model="", train_images=8, test_images=2, statement="", scores=(score,)))]
    [1]
    """
    return [*_probe_tables(evaluation, width), *_class_tables(evaluation, width)]


def _probe_tables(evaluation: Evaluation, width: int) -> list[Table]:
    """Build the table of scores: one row per probe, one column per feature set; the last row is that of guessing."""
    cells: dict[str, dict[str, str]] = {}
    for score in evaluation.scores:
        deviation = "" if score.sd is None else f" ± {score.sd:.1%}"
        cells.setdefault(score.features, {})[score.probe] = f"{score.accuracy:.1%}{deviation}{_interval(score)}"
    draws = {score.n for score in evaluation.scores if score.sd is not None}
    notes = [f"±: standard deviation of n = {', '.join(map(str, sorted(draws)))} repetitions"] if draws else []
    notes += ["[ ]: 95 % interval over the test images"] if any(map(_interval, evaluation.scores)) else []
    trained = {
        score.probe: score.protocol["epochs"]
        for score in evaluation.scores
        if score.probe in (FROM_SCRATCH, FINE_TUNING)
    }
    notes += [f"{probe}: {epochs} epochs" for probe, epochs in trained.items()]
    rows = list(dict.fromkeys(score.probe for score in evaluation.scores))
    grids = _grids("probe", rows, cells, width)
    for grid in grids:
        for name, value in (("equal scores", evaluation.chance), ("majority class", evaluation.majority)):
            if value is not None:
                grid.add_section()
                grid.add_row(name, *(f"{value:.1%}" for _ in grid.columns[1:]))
    if grids:
        grids[0].title, grids[0].title_justify = Text(printable(evaluation.data)) if evaluation.data else None, "left"
        grids[-1].caption, grids[-1].caption_justify = "; ".join(notes) or None, "left"
    return grids


def _interval(score: ProbeScore) -> str:
    """Return the interval of a score without repetitions, as a second line of its cell; those with repetitions show
    their deviation.
    """
    return (
        ""
        if score.low is None or score.high is None or score.sd is not None
        else f"\n[{100 * score.low:.1f} {100 * score.high:.1f}]"
    )


def _class_tables(evaluation: Evaluation, width: int) -> list[Table]:
    """Build the table of the results by class of the main probe, a column for each feature set."""
    if not evaluation.scores:
        return []
    probe = main_probe(evaluation.scores)
    shown = (probe, FROM_SCRATCH, FROM_SCRATCH + MAP)
    scores = [score for score in evaluation.scores if score.probe in shown and score.per_class]
    if not scores:
        return []
    several = bool(scores[0].positives)
    names = list(dict.fromkeys(name for score in scores for name in score.per_class))
    names = names if len(names) <= LARGEST_CONFUSION else []
    cells: dict[str, dict[str, str]] = {}
    for score in scores:
        head = score.features if score.probe == probe else f"{score.features}: {score.probe.removesuffix(MAP)}"
        column = cells[head] = {}
        if not several:
            ends = score.balanced_accuracy_interval
            column["balanced accuracy"] = _share(score.balanced_accuracy) + (
                f"\n[{100 * ends[0]:.1f} {100 * ends[1]:.1f}]" if ends else ""
            )
        ends = score.auroc_interval
        column["AUROC"] = ("–" if score.auroc is None else f"{score.auroc:.3f}") + (
            f"\n[{ends[0]:.3f} {ends[1]:.3f}]" if ends else ""
        )
        for name in names:
            words = f"average precision, {name} (n = {scores[0].positives.get(name)})" if several else f"recall, {name}"
            column[words] = _share(score.per_class.get(name))
    return _grids(probe, list(next(iter(cells.values()))), cells, width)


def _grids(corner: str, rows: list[str], cells: Cells, width: int) -> list[Table]:
    """Build a table of these cells, or several that fit into the width."""
    grids = []
    for block in _blocks(
        {name: [printable(name).replace(" ", "\n"), *column.values()] for name, column in cells.items()}, width
    ):
        whole = {name: max(size, len(printable(name))) for name, size in block.items()}  # no head is wrapped
        sizes = whole if NAMES + sum(3 + size for size in whole.values()) <= width else block
        columns = (
            Column(Text(printable(name)), justify="right", width=size, overflow="fold") for name, size in sizes.items()
        )
        grid = Table(corner, *columns)
        for row in rows:
            grid.add_row(Text(printable(row)), *(cells[name].get(row, "") for name in block))
        grids.append(grid)
    return grids


def _blocks(columns: Mapping[str, list[str]], width: int) -> list[dict[str, int]]:
    """Divide columns into blocks that fit into a width, each with the first column, and return the width of the cells
    of each column.

    >>> _blocks({"backbone": ["31.7%"], "raw pixels": ["24.6%"], "untrained": ["23.0%"]}, width=NAMES + 16)
    [{'backbone': 5, 'raw pixels': 5}, {'backbone': 5, 'untrained': 5}]
    """
    widths = {
        name: min(max(len(line) for cell in texts for line in cell.split("\n")), WIDEST)
        for name, texts in columns.items()
    }
    first, *others = widths or [""]
    blocks: list[dict[str, int]] = [{first: widths[first]}] if widths else []
    for name in others:
        if len(blocks[-1]) > 1 and NAMES + sum(3 + widths[other] for other in (*blocks[-1], name)) > width:
            blocks.append({first: widths[first]})
        blocks[-1][name] = widths[name]
    return blocks


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"
