"""The figure of the few-shot curve: accuracy of a linear probe over the number of labels per class."""

from collections.abc import Sequence
from typing import Any

from fullrank.evaluation.score import Evaluation, Score
from fullrank.report.figures import Figure, escape_label, figure_layout, line_trace, round_significant
from fullrank.report.plot_style import PANEL_HEIGHT
from fullrank.report.run_summary import RunSummary
from fullrank.report.scores import evaluations_by_relevance

CAPTION = (
    "Accuracy of a linear probe that is trained on a few labels per class, mean over random choices of the labelled images. "
    "Bars: 95 % intervals, bootstrap over the test images; they do not contain the chance of the choice of labels. "
)


def few_shot_points(evaluation: Evaluation, features: str) -> dict[int, Score]:
    """Return number of labels per class → score of one feature set, in increasing order; scores of changed protocols
    are omitted.
    """
    scores: dict[int, Score] = {}
    for score in evaluation.scores:
        n = score.settings.get("labels")
        usual = score.name.endswith("per class")
        if score.features == features and isinstance(n, int) and score.probe == "few-shot" and usual:
            scores[n] = score
    return dict(sorted(scores.items()))


def few_shot_figure(runs: Sequence[RunSummary]) -> tuple[Figure | None, str]:
    """Return the figure with its caption: one line for each feature set of one run, or for the backbone of each of
    several runs.

    All lines are of one data set: the most relevant of the first run that has a curve of at least two points. Without
    one, there is no figure.
    """
    data = next(
        (evaluation.data for run in runs for evaluation in evaluations_by_relevance(run) if _has_curve(evaluation)),
        None,
    )
    if data is None:
        return None, ""
    evaluations = [
        next((e for e in reversed(run.evaluations) if e.data == data and _has_curve(e)), None) for run in runs
    ]
    if len(runs) == 1:
        (evaluation,) = evaluations
        assert evaluation is not None
        names = dict.fromkeys(score.features for score in evaluation.scores)
        curves = [(i, name, few_shot_points(evaluation, name)) for i, name in enumerate(names)]
    else:
        found = enumerate(zip(runs, evaluations, strict=True))
        curves = [(i, run.label, few_shot_points(each, "backbone")) for i, (run, each) in found if each is not None]
    traces = [_trace(i, label, points) for i, label, points in curves if points]
    ticks = sorted({n for *_, points in curves for n in points})
    layout = figure_layout(PANEL_HEIGHT + 60, runs=len(traces)) | {
        "xaxis": {
            "type": "log",
            "title": {"text": "labels per class"},
            "tickvals": ticks,
            "ticktext": [str(n) for n in ticks],
        },
        "yaxis": {"tickformat": ".3~p", "nticks": 6},
    }
    return {"data": traces, "layout": layout}, f"{CAPTION}Test images: {data or 'not recorded'}."


def _has_curve(evaluation: Evaluation) -> bool:
    return len(few_shot_points(evaluation, "backbone")) > 1


def _trace(i: int, label: str, points: dict[int, Score]) -> dict[str, Any]:
    trace = line_trace(i, label, markers=True)
    trace |= {"x": list(points), "y": [round_significant(score.value) for score in points.values()]}
    ends = [(score.value, score.low, score.high) for score in points.values()]
    if all(low is not None and high is not None for _, low, high in ends):
        trace["error_y"] = {
            "type": "data",
            "symmetric": False,
            "array": [round_significant(high - accuracy) for accuracy, _, high in ends if high is not None],
            "arrayminus": [round_significant(accuracy - low) for accuracy, low, _ in ends if low is not None],
            "thickness": 1,
            "width": 3,
        }
    return trace | {
        "hovertemplate": f"%{{y:.1%}}<extra>{escape_label(label)}</extra>",
        "meta": {"run": label, "quantity": "accuracy"},
    }
