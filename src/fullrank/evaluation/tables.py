"""The tables of an evaluation for the terminal."""

from rich.table import Column, Table
from rich.text import Text

from fullrank.errors import printable
from fullrank.evaluation.metrics import LARGEST_CONFUSION
from fullrank.evaluation.names import MAP
from fullrank.evaluation.outcomes import main_probe
from fullrank.evaluation.result import Evaluation, ProbeScore
from fullrank.evaluation.supervised import FINE_TUNING, FROM_SCRATCH


def table(evaluation: Evaluation) -> Table:
    """Build a table for the terminal: one row per probe, one column per feature set; the last row is the majority rate.

    >>> score = ProbeScore(features="backbone", probe="kNN", accuracy=0.5)
    >>> table(Evaluation(model="", train_images=8, test_images=2, statement="", scores=(score,))).row_count
    1
    """
    cells = {
        (score.probe, score.features): f"{score.accuracy:.1%}" + ("" if score.sd is None else f" ± {score.sd:.1%}") + _interval(score)
        for score in evaluation.scores
    }
    columns = dict.fromkeys(features for _, features in cells)
    draws = {score.n for score in evaluation.scores if score.sd is not None}
    notes = [f"±: standard deviation of n = {', '.join(map(str, sorted(draws)))} repetitions"] if draws else []
    notes += ["[ ]: 95 % interval over the test images"] if any(map(_interval, evaluation.scores)) else []
    trained = {score.probe: score.protocol["epochs"] for score in evaluation.scores if score.probe in (FROM_SCRATCH, FINE_TUNING)}
    notes += [f"{probe}: {epochs} epochs" for probe, epochs in trained.items()]
    caption = "; ".join(notes) or None
    title = Text(printable(evaluation.data)) if evaluation.data else None
    grid = Table("probe", *(Column(name, justify="right") for name in columns), title=title, caption=caption)
    grid.title_justify = grid.caption_justify = "left"
    for probe in dict.fromkeys(probe for probe, _ in cells):
        grid.add_row(probe, *(cells.get((probe, features), "") for features in columns))
    if evaluation.chance is not None:
        grid.add_section()
        grid.add_row("equal scores", *(f"{evaluation.chance:.1%}" for _ in columns))
    if evaluation.majority is not None:
        grid.add_section()
        grid.add_row("majority class", *(f"{evaluation.majority:.1%}" for _ in columns))
    return grid


def _interval(score: ProbeScore) -> str:
    """Return the interval of a score without repetitions, as a second line of its cell; those with repetitions show their deviation."""
    return "" if score.low is None or score.high is None or score.sd is not None else f"\n[{100 * score.low:.1f} {100 * score.high:.1f}]"


def class_table(evaluation: Evaluation) -> Table | None:
    """Build the table of the results by class of the main probe, a column for each feature set; None without them."""
    if not evaluation.scores:
        return None
    probe = main_probe(evaluation.scores)
    shown = (probe, FROM_SCRATCH, FROM_SCRATCH + MAP)
    scores = [score for score in evaluation.scores if score.probe in shown and score.per_class]
    if not scores:
        return None
    grid = Table(probe, *(Column(Text(printable(score.features)), justify="right") for score in scores))
    balanced, areas = [], []
    for score in scores:
        ends = score.balanced_accuracy_interval
        balanced.append(_share(score.balanced_accuracy) + (f"\n[{100 * ends[0]:.1f} {100 * ends[1]:.1f}]" if ends else ""))
        ends = score.auroc_interval
        areas.append(("–" if score.auroc is None else f"{score.auroc:.3f}") + (f"\n[{ends[0]:.3f} {ends[1]:.3f}]" if ends else ""))
    several = bool(scores[0].positives)
    if not several:
        grid.add_row("balanced accuracy", *balanced)
    grid.add_row("AUROC", *areas)
    names = list(dict.fromkeys(name for score in scores for name in score.per_class))
    if len(names) <= LARGEST_CONFUSION:
        grid.add_section()
        for name in names:
            count = f" (n = {scores[0].positives.get(name)})" if several else ""
            words = f"{'average precision' if several else 'recall'}, {printable(name)}{count}"
            grid.add_row(Text(words), *(_share(score.per_class.get(name)) for score in scores))
    return grid


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"
