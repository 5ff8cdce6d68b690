"""The text about a run: its verdict, its facts and its notes."""

from dataclasses import dataclass
from typing import Any

from fullrank.report.measures import held_out_loss, last_quarter_share, still_improving, view_agreement
from fullrank.report.number_format import NOT_RECORDED, format_count, format_duration, format_percent
from fullrank.report.recipe_differences import describe_projector
from fullrank.report.run_summary import RunSummary, look_up, series
from fullrank.run.alarm_messages import alarm_message
from fullrank.run.spectrum_history import LOCATIONS


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Whether a run is healthy."""

    level: str
    """`good`, `unfinished`, `warning`, `failed` or `unknown`."""
    text: str


def judge_run(run: RunSummary) -> Verdict:
    """Return the verdict on a run from its log: whether it failed, whether it raised an alarm, whether it is finished.

    Only a finished run without alarm and without collapsed dimensions is good.
    """
    if not run.train and not run.spectrum:
        return Verdict(level="unknown", text="There is no log, so the run cannot be judged.")
    steps, losses = series(run.train, lambda row: row.loss)
    if losses and losses[-1] is None:
        return Verdict(
            level="failed",
            text=f"Failed: the loss is not finite at step {format_count(steps[-1])}, the last logged step.",
        )
    if run.alarms:
        last = run.alarms[-1]
        if last.alarm == "not finite" and not (steps and steps[-1] > last.step):  # the run ended there
            return Verdict(level="failed", text=f"Failed at step {format_count(last.step)}: {alarm_message(last)}.")
    collapsed, unfinished = _collapsed_sentence(run), unfinished_sentence(run)
    if run.alarms:
        n = len(run.alarms)
        count = f"{n} alarms were raised, the last" if n > 1 else "An alarm was raised"
        sentence = f"{count} at step {format_count(last.step)}: {alarm_message(last)}."
        return Verdict(level="warning", text=" ".join(filter(None, (sentence, unfinished, collapsed))))
    if collapsed:
        text = f"No alarm was raised, but dimensions have collapsed. {collapsed}"
        return Verdict(level="warning", text=" ".join(filter(None, (text, unfinished))))
    if unfinished:
        return Verdict(level="unfinished", text=f"{unfinished} No alarm was raised so far.")
    if not run.spectrum:
        return Verdict(level="unknown", text="No alarm was raised, but the run has no spectrum.")
    return Verdict(level="good", text="Finished without an alarm.")


def unfinished_sentence(run: RunSummary) -> str:
    """Return where the log of an unfinished run ends; empty if the run is finished or its length is unknown."""
    epochs = look_up(run.recipe, "epochs")
    rows = run.train or run.spectrum
    if not isinstance(epochs, int | float) or not rows or rows[-1].epoch >= epochs:
        return ""
    where = f"the log ends in epoch {rows[-1].epoch:.4g} of {epochs}"
    if run.last_checkpoint is not None and run.last_checkpoint > rows[-1].step:
        return f"Incomplete log: {where}, but there is a checkpoint of step {format_count(run.last_checkpoint)}."
    return (
        f"Unfinished: {where}; the run was interrupted or is still running (continue with fullrank pretrain --resume)."
    )


def measures_sentence(run: RunSummary) -> str:
    """Return the agreement of the views and the held-out loss at the end; empty if the log has neither."""
    agreement, loss = view_agreement(run), held_out_loss(run)
    parts = (
        [f"the views of one image share {format_percent(agreement)} of the variance"] if agreement is not None else []
    )
    parts += [f"the held-out loss is {loss:.4g}"] if loss is not None else []
    return f"At the end, {' and '.join(parts)}." if parts else ""


def improvement_sentence(run: RunSummary) -> str:
    """Return a sentence if a finished run still improved at its end; otherwise an empty text."""
    share = last_quarter_share(run)
    if share is None or unfinished_sentence(run) or not still_improving(run):
        return ""
    percent = f"{100 * share:.0f}\N{NO-BREAK SPACE}%"
    return f"Still improving at the end: the last quarter made {percent} of the decrease of the held-out loss, so more epochs may help."


def run_facts(run: RunSummary) -> dict[str, str]:
    """Return what was trained, on which data, and for how long."""
    return {
        "objective": str(look_up(run.recipe, "objective") or NOT_RECORDED),
        "backbone": _backbone(run),
        "projector": describe_projector(run.recipe) or NOT_RECORDED,
        "data": _data(run),
        "training": training_length(run),
        "duration": format_duration(run.environment.get("duration_seconds")),
    }


def _data(run: RunSummary) -> str:
    """Return the source of the images, with the size of the subset and the share for validation if the recipe has
    them.
    """
    source, subset, validation = (look_up(run.recipe, "data", name) for name in ("source", "subset", "validation"))
    parts = [str(source or NOT_RECORDED)]
    held_out = isinstance(validation, int | float) and validation > 0
    parts += [f"{100 * validation:g} % of the training images for validation"] if held_out else []
    parts += (
        [f"{format_count(subset)} of the {'others' if held_out else 'training images'}"]
        if isinstance(subset, int) and subset
        else []
    )
    return ", ".join(parts)


def training_length(run: RunSummary) -> str:
    """Return the steps and the epochs of the log, and how many epochs were planned if there were more."""
    if not run.train:
        return NOT_RECORDED
    planned = f" of {look_up(run.recipe, 'epochs')}" if unfinished_sentence(run) else ""
    return f"{format_count(run.train[-1].step)} steps, {run.train[-1].epoch:.4g}{planned} epochs"


def list_notes(run: RunSummary) -> list[str]:
    """Return one sentence for everything that is missing, damaged, or measured on too few images."""
    notes = list(run.file_notes)
    if (
        run.train
        and not run.online
        and not any(value is not None for value in series(run.spectrum, lambda row: row.probe_accuracy)[1])
    ):
        notes.append("There is no online accuracy: the online probe needs labels.")
    not_finite = [step for step, value in zip(*series(run.train, lambda row: row.loss), strict=True) if value is None]
    if not_finite:
        steps = f"{len(not_finite)} logged steps, first at step" if len(not_finite) > 1 else "logged step"
        notes.append(f"The loss is not finite at {steps} {format_count(not_finite[0])}; the curves have gaps there.")
    if sizes := [size for location in LOCATIONS if (size := _small_sample(run, location))]:
        notes.append(f"The spectrum was measured on {' and '.join(sizes)}: with fewer than ten images per dimension, the effective rank "
                     "is too small.")  # fmt: skip
    if len(counts := {row.backbone.samples for row in run.spectrum}) > 1:
        few, many = format_count(min(counts)), format_count(max(counts))
        notes.append(
            f"The spectra rest on {few} to {many} held-out images: ranks from different numbers of images are not comparable."
        )
    if run.decode_errors:
        notes.append(
            f"{format_count(run.decode_errors)} files could not be read as images and were skipped; see decode_errors.jsonl."
        )
    return notes


def _collapsed_sentence(run: RunSummary) -> str:
    """Return the collapsed dimensions of the last spectrum in a sentence; empty without any, or with too few images to
    detect them.
    """
    found = [
        f"{format_count(metrics.collapsed_dimensions)} dimensions of the {location}"
        for location in LOCATIONS
        if (metrics := run.logged_metrics(location))
        and metrics.collapsed_dimensions
        and not _small_sample(run, location)
    ]
    return f"In the last spectrum, {' and '.join(found)} have collapsed." if found else ""


def _small_sample(run: RunSummary, location: str) -> str:
    """Return the number of images of the last spectrum if there are fewer than ten per dimension; otherwise an empty
    text.
    """
    metrics = run.logged_metrics(location)
    if metrics is None or metrics.samples >= 10 * metrics.dimensions:
        return ""
    return f"{format_count(metrics.samples)} images for the {format_count(metrics.dimensions)} dimensions of the {location}"


def _backbone(run: RunSummary) -> str:
    config: Any = look_up(run.recipe, "backbone")
    if not isinstance(config, dict):
        return str(config or NOT_RECORDED)
    arguments = config.get("arguments")
    listed = ", ".join(f"{key}={value}" for key, value in arguments.items()) if isinstance(arguments, dict) else ""
    return f"{config.get('name', NOT_RECORDED)}" + (f" ({listed})" if listed else "")
