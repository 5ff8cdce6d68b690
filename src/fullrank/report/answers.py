"""The text about a run: did it learn, is it healthy, is it better than what there was before; and its notes."""

from math import isfinite, isinf
from typing import NamedTuple

from fullrank.evaluation.score import Evaluation
from fullrank.evaluation.verdict import decide, standard_error, still_rising, verdict
from fullrank.report.summary import RunSummary, look_up, series
from fullrank.run.spectrum_history import LOCATIONS
from fullrank.spectrum.metrics import SAMPLES_PER_DIMENSION

# The feature set that tells whether a run learned anything.
UNTRAINED = "untrained backbone"
# Outcome of a comparison → the answer in a word, and its level.
OUTCOMES = {"better": ("Yes", "good"), "worse": ("No", "failed"), "not significant": ("Not shown", "warning")}
# Minimum share of the whole decrease of the held-out loss that the last quarter of a run makes if the run still
# improves at its end. `docs/report.md` shows what runs above this share gained when they were trained twice as long.
STILL_IMPROVING = 0.01
# Minimum number of held-out losses for a statement about the last quarter of a run.
MIN_LOSSES = 8


class Answer(NamedTuple):
    """The answer to one question about one run.

    Attributes:
        word: The answer in one or two words, such as `Yes`.
        level: `good`, `unfinished`, `warning`, `failed` or `unknown`: the colour.
        text: The evidence, in sentences.
    """

    word: str
    level: str
    text: str


def answers(run: RunSummary) -> dict[str, Answer]:
    """Return question → answer on top of a report."""
    questions = {
        "Did it learn?": did_it_learn,
        "Is it healthy?": is_it_healthy,
        "Is it better than what I had?": is_it_better,
    }
    return {question: judge(run) for question, judge in questions.items()}


def did_it_learn(run: RunSummary) -> Answer:
    """Compare the backbone with the untrained network; without such scores, describe the objective and the probes.

    A loss that falls shows that the objective was learned, which does not prove better features, so the answer is then
    at most `Probably`.
    """
    for evaluation in run.evaluations_by_relevance():
        for found in (found for found in evaluation.comparisons if found.against == UNTRAINED):
            rest = (_images(evaluation), _older(run, evaluation), _improvement(run))
            return Answer(*OUTCOMES[decide(found)], _join(verdict([found]), *rest))
    signs = _signs(run)
    text = _join(*signs, _improvement(run), _headline(run))
    if not signs:
        return Answer("Not known", "unknown", _join(text, _remedy(run)))
    fine = all(signs.values())
    word = "Probably" if fine else "Not clear" if any(signs.values()) else "Probably not"
    text = _join(text, "There is no comparison with the untrained network.", _remedy(run))
    return Answer(word, "unknown" if fine else "warning", text)


def is_it_healthy(run: RunSummary) -> Answer:
    """Judge the log: whether the run failed, raised an alarm, has collapsed dimensions, or ended early."""
    if not run.train and not run.spectrum:
        return Answer("Not known", "unknown", "There is no log, so the run cannot be judged.")
    collapsed, unfinished, raised = _collapsed(run), unfinished_sentence(run), "No alarm was raised."
    if run.alarms:
        last, number = run.alarms[-1], len(run.alarms)
        if last.alarm == "not finite" and last.step == run.last_step:  # the run ended there
            return Answer("No", "failed", f"Failed at step {count(last.step)}: {last.message}.")
        raised = f"{number} alarms were raised, the last" if number > 1 else "An alarm was raised"
        raised += f" at step {count(last.step)}: {last.message}."
    if run.alarms or collapsed:
        return Answer("Look at it", "warning", _join(raised, unfinished, collapsed))
    if unfinished:
        return Answer("Not finished", "unfinished", _join(unfinished, "No alarm was raised so far."))
    if not run.spectrum:
        return Answer("Not known", "unknown", "No alarm was raised, but the run has no spectrum.")
    return Answer("Yes", "good", "Finished without an alarm.")


def is_it_better(run: RunSummary) -> Answer:
    """Return the verdict of `fullrank evaluate` against the strongest alternative: raw pixels, the initial weights,
    other models.
    """
    for evaluation in run.evaluations_by_relevance():
        if evaluation.comparisons and (evaluation.verdict or evaluation.finetuned):
            found = [c for c in evaluation.comparisons if (c.probe == "finetune") != bool(evaluation.verdict)]
            # The first is of the newest verdict.
            outcome = decide(max((c for c in found if c.name == found[0].name), key=lambda rival: rival.reference))
            finetuned = evaluation.finetuned and f"After fine-tuning: {evaluation.finetuned}"
            rest = (finetuned, _images(evaluation), _older(run, evaluation))
            return Answer(*OUTCOMES[outcome], _join(evaluation.verdict, *rest))
    stored = "The stored scores were not compared with another network or with raw pixels." if run.evaluations else ""
    return Answer("Not known", "unknown", _join(stored, _remedy(run)))


def notes(run: RunSummary) -> list[str]:
    """Return one sentence for everything that is missing, damaged, or measured on too few images."""
    found = list(run.file_notes)
    if run.train and not run.online and run.last("probe_accuracy") is None:
        found.append("There is no online accuracy: the online probe needs labels.")
    if sizes := list(filter(None, (_small_sample(run, location) for location in LOCATIONS))):
        found.append(
            f"The spectrum was measured on {' and '.join(sizes)}: with fewer than ten images per dimension, the "
            "effective rank is too small."
        )
    for row in (row for row in run.spectrum[:1] if row.full):
        sizes = [row.full_metrics("backbone").samples, row.full_train_images or 0, row.backbone.samples]
        text = "The first and the last spectrum rest on {} images, {} of them training images; those between on {}."
        found.append(text.format(*map(count, sizes)))
    if run.unreadable:
        found.append(f"{count(run.unreadable)} files cannot be read as images; decode_errors.jsonl names them.")
    return found


def evaluation_notes(run: RunSummary) -> list[str]:
    """Return a sentence for the images of each evaluation, an older checkpoint, the verdict, and what was left out."""
    found = []
    for evaluation in run.evaluations:
        images = f"{count(evaluation.train_images)} train and {count(evaluation.test_images)} test images."
        data = f"{evaluation.data}: " if evaluation.data else ""
        sentences = filter(None, (images, _older(run, evaluation), evaluation.verdict, *evaluation.notes))
        found += [*(data + text for text in sentences), evaluation.statement]
    return list(filter(None, found))


def unfinished_sentence(run: RunSummary) -> str:
    """Return where the log of an unfinished run ends; empty if the run is finished or its length is unknown."""
    epochs, rows = look_up(run.recipe, "epochs"), run.train or run.spectrum
    if not isinstance(epochs, int | float) or not rows or rows[-1].epoch >= epochs:
        return ""
    return (
        f"Unfinished: the log ends in epoch {rows[-1].epoch:.4g} of {epochs}; the run was interrupted or is still "
        f"running (continue with fullrank pretrain --resume {run.folder})."
    )


def _signs(run: RunSummary) -> dict[str, bool]:
    """Return a sentence for each sign, and whether it is good: the loss fell, the probes rose beyond chance by two
    standard errors.
    """
    signs = {}
    _, losses = series(run.spectrum, lambda row: row.held_out_loss)
    if len(losses) > 1:
        fell = bool(losses[-1] < losses[0])
        text = f"The held-out loss {'fell' if fell else 'did not fall'}: {losses[0]:.4g} → {losses[-1]:.4g}."
        signs[text] = fell
    probed = [row for row in run.spectrum if row.probe_accuracy is not None][-1:]
    for accuracy, majority, n in ((row.probe_accuracy, row.probe_majority, row.probe_images) for row in probed):
        if accuracy is not None and majority is not None and n:
            text = f"Online accuracy {percent(accuracy)} ({count(n)} images, majority class {percent(majority)})."
            signs[text] = accuracy > majority + 2 * standard_error(majority, images=n)
    linear = [row for row in run.online if row.probe == "linear" and row.images == run.online[-1].images]
    if len(linear) > 1 and not linear[0].step:
        first, last = linear[0], linear[-1]
        error = standard_error(first.accuracy, last.accuracy, images=last.images)
        text = f"A linear probe on {count(last.images)} labelled test images: {percent(first.accuracy)} before the "
        signs[f"{text}first step, {percent(last.accuracy)} at the end."] = last.accuracy > first.accuracy + 2 * error
    return signs


def _improvement(run: RunSummary) -> str:
    """Return a sentence if the held-out loss of a finished run made a part of its whole decrease, from the largest to
    the last value, in the last quarter of the run; with the accuracy of the online probe if it tells a trend too.
    """
    steps, losses = series(run.spectrum, lambda row: row.held_out_loss)
    if len(losses) < MIN_LOSSES or unfinished_sentence(run):
        return ""
    before = next(loss for step, loss in zip(steps, losses, strict=True) if step >= 0.75 * steps[-1])
    share = (before - losses[-1]) / max(losses.max() - losses[-1], 1e-300)
    made = f"the last quarter made {percent(share, 0)} of the decrease of the loss on held-out images"
    probed = {row.epoch: row.probe_accuracy for row in run.spectrum if row.probe_accuracy is not None}
    trend = still_rising(probed, run.spectrum[-1].probe_images or 0)
    return f"Still improving at the end: {'; '.join(filter(None, (made, trend)))}." if share >= STILL_IMPROVING else ""


def _headline(run: RunSummary) -> str:
    """Return the main score of the most relevant evaluation with its baselines."""
    evaluation = next((each for each in run.evaluations_by_relevance() if each.main), None)
    if evaluation is None or (score := evaluation.main) is None:
        return ""
    same = (other for other in evaluation.scores if other.name == score.name and other is not score)
    others = [f"{other.features} {percent(other.value)}" for other in same]
    others += [f"{evaluation.guess} {percent(evaluation.chance)}"] if evaluation.chance is not None else []
    where = f"{score.metric.capitalize()}{' on ' if evaluation.data else ''}{evaluation.data}, {score.name}"
    return f"{where}: {percent(score.value)}" + (f" ({', '.join(others)})." if others else ".")


def _collapsed(run: RunSummary) -> str:
    """Return the collapsed dimensions of the last backbone; empty with too few images to detect them."""
    metrics = run.last_metrics("backbone")  # healthy projectors have some too
    if metrics is None or not metrics.collapsed_dimensions or _small_sample(run, "backbone"):
        return ""
    return f"In the last spectrum, {count(metrics.collapsed_dimensions)} dimensions of the backbone have collapsed."


def _small_sample(run: RunSummary, location: str) -> str:
    """Return the number of images of the last spectrum if there are fewer than ten per dimension, or else nothing."""
    metrics = run.last_metrics(location)
    if metrics is None or metrics.samples >= SAMPLES_PER_DIMENSION * metrics.dimensions:
        return ""
    return f"{count(metrics.samples)} images for the {count(metrics.dimensions)} dimensions of the {location}"


def _images(evaluation: Evaluation) -> str:
    return f"Test images: {evaluation.data}." if evaluation.data else ""


def _older(run: RunSummary, evaluation: Evaluation) -> str:
    if evaluation.step is None or not run.train or evaluation.step == run.train[-1].step:
        return ""
    return f"These scores are of the checkpoint of step {count(evaluation.step)}, not of the last step."


def _remedy(run: RunSummary) -> str:
    """Return the command that answers the question; a run without an online probe has no labels of its own."""
    if run.last("probe_accuracy") is not None and run.data:
        return f"Run fullrank evaluate {run.folder} to know."
    return f"Run fullrank evaluate {run.folder} --labelled SOURCE to know, with a source of labelled images."


def _join(*sentences: str) -> str:
    return " ".join(filter(None, sentences))


def count(n: int) -> str:
    """Return an integer with thin spaces between its thousands.

    >>> count(1234567).split("\N{NARROW NO-BREAK SPACE}")
    ['1', '234', '567']
    """
    return f"{n:,}".replace(",", "\N{NARROW NO-BREAK SPACE}")


def percent(share: float | None, digits: int = 1) -> str:
    """Return a share in percent, a dash for None.

    >>> percent(0.9123).split(), percent(None)
    (['91.2', '%'], '–')
    """
    return "–" if share is None else f"{100 * share:.{digits}f}\N{NO-BREAK SPACE}%"


def number(value: float) -> str:
    """Return a number with three or four digits.

    >>> number(0.98765), number(45.25), number(3.0), number(float("inf")), number(2.5e9)
    ('0.988', '45.2', '3', '∞', '2.5e+09')
    """
    if not isfinite(value):
        return "∞" if isinf(value) else "–"
    return count(round(value)) if 1000 <= abs(value) < 1e6 else f"{value:.3g}"
