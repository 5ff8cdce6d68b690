"""The text about a run: its verdict, its facts and its notes; and number formatting."""

from dataclasses import dataclass
from math import isfinite
from typing import Any

from fullrank.monitoring.alarm_messages import alarm_message
from fullrank.report.recipe_differences import describe_projector
from fullrank.report.run_summary import RunSummary, look_up, series
from fullrank.run.spectrum_history import LOCATIONS

NOT_RECORDED = "not recorded"
NOT_MEASURED = "not measured"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Whether a run is healthy."""

    level: str
    """`good`, `warning`, `failed` or `unknown`."""
    text: str


def judge_run(run: RunSummary) -> Verdict:
    """Return the verdict on a run from its log: first whether the loss is finite, then the alarms, then the last spectrum."""
    if not run.train and not run.spectrum:
        return Verdict(level="unknown", text="There is no log, so the run cannot be judged.")
    steps, losses = series(run.train, lambda row: row.loss)
    if losses and losses[-1] is None:
        return Verdict(level="failed", text=f"Failed: the loss is not finite at step {format_count(steps[-1])}, the last logged step.")
    ranks, collapsed = _rank_sentence(run), _collapsed_sentence(run)
    if run.alarms:
        last, n = run.alarms[-1], len(run.alarms)
        if last.alarm == "not finite" and not (steps and steps[-1] > last.step):  # the run ended there
            return Verdict(level="failed", text=f"Failed at step {format_count(last.step)}: {alarm_message(last)}.")
        count = f"{n} alarms were raised, the last" if n > 1 else "An alarm was raised"
        sentence = f"{count} at step {format_count(last.step)}: {alarm_message(last)}."
        return Verdict(level="warning", text=" ".join(filter(None, (sentence, collapsed, ranks))))
    if collapsed:
        return Verdict(level="warning", text=f"No alarm was raised, but dimensions have collapsed. {collapsed}")
    if not ranks:
        return Verdict(level="unknown", text="No alarm was raised, but the run has no spectrum.")
    return Verdict(level="good", text=f"No alarm was raised. {ranks}")


def run_facts(run: RunSummary) -> dict[str, str]:
    """Return what was trained, on which data, and for how long."""
    return {
        "objective": str(look_up(run.recipe, "objective") or NOT_RECORDED),
        "backbone": _backbone(run),
        "projector": describe_projector(run.recipe) or NOT_RECORDED,
        "data": str(look_up(run.recipe, "data", "source") or NOT_RECORDED),
        "training": f"{format_count(run.train[-1].step)} steps, {run.train[-1].epoch:.4g} epochs" if run.train else NOT_RECORDED,
        "duration": format_duration(run.environment.get("duration_seconds")),
    }


def last_measurements(run: RunSummary) -> dict[str, str]:
    """Return the last online accuracy and the last effective ranks."""
    ranks = {f"effective rank, {location}": last_effective_rank(run, location) or NOT_RECORDED for location in LOCATIONS}
    return {"online accuracy": last_accuracy(run)} | ranks


def last_accuracy(run: RunSummary) -> str:
    """Return the last accuracy of the online probe on held-out images."""
    _, values = series(run.spectrum, lambda row: row.probe_accuracy)
    return format_percent(values[-1]) if values and values[-1] is not None else NOT_MEASURED


def last_effective_rank(run: RunSummary, location: str) -> str:
    """Return the last effective rank, for example `45.2 of 512`; empty if there is none."""
    metrics = run.logged_metrics(location)
    return f"{metrics.effective_rank:.1f} of {format_count(metrics.dimensions)}" if metrics and isfinite(metrics.effective_rank) else ""


def list_notes(run: RunSummary) -> list[str]:
    """Return one sentence for everything that is missing, damaged, or measured on too few images."""
    notes = list(run.file_notes)
    if run.train and not any(value is not None for value in series(run.spectrum, lambda row: row.probe_accuracy)[1]):
        notes.append("There is no online accuracy: the online probe needs labels.")
    not_finite = [step for step, value in zip(*series(run.train, lambda row: row.loss), strict=True) if value is None]
    if not_finite:
        steps = f"{len(not_finite)} logged steps, first at step" if len(not_finite) > 1 else "logged step"
        notes.append(f"The loss is not finite at {steps} {format_count(not_finite[0])}; the curves have gaps there.")
    epochs = look_up(run.recipe, "epochs")
    if run.train and epochs is not None and epochs - run.train[-1].epoch >= 1:
        notes.append(f"The log ends in epoch {run.train[-1].epoch:.4g} of {epochs}: the run was stopped or is still running.")
    if sizes := [size for location in LOCATIONS if (size := _small_sample(run, location))]:
        notes.append(f"The spectrum was measured on {' and '.join(sizes)}: with fewer than ten images per dimension, the effective rank "
                     "is too small.")  # fmt: skip
    if run.decode_errors:
        notes.append(f"{format_count(run.decode_errors)} files could not be read as images and were skipped; see decode_errors.jsonl.")
    return notes


def _rank_sentence(run: RunSummary) -> str:
    """Return the effective ranks of the last spectrum in a sentence; empty if there is none."""
    ranks = [f"{rank} dimensions ({location})" for location in LOCATIONS if (rank := last_effective_rank(run, location))]
    return f"The last effective rank is {' and '.join(ranks)}." if ranks else ""


def _collapsed_sentence(run: RunSummary) -> str:
    """Return the collapsed dimensions of the last spectrum in a sentence; empty without any, or with too few images to detect them."""
    found = [
        f"{format_count(metrics.collapsed_dimensions)} dimensions of the {location}"
        for location in LOCATIONS
        if (metrics := run.logged_metrics(location)) and metrics.collapsed_dimensions and not _small_sample(run, location)
    ]
    return f"In the last spectrum, {' and '.join(found)} have collapsed." if found else ""


def _small_sample(run: RunSummary, location: str) -> str:
    """Return the number of images of the last spectrum if there are fewer than ten per dimension; otherwise an empty text."""
    metrics = run.logged_metrics(location)
    if metrics is None or metrics.samples >= 10 * metrics.dimensions:
        return ""
    return f"{format_count(metrics.samples)} images for the {format_count(metrics.dimensions)} dimensions of the {location}"


def _backbone(run: RunSummary) -> str:
    config: Any = look_up(run.recipe, "backbone")
    if not isinstance(config, dict):
        return str(config or NOT_RECORDED)
    arguments = ", ".join(f"{key}={value}" for key, value in (config.get("arguments") or {}).items())
    return f"{config.get('name', NOT_RECORDED)}" + (f" ({arguments})" if arguments else "")


def format_count(n: int | float) -> str:
    """Return an integer with thin spaces between its thousands.

    >>> format_count(1234567).split("\N{NARROW NO-BREAK SPACE}")
    ['1', '234', '567']
    """
    return f"{n:,.0f}".replace(",", "\N{NARROW NO-BREAK SPACE}")


def format_percent(fraction: int | float) -> str:
    """Return a fraction in percent.

    >>> format_percent(0.9123).split()
    ['91.2', '%']
    """
    return f"{100 * fraction:.1f}\N{NO-BREAK SPACE}%"


def format_duration(seconds: int | float | None) -> str:
    """Return a duration in its two largest units.

    >>> format_duration(7384), format_duration(42.3), format_duration(100_000), format_duration(None)
    ('2 h 3 min', '42 s', '1 d 3 h', 'not recorded')
    """
    if not isinstance(seconds, int | float) or not isfinite(seconds):
        return NOT_RECORDED
    days, hours, minutes, rest = (int(seconds // 86400), int(seconds // 3600 % 24), int(seconds // 60 % 60), int(seconds % 60))
    parts = [f"{value} {unit}" for value, unit in zip((days, hours, minutes, rest), ("d", "h", "min", "s"), strict=True)]
    first = next((k for k, value in enumerate((days, hours, minutes, rest)) if value), 3)
    return " ".join(parts[first : first + 2])
