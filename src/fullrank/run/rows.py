"""The rows of a run's log: `metrics.jsonl` has one JSON object for each, with its kind: "train", "spectrum", "online"
or "alarm". Fields that are None are not written.
"""

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any, ClassVar, Literal

import numpy as np

from fullrank.config import Count, Share, config, from_json
from fullrank.errors import UserError
from fullrank.spectrum import METRICS, Spectrum


@config
class TrainRow:
    """One logged training step.

    Attributes:
        terms: The objective's weighted terms, which sum to the loss.
        probe_loss: Loss of the online probe; None if no image of the batch has a label.
        effective_rank: Effective rank of the embeddings of this batch's first view; None if this step does not measure
            it.
        max_rank: The upper bound of `effective_rank`, min(N − 1, D).
        leading_eigenvalues: The largest eigenvalues of the same embeddings.
        relative_variance: Share of the mean square of this batch's "backbone" and "projector" outputs that is variance
            within a view: 0 if all images of each view have the same output.
    """

    kind: ClassVar[str] = "train"
    step: Count
    epoch: float
    loss: float
    terms: dict[str, float]
    lr: float | None = None
    images_per_second: float | None = None
    probe_loss: float | None = None
    probe_train_accuracy: float | None = None
    effective_rank: float | None = None
    max_rank: Count | None = None
    leading_eigenvalues: tuple[float, ...] | None = None
    relative_variance: dict[str, float] | None = None


@config
class SpectrumMetrics:
    """The metrics of one spectrum in the log; fields that are keys of `fullrank.spectrum.METRICS` are computed by that
    table.

    Attributes:
        condition_number: None if the condition number is infinite.
        relative_variance: Share of the mean square Σ‖z‖²/n that is variance: 0 if all embeddings are equal; None if the
            mean is unknown.
    """

    effective_rank: float
    condition_number: float | None
    entropy: float
    collapsed_dimensions: Count
    dimensions: Count
    samples: Count
    relative_variance: float | None = None

    @classmethod
    def from_spectrum(cls, spectrum: Spectrum) -> "SpectrumMetrics":
        """Compute the metrics of a spectrum."""
        values: dict[str, Any] = {f.name: METRICS[f.name].function(spectrum) for f in fields(cls) if f.name in METRICS}
        finite: dict[str, Any] = {name: value if np.isfinite(value) else None for name, value in values.items()}
        return cls(**finite, dimensions=spectrum.D, samples=spectrum.n, relative_variance=spectrum.relative_variance())


@config
class SpectrumRow:
    """One spectrum evaluation on held-out images.

    Attributes:
        intraclass_correlation: Intraclass correlation of the representations of the last batch; None before the first
            step.
        probe_accuracy: Accuracy of the online probe on the held-out images; None without labels.
        probe_images: Number of held-out images with a label, which `probe_accuracy` rests on.
        probe_majority: Share of the most frequent class among these images: the accuracy of always predicting this
            class.
        held_out_loss: Loss in eval mode on views of held-out images, the same views at every evaluation; None before
            the first step.
        image_deviation: Standard deviation of the pixels of these views over the images; 0 if all images give the same
            view.
        pixel_deviation: Standard deviation over the pixels of a view; 0 if each view has a single colour.
        full: Of the first and the last evaluation: the metrics of "backbone" and "projector" on ten images per
            dimension or all there are, if `backbone` and `projector` rest on fewer. Held-out images come first, then
            training images without augmentation.
        full_train_images: Number of training images among those of `full`.
    """

    kind: ClassVar[str] = "spectrum"
    step: Count
    epoch: float
    backbone: SpectrumMetrics
    projector: SpectrumMetrics
    intraclass_correlation: float | None = None
    probe_accuracy: float | None = None
    probe_images: Count | None = None
    probe_majority: float | None = None
    held_out_loss: float | None = None
    image_deviation: float | None = None
    pixel_deviation: float | None = None
    full: dict[str, SpectrumMetrics] | None = None
    full_train_images: Count | None = None

    def full_metrics(self, location: str) -> SpectrumMetrics:
        """Return the metrics of "backbone" or "projector" on the most images that were measured."""
        return (self.full or {}).get(location) or getattr(self, location)


@config
class OnlineRow:
    """The score of the online probe on all test images, after an epoch of `probe.epochs`, or of a linear probe on
    `probe.labelled`.

    Attributes:
        accuracy: Share of the labelled test images whose class is the largest logit.
        top5: Share of these images whose class is among the five largest logits; None with at most ten classes.
        images: Number of labelled test images.
        probe: online: the classifier that is trained along with the backbone. linear: a linear probe on the labelled
            images of `probe.labelled`.
    """

    kind: ClassVar[str] = "online"
    step: Count
    epoch: float
    accuracy: Share
    top5: Share | None = None
    images: Count
    probe: Literal["online", "linear"] = "online"


@config
class AlarmRow:
    """One alarm of the collapse detector.

    Attributes:
        alarm: 'divergence', 'complete collapse', 'dimensional collapse', 'uncorrelated views', 'equal views', 'constant
            views' or 'not finite'.
        where: 'loss', 'weights', 'embeddings', 'views', 'backbone' or 'projector'.
        metric: The observed quantity: 'loss', 'relative_variance', 'batch_variance', 'effective_rank',
            'collapsed_share', 'intraclass_correlation', 'image_deviation' or 'pixel_deviation'.
        cause: The name of the probable cause, such as 'missing term', 'augmentation' or 'large steps'.
        message: The observation and the probable cause, in one line.
        remedy: The flags to change, with their current values.
    """

    kind: ClassVar[str] = "alarm"
    step: Count
    epoch: float
    alarm: str
    where: str
    metric: str
    observed: float | None = None
    threshold: float | None = None
    cause: str
    message: str
    remedy: str


Row = TrainRow | SpectrumRow | OnlineRow | AlarmRow
KINDS: dict[str, type[Row]] = {row.kind: row for row in (TrainRow, SpectrumRow, OnlineRow, AlarmRow)}


def row_to_json(row: Row) -> dict[str, Any]:
    """Return a row as a JSON object of metrics.jsonl.

    >>> row_to_json(OnlineRow(step=1, epoch=0.1, accuracy=0.5, images=8))["kind"]
    'online'
    """
    return {"kind": row.kind} | {name: value for name, value in asdict(row).items() if value is not None}


def row_from_json(value: Mapping[str, Any], *, source: str = "row") -> Row:
    """Build a row from an object of metrics.jsonl; `source` is its name in errors, such as file and line.

    Raises:
        UserError: the kind is unknown, or a field is missing, unknown or of the wrong type.

    >>> row_from_json({"kind": "test", "step": 1}, source="metrics.jsonl, line 1")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    fullrank.errors.UserError: metrics.jsonl, line 1: got a row of kind 'test', expected one of train, spectrum, ...
    """
    fields = dict(value)
    kind = fields.pop("kind", None)
    if not isinstance(kind, str) or kind not in KINDS:
        raise UserError(f"{source}: got a row of kind {kind!r}, expected one of {', '.join(KINDS)}")
    return from_json(KINDS[kind], fields, source)
