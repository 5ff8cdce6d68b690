"""The measures at the end of a run: what each one means, whether higher is better, and between which runs it can be
compared.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Literal

from fullrank.report.number_format import format_count, format_percent
from fullrank.report.run_summary import RunSummary, series
from fullrank.run.spectrum_history import LOCATIONS

STILL_IMPROVING = 0.01
"""Minimum share of the whole decrease of the held-out loss that the last quarter of a run makes if the run still
improves at its end. `docs/report.md` shows what runs above this share gained when they were trained twice as long."""
MIN_EVALUATIONS = 8
"""Minimum number of held-out losses for a statement about the last quarter of a run."""
SIGNS = {"higher": "↑", "lower": "↓", "none": ""}
"""The sign after the name of a measure, by what is better."""


@dataclass(frozen=True, kw_only=True)
class Measure:
    """A number that a run logs at its end."""

    name: str
    better: Literal["higher", "lower", "none"]
    value: Callable[[RunSummary], str]
    """The last value as text; empty if the run has none."""
    detail: Callable[[RunSummary], str] = lambda run: ""
    """What the value rests on; may be empty."""
    meaning: str
    same: tuple[str, ...] = ()
    """Entries of the recipe that two runs must have in common to be compared by this measure."""

    @property
    def head(self) -> str:
        """The name with the sign of what is better."""
        return f"{self.name} {SIGNS[self.better]}".strip()


def view_agreement(run: RunSummary) -> float | None:
    """Return the last share of variance that the views of one image have in common."""
    return _last(run, "intraclass_correlation")


def held_out_loss(run: RunSummary) -> float | None:
    """Return the last loss on views of held-out images."""
    return _last(run, "held_out_loss")


def last_accuracy(run: RunSummary) -> float | None:
    """Return the last accuracy of the online probe on held-out images."""
    return _last(run, "probe_accuracy")


def accuracy_detail(run: RunSummary) -> str:
    """Return the number of images of the online accuracy and their most frequent class; empty for logs without these
    numbers.
    """
    rows = [row for row in run.spectrum if row.probe_accuracy is not None]
    if not rows or rows[-1].probe_images is None or rows[-1].probe_majority is None:
        return ""
    return f"{format_count(rows[-1].probe_images)} images, majority class {format_percent(rows[-1].probe_majority)}"


def last_score(run: RunSummary, probe: str) -> str:
    """Return the last accuracy of a probe on all test images; empty if it was not scored."""
    return format_percent(run.online[-1].accuracy) if run.online and run.online[-1].probe == probe else ""


def score_detail(run: RunSummary, probe: str) -> str:
    """Return the epoch of the last score on all test images, its number of images, and the top-5 accuracy or the score
    before the first step; empty if the probe was not scored.
    """
    if not last_score(run, probe):
        return ""
    row, first = run.online[-1], run.online[0]
    if not first.step and row.step:
        return f"epoch {row.epoch:g}, {format_count(row.images)} images, {format_percent(first.accuracy)} before the first step"
    top5 = "" if row.top5 is None else f", top 5 {format_percent(row.top5)}"
    return f"epoch {row.epoch:g}, {format_count(row.images)} images{top5}"


def last_effective_rank(run: RunSummary, location: str) -> str:
    """Return the last effective rank, for example `45.2 of 512`; empty if there is none."""
    metrics = run.logged_metrics(location)
    return (
        f"{metrics.effective_rank:.1f} of {format_count(metrics.dimensions)}"
        if metrics and isfinite(metrics.effective_rank)
        else ""
    )


def last_quarter_share(run: RunSummary) -> float | None:
    """Return which share of its whole decrease the held-out loss made in the last quarter of the run; None if it did
    not decrease.

    The whole decrease is from the largest to the last value. The share is negative if the loss rose in the last
    quarter.
    """
    steps, losses = series(run.spectrum, lambda row: row.held_out_loss)
    finite = [loss for loss in losses if loss is not None]
    if len(finite) < max(len(losses), MIN_EVALUATIONS) or max(finite) <= finite[-1]:
        return None
    before = next(loss for step, loss in zip(steps, finite, strict=True) if step >= 0.75 * steps[-1])
    return (before - finite[-1]) / (max(finite) - finite[-1])


def still_improving(run: RunSummary) -> bool:
    """Return whether the held-out loss still decreased in the last quarter of the run."""
    return (last_quarter_share(run) or 0.0) >= STILL_IMPROVING


TEST_IMAGES = ("data.source", "data.reading.train", "data.reading.test", "data.validation")
"""Entries of the recipe that decide the test images."""
MEASURES = (
    Measure(
        name="agreement of the views",
        better="higher",
        value=lambda run: "" if (value := view_agreement(run)) is None else format_percent(value),
        meaning="share of the variance of the representations that is between images, not between views of one image (last training batch)",
        same=("data.source", "data.reading.train", "views", "custom_transforms"),
    ),
    Measure(
        name="held-out loss",
        better="lower",
        value=lambda run: "" if (value := held_out_loss(run)) is None else f"{value:.4g}",
        meaning="the objective on views of held-out images",
        same=(
            *(*TEST_IMAGES, "views", "custom_transforms"),
            *("objective", "hyper", "method", "method_builder", "batch_size", "projector"),
        ),
    ),
    Measure(
        name="online accuracy",
        better="higher",
        value=lambda run: "" if (value := last_accuracy(run)) is None else format_percent(value),
        detail=accuracy_detail,
        meaning="a linear classifier that is trained at the same time; needs labels",
        same=TEST_IMAGES,
    ),
    Measure(
        name="online accuracy, all test images",
        better="higher",
        value=lambda run: last_score(run, "online"),
        detail=lambda run: score_detail(run, "online"),
        meaning="the same classifier on the whole test split, after an epoch of --probe.epochs",
        same=TEST_IMAGES,
    ),
    Measure(
        name="linear probe during training",
        better="higher",
        value=lambda run: last_score(run, "linear"),
        detail=lambda run: score_detail(run, "linear"),
        meaning="a linear probe on the frozen features of the images of --labelled",
        same=("probe.labelled",),
    ),
    *(
        Measure(
            name=f"effective rank, {location}",
            better="none",
            value=lambda run, location=location: last_effective_rank(run, location),
            meaning="number of directions in use; it finds collapse, but a higher rank does not mean better features",
        )
        for location in LOCATIONS
    ),
)


def differing_conditions(measure: Measure, runs: Sequence[RunSummary]) -> list[str]:
    """Return the entries of `measure.same` in which the recipes of runs with a value differ; empty if the runs can be
    compared.
    """
    measured = [run for run in runs if measure.value(run)]
    return [entry for entry in measure.same if len({_entry(run, entry) for run in measured}) > 1]


def _entry(run: RunSummary, entry: str) -> str:
    tree = run.recipe
    for key in entry.split("."):
        tree = tree.get(key) if isinstance(tree, dict) else None
    return json.dumps(tree or None, sort_keys=True)  # an older recipe lacks an entry whose default is 0, "" or none


def _last(run: RunSummary, field: str) -> float | None:
    """Return the last value of a field of the spectrum rows; None without a value, or if the last one is not finite."""
    _, values = series(run.spectrum, lambda row: getattr(row, field))
    return values[-1] if values else None
