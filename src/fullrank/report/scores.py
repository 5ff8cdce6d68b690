"""The scores of `fullrank evaluate` as tables. Scores on different images never share a column."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from fullrank.evaluation.score import MAP, Evaluation, Score
from fullrank.report.document import label_html, split_table
from fullrank.report.number_format import format_count, format_percent
from fullrank.report.run_summary import RunSummary, look_up

MAJORITY = "majority class"
"""The head of the column with the accuracy of always predicting the most frequent class."""
EQUAL = "equal scores"
"""The head of the column with the mean average precision of scores that do not depend on the image."""


BY_CLASS = ("balanced accuracy", "AUROC")
"""The metrics of the table by class."""


@dataclass(frozen=True)
class ScoreKey:
    """What a column of scores measures."""

    data: str
    probe: str


def scores_of(run: RunSummary, *, features: str = "backbone") -> dict[ScoreKey, Score]:
    """Return the scores of a run on one feature set, by data set and probe."""
    return {
        ScoreKey(evaluation.data, score.name): score
        for evaluation in run.evaluations
        for score in evaluation.scores
        if score.features == features and score.metric not in BY_CLASS
    }


def accuracy_comparison(runs: Sequence[RunSummary]) -> str:
    """Return a table for each data set: the accuracies of the backbones, runs in rows and probes in columns; empty for
    a single run.
    """
    if len(runs) < 2:
        return ""
    return "".join(
        _comparison(data, runs) for data in dict.fromkeys(e.data for run in runs for e in run.evaluations if e.scores)
    )


def _comparison(data: str, runs: Sequence[RunSummary]) -> str:
    scores = [{key.probe: score for key, score in scores_of(run).items() if key.data == data} for run in runs]
    probes = list(dict.fromkeys(probe for of_run in scores for probe in of_run))
    if not probes:
        return ""
    guessed = [next((guessing_cell(e) for e in run.evaluations if e.data == data), "–") for run in runs]
    metric, guessing, _ = _metric([e for run in runs for e in run.evaluations if e.data == data])
    rows = [
        [
            label_html(i, run.label),
            *(score_cell(scores[i][probe], interval=False) if probe in scores[i] else "–" for probe in probes),
            guessed[i],
        ]
        for i, run in enumerate(runs)
        if scores[i]
    ]
    caption = f"{metric} of the backbone on {data or 'the test images'}; higher is better."
    return split_table(["run", *(f"{probe} ↑" for probe in probes), guessing], rows, caption=caption)


def _metric(evaluations: Sequence[Evaluation]) -> tuple[str, str, str]:
    """Return the metric of the scores on one data set, the head of the column of guessing, and its meaning."""
    metric = next((score.metric for evaluation in evaluations for score in evaluation.scores), "accuracy").capitalize()
    if metric == MAP.capitalize():
        return metric, EQUAL, "Equal scores: the same score for every image."
    return metric, MAJORITY, "Majority class: always predicting the most frequent class."


def evaluation_table(runs: Sequence[RunSummary]) -> str:
    """Return a table of accuracies for each data set, probes in rows and feature sets in columns; empty if no run was
    evaluated.
    """
    return "".join(
        _table(data, runs) for data in dict.fromkeys(e.data for run in runs for e in run.evaluations if e.scores)
    )


def _table(data: str, runs: Sequence[RunSummary]) -> str:
    evaluations = {
        i: evaluation for i, run in enumerate(runs) for evaluation in run.evaluations if evaluation.data == data
    }
    cells = {
        (score.name, i, score.features): score_cell(score)
        for i, evaluation in evaluations.items()
        for score in evaluation.scores
        if score.metric not in BY_CLASS
    }
    features = dict.fromkeys(name for *_, name in cells)
    several = len(runs) > 1
    rows = [
        [
            escape(probe) + (f" <br>{label_html(i, runs[i].label)}" if several else ""),
            *(cells.get((probe, i, name), "–") for name in features),
            guessing_cell(evaluations[i]),
        ]
        for probe in dict.fromkeys(probe for probe, *_ in cells)
        for i in sorted({i for name, i, _ in cells if name == probe})
    ]
    metric, guessing, meaning = _metric(list(evaluations.values()))
    caption = (
        f"{metric} on {data or 'the test images'}: mean ± standard deviation over n repetitions; higher is better. "
    )
    if any(score.low is not None for evaluation in evaluations.values() for score in evaluation.scores):
        caption += "Below it the 95 % interval: bootstrap over the test images, or their groups. "
    return split_table(["probe, run" if several else "probe", *features, guessing], rows, caption=caption + meaning)


def evaluations_by_relevance(run: RunSummary) -> list[Evaluation]:
    """Return the evaluations on the data of the training, then the others, each with the newest first.

    So runs on the same data are judged by the same images.
    """
    source = look_up(run.recipe, "data", "source")

    def is_own(evaluation: Evaluation) -> bool:
        """Return whether the name of the data is the source, or the source and its split: `photos[test]`, `photos (held
        out)`.
        """
        rest = evaluation.data.removeprefix(str(source))
        return bool(source) and rest != evaluation.data and rest[:1] in ("", "[", " ", ",")

    return sorted(reversed(run.evaluations), key=lambda evaluation: not is_own(evaluation))


def headline_score(run: RunSummary) -> str:
    """Return the first score of a linear probe on all labels or else the first score as a sentence with its baselines;
    empty without.

    The evaluation is the first of `evaluations_by_relevance`.
    """
    for evaluation in evaluations_by_relevance(run):
        scores = [score for score in evaluation.scores if score.features == "backbone"]
        for score in sorted(scores, key=lambda score: not score.is_linear):
            same_probe = (other for other in evaluation.scores if other.name == score.name and other is not score)
            others = [f"{other.features} {format_percent(other.value)}" for other in same_probe]
            guessing = EQUAL if score.metric == MAP else MAJORITY
            others += [f"{guessing} {format_percent(evaluation.chance)}"] if evaluation.chance is not None else []
            data, baselines = (
                f" on {evaluation.data}" if evaluation.data else "",
                f" ({', '.join(others)})" if others else "",
            )
            return f"{score.metric.capitalize()}{data}, {score.name}: {format_percent(score.value)}{baselines}."
    return ""


def guessing_cell(evaluation: Evaluation) -> str:
    """Return the score of guessing: the share of the most frequent class, or the mean average precision of equal
    scores.
    """
    return "–" if evaluation.chance is None else format_percent(evaluation.chance)


def score_cell(score: Score, *, interval: bool = True) -> str:
    """Return an accuracy with its standard deviation and its number of repetitions, if it has them, and below it its 95
    % interval.
    """
    mean = format_percent(score.value)
    if score.sd is not None:
        mean = mean.replace("%", f"± {100 * score.sd:.1f} %").replace(" ", "\N{NO-BREAK SPACE}")
    text = mean + (
        f" <small>n\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}{format_count(score.n)}</small>" if score.n > 1 else ""
    )
    if not interval or score.low is None or score.high is None:
        return text
    return f"{text}<br><small>{100 * score.low:.1f} to {100 * score.high:.1f}</small>"


def evaluation_notes(run: RunSummary) -> list[str]:
    """Return one sentence for the images of each evaluation, an older checkpoint, the verdict, and each score that was
    not computed.
    """
    notes = []
    last = run.train[-1].step if run.train else None
    for evaluation in run.evaluations:
        data = f"{evaluation.data}: " if evaluation.data else ""
        notes.append(
            f"{data}{format_count(evaluation.train_images)} train and {format_count(evaluation.test_images)} test images."
        )
        if evaluation.step is not None and last is not None and evaluation.step != last:
            notes.append(
                f"{data}the scores are of the checkpoint of step {format_count(evaluation.step)}, not of the last step."
            )
        notes += [f"{data}{evaluation.verdict}"] if evaluation.verdict else []
        notes += [f"{data}{score.name}, {score.features}: {score.note}." for score in evaluation.scores if score.note]
        notes += [evaluation.statement] if evaluation.statement else []
        notes += [f"{data}not computed: {text}" for text in evaluation.left_out]
    return notes
