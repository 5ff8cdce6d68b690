"""The scores of `fullrank evaluate` as tables. Scores on different images never share a column."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from fullrank.evaluation.names import is_linear
from fullrank.evaluation.result import Evaluation, ProbeScore
from fullrank.report.document import html_table, label_html
from fullrank.report.number_format import format_count, format_percent
from fullrank.report.run_summary import RunSummary, look_up

MAJORITY = "majority class"
"""The head of the column with the accuracy of always predicting the most frequent class."""


@dataclass(frozen=True)
class ScoreKey:
    """What a column of scores measures."""

    data: str
    probe: str


def scores_of(run: RunSummary, *, features: str = "backbone") -> dict[ScoreKey, ProbeScore]:
    """Return the scores of a run on one feature set, by data set and probe."""
    return {
        ScoreKey(evaluation.data, score.probe): score
        for evaluation in run.evaluations
        for score in evaluation.scores
        if score.features == features
    }


def score_columns(runs: Sequence[RunSummary]) -> dict[str, list[str]]:
    """Return a column of cells for each data set and probe, and one for each data set with the share of the most frequent class.

    The head of a column names its data set, unless all scores of all runs are of one data set.
    """
    scores = [scores_of(run) for run in runs]
    keys = list(dict.fromkeys(key for run_scores in scores for key in run_scores))
    columns = {}
    for data in dict.fromkeys(key.data for key in keys):
        where = f", {data or 'unnamed data'}" if len({key.data for key in keys}) > 1 else ""
        for key in (key for key in keys if key.data == data):
            columns[f"{key.probe}{where}"] = [score_cell(run_scores[key]) if key in run_scores else "–" for run_scores in scores]
        columns[f"{MAJORITY}{where}"] = [next((majority_cell(e) for e in run.evaluations if e.data == data), "–") for run in runs]
    return columns


def evaluation_table(runs: Sequence[RunSummary]) -> str:
    """Return a table of accuracies for each data set, probes in rows and feature sets in columns; empty if no run was evaluated."""
    return "".join(_table(data, runs) for data in dict.fromkeys(e.data for run in runs for e in run.evaluations if e.scores))


def _table(data: str, runs: Sequence[RunSummary]) -> str:
    evaluations = {i: evaluation for i, run in enumerate(runs) for evaluation in run.evaluations if evaluation.data == data}
    cells = {(score.probe, i, score.features): score_cell(score) for i, evaluation in evaluations.items() for score in evaluation.scores}
    features = dict.fromkeys(name for *_, name in cells)
    rows = [
        [
            escape(probe),
            *([label_html(i, runs[i].label)] if len(runs) > 1 else []),
            *(cells.get((probe, i, name), "–") for name in features),
            majority_cell(evaluations[i]),
        ]
        for probe in dict.fromkeys(probe for probe, *_ in cells)
        for i in sorted({i for name, i, _ in cells if name == probe})
    ]
    head = ["probe", *(["run"] if len(runs) > 1 else []), *features, MAJORITY]
    caption = f"Accuracy on {data or 'the test images'}: mean ± standard deviation over n repetitions; higher is better. "
    return html_table(head, rows, caption=f"{caption}Majority class: always predicting the most frequent class.", stacks=True)


def evaluations_by_relevance(run: RunSummary) -> list[Evaluation]:
    """Return the evaluations on the data of the training, then the others, each with the newest first.

    So runs on the same data are judged by the same images.
    """
    source = look_up(run.recipe, "data", "source")

    def is_own(evaluation: Evaluation) -> bool:
        """Return whether the name of the data is the source, or the source and its split: `photos[test]`, `photos (held out)`."""
        rest = evaluation.data.removeprefix(str(source))
        return bool(source) and rest != evaluation.data and rest[:1] in ("", "[", " ", ",")

    return sorted(reversed(run.evaluations), key=lambda evaluation: not is_own(evaluation))


def headline_score(run: RunSummary) -> str:
    """Return the first score of a linear probe on all labels or else the first score as a sentence with its baselines; empty without.

    The evaluation is the first of `evaluations_by_relevance`.
    """
    for evaluation in evaluations_by_relevance(run):
        scores = [score for score in evaluation.scores if score.features == "backbone"]
        for score in sorted(scores, key=lambda score: not is_linear(score.probe)):
            same_probe = (other for other in evaluation.scores if other.probe == score.probe and other is not score)
            others = [f"{other.features} {format_percent(other.accuracy)}" for other in same_probe]
            others += [f"{MAJORITY} {format_percent(evaluation.majority)}"] if evaluation.majority is not None else []
            data, baselines = f" on {evaluation.data}" if evaluation.data else "", f" ({', '.join(others)})" if others else ""
            return f"Accuracy{data}, {score.probe}: {format_percent(score.accuracy)}{baselines}."
    return ""


def majority_cell(evaluation: Evaluation) -> str:
    """Return the share of the most frequent class among the test labels."""
    return "–" if evaluation.majority is None else format_percent(evaluation.majority)


def score_cell(score: ProbeScore) -> str:
    """Return an accuracy with its standard deviation and its number of repetitions, if it has them."""
    mean = format_percent(score.accuracy)
    if score.sd is not None:
        mean = mean.replace("%", f"± {100 * score.sd:.1f} %").replace(" ", "\N{NO-BREAK SPACE}")
    return mean + (f" <small>n\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}{format_count(score.n)}</small>" if score.n > 1 else "")


def evaluation_notes(run: RunSummary) -> list[str]:
    """Return one sentence for the images of each evaluation, an older checkpoint, the verdict, and each score that was not computed."""
    notes = []
    last = run.train[-1].step if run.train else None
    for evaluation in run.evaluations:
        data = f"{evaluation.data}: " if evaluation.data else ""
        notes.append(f"{data}{format_count(evaluation.train_images)} train and {format_count(evaluation.test_images)} test images.")
        if evaluation.step is not None and last is not None and evaluation.step != last:
            notes.append(f"{data}the scores are of the checkpoint of step {format_count(evaluation.step)}, not of the last step.")
        notes += [f"{data}{evaluation.verdict}"] if evaluation.verdict else []
        notes += [f"{data}{score.probe}, {score.features}: {score.note}." for score in evaluation.scores if score.note]
        notes += [text for text in (evaluation.statement, *(f"Not computed: {text}" for text in evaluation.left_out)) if text]
    return notes
