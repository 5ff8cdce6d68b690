"""The text about a run: did it learn, is it healthy, is it better than what there was before; and its notes."""

from contextlib import suppress
from math import isfinite, isinf
from typing import NamedTuple

from fullrank.evaluation.score import ACCURACY, Comparison, Evaluation
from fullrank.evaluation.verdict import decide, standard_error
from fullrank.report.summary import RunSummary, look_up, series, short
from fullrank.run.collapse_detector import MIN_BURN_IN
from fullrank.run.spectrum_history import LOCATIONS
from fullrank.spectrum.metrics import SAMPLES_PER_DIMENSION

# The feature set that tells whether a run learned anything.
UNTRAINED = "untrained backbone"
# Outcome of a comparison → the answer in a word, and its level.
OUTCOMES = {"better": ("Yes", "good"), "worse": ("No", "failed"), "not significant": ("Not shown", "warning")}


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
    return {
        "Did it learn?": did_it_learn(run),
        "Is it healthy?": is_it_healthy(run),
        "Is it better than what I had?": is_it_better(run),
    }


def did_it_learn(run: RunSummary) -> Answer:
    """Compare the backbone with the untrained network; without such scores, describe the loss and the probes.

    A loss that falls shows that the objective was learned, which does not prove better features, so the answer is then
    at most `Probably`.
    """
    for evaluation in run.evaluations_by_relevance():
        for found in (found for found in evaluation.comparisons if found.against == UNTRAINED):
            text = _join(_learned(evaluation, found), _older(run, evaluation))
            return Answer(*OUTCOMES[decide(found)], text)
    signs = _signs(run)
    fine, some = all(signs.values()), any(signs.values())  # without signs, all are good and none is
    word = "Not clear" if some and not fine else "Probably" if some else "Probably not" if signs else "Not known"
    text = _join(*signs, "There is no comparison with the untrained network.", _remedy(run))
    return Answer(word, "unknown" if fine else "warning", text)


def _learned(evaluation: Evaluation, found: Comparison) -> str:
    """Return the comparison with the untrained network for readers who do not know the probes."""
    classifier = "a linear classifier" if found.probe.startswith("linear") else f"a classifier ({found.name})"
    reaches = "is right on" if found.metric == ACCURACY else f"has a {found.metric} of"
    images = f"{count(evaluation.test_images)} test images{' of ' if evaluation.data else ''}{short(evaluation.data)}"
    text = f"On {images}, {classifier} on its features {reaches} {percent(found.value)}, on the untrained network’s "
    text += f"{percent(found.reference)} (difference {100 * found.difference:+.1f} points, 95 % interval "
    text += f"{100 * found.low:+.1f} to {100 * found.high:+.1f})."
    with suppress(KeyError):
        ours, theirs = (evaluation.find("few-shot", features=name) for name in ("backbone", UNTRAINED))
        few = f" With {ours.name.removeprefix('linear, ')}: {percent(ours.value)} and {percent(theirs.value)}."
        text += few if found.probe != "few-shot" else ""
    return text


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
    if run.last_step < MIN_BURN_IN:
        return Answer("Not known", "unknown", f"No alarm, but alarms of the spectrum begin at step {MIN_BURN_IN}.")
    return Answer("Yes", "good", "Finished without an alarm.")


def is_it_better(run: RunSummary) -> Answer:
    """Return the verdict of `fullrank evaluate` against the strongest alternative: raw pixels, the initial weights,
    other models.
    """
    if evaluation := _judged(run):
        found = [c for c in evaluation.comparisons if (c.probe == "finetune") != bool(evaluation.verdict)]
        # The first is of the newest verdict.
        rival = max((c for c in found if c.name == found[0].name), key=lambda rival: rival.reference)
        outcome, sentence = decide(rival), evaluation.verdict
        if rival.against == UNTRAINED and outcome != "not significant":  # the first answer has its numbers
            sentence = "The strongest alternative is the untrained network."
        finetuned = evaluation.finetuned and f"After fine-tuning: {evaluation.finetuned}"
        data = f"Test images: {short(evaluation.data)}." if evaluation.data and len(run.evaluations) > 1 else ""
        return Answer(*OUTCOMES[outcome], _join(sentence, finetuned, data, _older(run, evaluation)))
    stored = "The stored scores were not compared with another network or with raw pixels." if run.evaluations else ""
    return Answer("Not known", "unknown", _join(stored, _remedy(run)))


def _judged(run: RunSummary) -> Evaluation | None:
    """Return the most relevant evaluation with a verdict."""
    found = (each for each in run.evaluations_by_relevance() if each.comparisons and (each.verdict or each.finetuned))
    return next(found, None)


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
    """Return a sentence for the images of each evaluation, an older checkpoint, a verdict that no answer has, and what
    was left out.
    """
    found = []
    for evaluation in run.evaluations:
        images = f"{count(evaluation.train_images)} train and {count(evaluation.test_images)} test images."
        data = f"{short(evaluation.data)}: " if evaluation.data else ""
        verdict = evaluation.verdict if evaluation is not _judged(run) else ""
        sentences = filter(None, (images, _older(run, evaluation), verdict, *evaluation.notes))
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
        text = f"The loss on held-out images {'fell' if fell else 'did not fall'}: {losses[0]:.4g} → {losses[-1]:.4g}."
        signs[text] = fell
    probed = [row for row in run.spectrum if row.probe_accuracy is not None][-1:]
    for accuracy, majority, n in ((row.probe_accuracy, row.probe_majority, row.probe_images) for row in probed):
        if accuracy is not None and majority is not None and n:
            text = (
                f"A linear classifier that was trained beside it is right on {percent(accuracy)} of {count(n)} images; "
            )
            text += f"guessing the most frequent class, on {percent(majority)}."
            signs[text] = accuracy > majority + 2 * standard_error(majority, images=n)
    linear = [row for row in run.online if row.probe == "linear" and row.images == run.online[-1].images]
    if len(linear) > 1 and not linear[0].step:
        first, last = linear[0], linear[-1]
        error = standard_error(first.accuracy, last.accuracy, images=last.images)
        text = f"A linear probe on {count(last.images)} labelled test images: {percent(first.accuracy)} before the "
        signs[f"{text}first step, {percent(last.accuracy)} at the end."] = last.accuracy > first.accuracy + 2 * error
    return signs


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


def _older(run: RunSummary, evaluation: Evaluation) -> str:
    if evaluation.step is None or not run.train or evaluation.step == run.train[-1].step:
        return ""
    return f"These scores are of the checkpoint of step {count(evaluation.step)}, not of the last step."


def _remedy(run: RunSummary) -> str:
    """Return the command that answers the question; a run without an online probe has no labels of its own."""
    if run.last("probe_accuracy") is not None and run.data:
        return f"Run fullrank evaluate {run.folder} to know."
    if run.environment.get("monitored"):  # a loop of the user's, which saves its checkpoints elsewhere
        return "Save the backbone, and run fullrank evaluate file:WEIGHTS --backbone.name NAME --data SOURCE to know."
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
