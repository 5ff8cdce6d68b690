"""Results by class: recalls, balanced accuracy, AUROC, and the confusion matrix of the backbone."""

from collections.abc import Sequence
from html import escape

from fullrank.evaluation.score import AUROC, BALANCED, Evaluation, Score
from fullrank.report.document import label_html, split_table
from fullrank.report.metrics import FEW_RUNS
from fullrank.report.number_format import format_count, format_percent
from fullrank.report.run_summary import RunSummary
from fullrank.report.scores import evaluations_by_relevance

MOST_CLASSES = 100
"""With more classes, the table shows those with the lowest recalls."""


def class_section(runs: Sequence[RunSummary]) -> str:
    """Return, for each run and data set, a table of the recalls and the confusion matrix; empty without them."""
    if len(runs) > FEW_RUNS:
        return ""
    blocks = []
    for i, run in enumerate(runs):
        for evaluation in evaluations_by_relevance(run):
            if body := class_table(evaluation) + confusion_matrix(evaluation):
                head = f"{label_html(i, run.label)}, " if len(runs) > 1 else ""
                blocks.append(f"<h3>{head}{escape(evaluation.data or 'test images')}</h3>{body}")
    return "".join(blocks)


def _scores(evaluation: Evaluation) -> list[Score]:
    """Return the scores with results by class: of the main probe, and of networks that were trained with labels."""
    main = evaluation.main
    if main is None:
        return []
    trained = ("supervised", "finetune")
    return [s for s in evaluation.scores if s.per_class and (s.name == main.name or s.probe in trained)]


def class_table(evaluation: Evaluation) -> str:
    """Return balanced accuracy, AUROC and the recall of each class, with a column for each feature set; empty without
    them.
    """
    scores = _scores(evaluation)
    if not scores:
        return ""

    def cell(score: Score, metric: str, factor: float, digits: int) -> str:
        key = (score.features, score.probe, metric)
        found = next((s for s in evaluation.scores if (s.features, s.probe, s.metric) == key), None)
        if found is None:
            return "–"
        ends = None if found.low is None or found.high is None else (found.low, found.high)
        return f"{factor * found.value:.{digits}f}{' %' if factor == 100 else ''}" + _ends(ends, factor, digits)

    balanced = [cell(score, BALANCED, 100.0, 1) for score in scores]
    areas = [cell(score, AUROC, 1.0, 3) for score in scores]
    several = bool(scores[0].positives)
    rows = [["AUROC", *areas]] if several else [["balanced accuracy", *balanced], ["AUROC", *areas]]
    names = list(dict.fromkeys(name for score in scores for name in score.per_class))
    lowest = sorted(names, key=lambda name: scores[0].per_class.get(name, 1.0))[:MOST_CLASSES]
    shown = names if len(names) <= MOST_CLASSES else lowest
    heads = {
        name: f"average precision, {name} (n = {scores[0].positives.get(name, 0)})" if several else f"recall, {name}"
        for name in shown
    }
    rows += [[escape(heads[name]), *(_share(score.per_class.get(name)) for score in scores)] for name in shown]
    probes = dict.fromkeys(score.name for score in scores)
    caption = f"Results by class of {', '.join(probes)}. Recall: share of the test images of a class that are classified correctly. "
    caption += "Balanced accuracy: mean of the recalls. AUROC: mean over the classes, one class against the others. "
    if several:
        caption = f"Results by class of {', '.join(probes)}. AUROC: mean over the classes. n: number of test images with the class. "
    caption += "Small: 95 % intervals."
    if len(shown) < len(names):
        caption += (
            f" The {len(shown)} of {format_count(len(names))} classes with the lowest values; evaluation.json has all."
        )
    first = scores[0].name  # the caption names it; another one is named in the head of its column
    head = [
        score.features if score.name in (first, score.features) else f"{score.features} ({score.name})"
        for score in scores
    ]
    return split_table(["", *head], rows, caption=caption)


def _ends(interval: tuple[float, float] | None, factor: float, digits: int) -> str:
    """Return the ends of a 95 % interval as a second line of a cell; empty if there is none."""
    if interval is None:
        return ""
    low, high = (f"{factor * end:.{digits}f}" for end in interval)
    return f"<br><small>{low} to {high}</small>"


def confusion_matrix(evaluation: Evaluation) -> str:
    """Return the confusion matrix of the backbone as a table whose cells are shaded by their share of the row; empty
    without one.
    """
    score = next((score for score in _scores(evaluation) if score.features == "backbone" and score.confusion), None)
    if score is None:
        return ""
    n = len(score.confusion)
    present = iter(score.per_class)  # the classes with test images, in the order of the rows
    names = [next(present, str(k)) if sum(row) else str(k) for k, row in enumerate(score.confusion)]
    top = "".join(f'<th scope="col"><span>{escape(name)}</span></th>' for name in names)
    body = ""
    for k, (name, row) in enumerate(zip(names, score.confusion, strict=True)):
        total = sum(row)
        cells = (_cell(count, total, right=j == k) for j, count in enumerate(row))
        body += f'<tr><th scope="row">{escape(name)}</th>{"".join(cells)}</tr>'
    caption = f"Confusion of {escape(score.name)} on the backbone: number of test images by true class (row) and predicted class (column)."
    table = f"<caption>{caption}</caption><thead><tr><td></td>{top}</tr></thead><tbody>{body}</tbody>"
    return f'<div class="scroll"><table class="confusion{" small" if n > 12 else ""}">{table}</table></div>'


def _cell(count: int, total: int, *, right: bool) -> str:
    """Return the cell of a count; 0 is empty."""
    if not count:
        return "<td></td>"
    kind = ' class="right"' if right else ""
    return f'<td{kind} style="--share:{count / max(total, 1):.2f}">{count}</td>'


def _share(value: float | None) -> str:
    return "–" if not isinstance(value, int | float) else format_percent(value)
