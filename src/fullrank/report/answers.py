"""The three answers on top of a report, for each run: did it learn, is it healthy, is it better than what there was
before?
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from fullrank.evaluation.score import Comparison, Evaluation
from fullrank.evaluation.verdict import decide
from fullrank.report.document import html_table, label_html
from fullrank.report.measures import accuracy_detail, last_accuracy
from fullrank.report.number_format import format_count, format_percent
from fullrank.report.run_summary import RunSummary, look_up, series
from fullrank.report.scores import evaluations_by_relevance, headline_score
from fullrank.report.text import improvement_sentence, judge_run, measures_sentence

UNTRAINED = "untrained backbone"
"""The feature set that tells whether a run learned anything."""
OUTCOMES = {"better": ("Yes", "good"), "worse": ("No", "failed"), "undecided": ("Undecided", "warning")}
"""Outcome of a comparison → the answer in a word, and its level."""
HEALTH = {"good": "Yes", "unfinished": "Not finished", "warning": "Look at it", "failed": "No", "unknown": "Not known"}
"""Level of the verdict on the health of a run → the answer in a word."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The answer to one question about one run."""

    word: str
    """The answer in one or two words, such as `Yes`."""
    level: str
    """`good`, `unfinished`, `warning`, `failed` or `unknown`: the colour."""
    text: str
    """The evidence, in sentences."""


def did_it_learn(run: RunSummary) -> Answer:
    """Compare the backbone with the untrained network; without such scores, describe the objective and the online
    probe.

    A loss that falls shows that the objective was learned, which is no proof of better features, so the answer is then
    at most `Probably`.
    """
    if found := _against_untrained(run):
        evaluation, comparison = found
        word, level = OUTCOMES[decide(comparison)]
        rise = f"{100 * comparison.difference:+.1f} points (95 % interval {100 * comparison.low:+.1f} to {100 * comparison.high:+.1f})"
        accuracies = f"{format_percent(comparison.value)}, {comparison.against} {format_percent(comparison.reference)}: {rise}"
        text = f"By {comparison.name} on {evaluation.data or 'the test images'}, the backbone has {accuracies}."
        return Answer(
            word=word,
            level=level,
            text=_join(text, _older(run, evaluation), measures_sentence(run), improvement_sentence(run)),
        )
    signs = [sign for sign in (_loss_fell(run), _labels_are_readable(run), _probe_rose(run)) if sign is not None]
    evidence = _join(
        measures_sentence(run),
        _loss_sentence(run),
        _online_sentence(run),
        improvement_sentence(run),
        headline_score(run),
    )
    if not signs:
        return Answer(word="Not known", level="unknown", text=_join(evidence, _remedy(run)))
    word = "Probably" if all(signs) else "Probably not" if not any(signs) else "Not clear"
    level = "unknown" if all(signs) else "warning"
    return Answer(
        word=word, level=level, text=_join(evidence, "There is no comparison with the untrained network.", _remedy(run))
    )


def is_it_healthy(run: RunSummary) -> Answer:
    """Return the verdict on the log: a failure, an alarm, collapsed dimensions, an early end."""
    verdict = judge_run(run)
    return Answer(word=HEALTH[verdict.level], level=verdict.level, text=verdict.text)


def is_it_better(run: RunSummary) -> Answer:
    """Return the verdict of `fullrank evaluate` against the strongest alternative: raw pixels, the weights begun with,
    other models.
    """
    for evaluation in evaluations_by_relevance(run):
        sentences = {"": evaluation.verdict, "After fine-tuning: ": evaluation.finetuned}
        found = {before: text.partition(": ") for before, text in sentences.items() if text}
        if answer := next(
            (OUTCOMES[outcome.lower()] for outcome, _, _ in found.values() if outcome.lower() in OUTCOMES), None
        ):
            word, level = answer
            where = f"On {evaluation.data}: " if evaluation.data else ""
            texts = [
                f"{before}{outcome.lower()}, {text}" if before else f"{where}{text}"
                for before, (outcome, _, text) in found.items()
            ]
            return Answer(word=word, level=level, text=_join(*texts, _older(run, evaluation)))
    stored = "The stored scores were not compared with another network or with raw pixels." if run.evaluations else ""
    return Answer(word="Not known", level="unknown", text=_join(stored, _remedy(run)))


QUESTIONS: dict[str, Callable[[RunSummary], Answer]] = {
    "Did it learn?": did_it_learn,
    "Is it healthy?": is_it_healthy,
    "Is it better than what I had?": is_it_better,
}


def answers_html(runs: Sequence[RunSummary]) -> str:
    """Return the answers with their evidence for one run; a table of answers and, when opened, the evidence for several
    runs.
    """
    if len(runs) == 1:
        return _paragraphs(runs[0])
    answers = [[question(run) for question in QUESTIONS.values()] for run in runs]
    rows = [
        [label_html(i, run.label), *map(_cell, row)] for i, (run, row) in enumerate(zip(runs, answers, strict=True))
    ]
    evidence = "".join(f"<h3>{label_html(i, run.label)}</h3>{_paragraphs(run)}" for i, run in enumerate(runs))
    table = html_table(["run", *QUESTIONS], rows, caption="", stacks=True)
    return f'{table}<details class="evidence"><summary>Evidence of the {len(runs)} runs</summary>{evidence}</details>'


def _paragraphs(run: RunSummary) -> str:
    return "\n".join(
        f'<p class="verdict {answer.level}"><b>{escape(question)} {escape(answer.word)}.</b> {escape(answer.text)}</p>'
        for question, answer in ((question, find(run)) for question, find in QUESTIONS.items())
    )


def _cell(answer: Answer) -> str:
    return f'<span class="answer {answer.level}">{escape(answer.word)}</span>'


def _against_untrained(run: RunSummary) -> tuple[Evaluation, Comparison] | None:
    for evaluation in evaluations_by_relevance(run):
        for comparison in evaluation.comparisons:
            if comparison.against == UNTRAINED:
                return evaluation, comparison
    return None


def _loss_fell(run: RunSummary) -> bool | None:
    """Return whether the held-out loss is lower at the end than at its first evaluation; None without two values."""
    _, losses = series(run.spectrum, lambda row: row.held_out_loss)
    return losses[-1] < losses[0] if len(losses) > 1 and losses[0] is not None and losses[-1] is not None else None


def _loss_sentence(run: RunSummary) -> str:
    fell = _loss_fell(run)
    if fell is None:
        return ""
    _, losses = series(run.spectrum, lambda row: row.held_out_loss)
    return f"The held-out loss {'fell' if fell else 'did not fall'}: {losses[0]:.4g} → {losses[-1]:.4g}."


def _labels_are_readable(run: RunSummary) -> bool | None:
    """Return whether the online accuracy exceeds the share of the most frequent class by two standard errors; None if
    unknown.
    """
    rows = [row for row in run.spectrum if row.probe_accuracy is not None]
    if (
        not rows
        or not rows[-1].probe_images
        or rows[-1].probe_majority is None
        or (accuracy := last_accuracy(run)) is None
    ):
        return None
    error = (rows[-1].probe_majority * (1 - rows[-1].probe_majority) / rows[-1].probe_images) ** 0.5
    return accuracy > rows[-1].probe_majority + 2 * error


def _probe_rose(run: RunSummary) -> bool | None:
    """Return whether the linear probe on labelled images is better at the end than before the first step, by two
    standard errors of the difference of two shares; None if unknown.
    """
    rows = [row for row in run.online if row.probe == "linear"]
    if len(rows) < 2 or rows[0].step:
        return None
    first, last = rows[0], rows[-1]
    error = sum(row.accuracy * (1 - row.accuracy) / row.images for row in (first, last)) ** 0.5
    return last.accuracy > first.accuracy + 2 * error


def _online_sentence(run: RunSummary) -> str:
    rows = [row for row in run.online if row.probe == "linear"]
    if rows and not rows[0].step:
        first, last = (format_percent(row.accuracy) for row in (rows[0], rows[-1]))
        return f"A linear probe on {format_count(rows[-1].images)} labelled test images: {first} before the first step, {last} at the end."
    accuracy, detail = last_accuracy(run), accuracy_detail(run)
    return "" if accuracy is None else f"Online accuracy {format_percent(accuracy)}{f' ({detail})' if detail else ''}."


def _older(run: RunSummary, evaluation: Evaluation) -> str:
    last = run.train[-1].step if run.train else None
    if evaluation.step is None or last is None or evaluation.step == last:
        return ""
    return f"These scores are of the checkpoint of step {format_count(evaluation.step)}, not of the last step."


def _remedy(run: RunSummary) -> str:
    """Return the command that answers the question; a run without an online probe has no labels of its own."""
    if any(row.probe_accuracy is not None for row in run.spectrum) and look_up(run.recipe, "data", "source"):
        return f"Run fullrank evaluate {run.folder} to know."
    return f"Run fullrank evaluate {run.folder} --labelled SOURCE to know, with a source of labelled images."


def _join(*sentences: str) -> str:
    return " ".join(filter(None, sentences))
