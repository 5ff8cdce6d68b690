"""Detect divergence, collapse, uncorrelated views and constant views in the log of a run, without labels.

`CollapseDetector` returns alarms as data (`AlarmRow`); `fullrank.run.alarm_messages` formats them. `docs/alarm.md`
lists the runs on which the thresholds were measured.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from fullrank.recipes import Recipe
from fullrank.run.rows import AlarmRow, Row, SpectrumMetrics, SpectrumRow, TrainRow

# Minimum; untrained networks start at 10⁻², and training increases the relative variance.
MIN_RELATIVE_VARIANCE = 1e-3
# Maximum relative variance of embeddings that are equal up to float32 rounding, (10⁻⁵)².
ROUNDING_VARIANCE = 1e-10
# Minimum standard deviation of the pixels of views; 1 is that of the data, and views of real images are above 0.1.
MIN_DEVIATION = 1e-3
# Minimum; with a lower effective rank, the embeddings are close to a line.
MIN_EFFECTIVE_RANK = 2.0
# Minimum share of the highest effective rank since the end of burn-in; healthy runs stay above 3/4.
MIN_RANK_SHARE = 1 / 2
# Maximum share of collapsed dimensions in a backbone; most healthy runs have no collapsed dimension.
MAX_COLLAPSED_SHARE = 1 / 6
# Minimum intraclass correlation; at 0.2, the augmentation causes four fifths of the variance.
MIN_VIEW_CORRELATION = 0.2
# Maximum ratio of the loss to Σ|terms| at the first logged step; healthy runs stay below a ratio of 2.
MAX_LOSS_RATIO = 10.0
# Minimum number of steps; after 50 steps the initial BatchNorm statistics have a weight of 0.9⁵⁰ = 0.5 %.
MIN_BURN_IN = 50
# Lower limit for D and for n/2; with fewer dimensions or images, even noise has an effective rank below 2.
MIN_DIMENSIONS = 4
# Minimum ratio of one term to all others at the first logged step; the others then have almost no gradient.
DOMINANT_RATIO = 100.0

Details = dict[str, Any]


@dataclass
class CollapseDetector:
    """Reads the rows of a log one by one, and raises each kind of alarm once per location.

    The state depends only on the rows so far, so a resumed run replays its log.

    Attributes:
        burn_in_end: The first step at which a spectrum can raise an alarm.
        recipe: The recipe as a JSON object; causes and remedies name its settings.
        first_row: The first row of training.
        no_projector: True as long as backbone and projector had identical metrics in every row. After a collapse they
            may be identical by chance, and a diagonal projector is the identity at step 0, so one row is not enough to
            decide.
        highest_rank: The highest effective rank of each location since the end of burn-in.
        varied: Whether embeddings differed between images in any row so far.
        raised: Kind and location of each alarm so far.
    """

    burn_in_end: int
    recipe: Mapping[str, Any] = field(default_factory=dict)
    first_row: TrainRow | None = None
    no_projector: bool = True
    highest_rank: dict[str, float] = field(default_factory=dict)
    varied: bool = False
    raised: set[tuple[str, str]] = field(default_factory=set)

    def update(self, row: Row) -> list[AlarmRow]:
        """Return the alarms that this row raises for the first time."""
        new = []
        for alarm in self.evaluate(row):
            if (alarm.alarm, alarm.where) not in self.raised:
                self.raised.add((alarm.alarm, alarm.where))
                new.append(alarm)
        return new

    def evaluate(self, row: Row) -> Iterator[AlarmRow]:
        """Yield the alarms of a row, also those that were raised before."""
        if isinstance(row, TrainRow):
            self.first_row = self.first_row or row
            yield from self.evaluate_loss(row, self.first_row)
            yield from self.evaluate_variance(row, row.relative_variance or {}, "training images")
        elif isinstance(row, SpectrumRow):
            self.no_projector &= row.backbone == row.projector
            yield from self.evaluate_views(row)
            if row.step >= self.burn_in_end:
                yield from self.evaluate_spectra(row)
            parts = {"backbone": row.backbone, "projector": row.projector}
            enough = {where: part for where, part in parts.items() if part.samples >= 2 * MIN_DIMENSIONS}
            variance = {where: part.relative_variance for where, part in enough.items()}
            yield from self.evaluate_variance(row, variance, "held-out images")

    def evaluate_loss(self, row: TrainRow, first: TrainRow) -> Iterator[AlarmRow]:
        """Yield an alarm if the loss exceeds 10 Σ|terms| of the first row; a sum below 1 counts as 1."""
        threshold = MAX_LOSS_RATIO * max(sum(map(abs, first.terms.values())), 1.0)
        if row.loss > threshold:
            found = _finding("divergence", "loss", row.loss, threshold, first_loss=first.loss)
            yield _alarm(row, "loss", found, "large steps", self.step_settings())

    def evaluate_views(self, row: SpectrumRow) -> Iterator[AlarmRow]:
        """Yield an alarm if the views of all images are equal, or if each view has a single colour; also during
        burn-in.
        """
        for metric, deviation in (("image_deviation", row.image_deviation), ("pixel_deviation", row.pixel_deviation)):
            if deviation is not None and deviation < MIN_DEVIATION:
                yield _alarm(row, "views", _finding("constant views", metric, deviation, MIN_DEVIATION), "views")
                return

    def evaluate_variance(
        self, row: TrainRow | SpectrumRow, variance: Mapping[str, float | None], images: str
    ) -> Iterator[AlarmRow]:
        """Yield an alarm if all images have the same representation or the same embedding; whatever the loss, also
        during burn-in.
        """
        equal = {where: x for where, x in variance.items() if x is not None and x <= ROUNDING_VARIANCE}
        if not equal:
            self.varied |= bool(variance)
            return
        if ("constant views", "views") in self.raised:
            cause = "views", {}
        else:
            cause = self.find_cause(uncorrelated=False) if self.varied else ("network", {})
        where, value = next(iter(equal.items()))  # if all representations are equal, so are all embeddings
        yield _alarm(
            row, where, _finding("complete collapse", "batch_variance", value, ROUNDING_VARIANCE, images=images), *cause
        )

    def evaluate_spectra(self, row: SpectrumRow) -> Iterator[AlarmRow]:
        """Yield the most severe collapse of each location, and an alarm if the views are uncorrelated."""
        correlation = 1.0 if row.intraclass_correlation is None else row.intraclass_correlation
        uncorrelated = correlation < MIN_VIEW_CORRELATION
        cause = self.find_cause(uncorrelated=uncorrelated)
        for where, metrics in (("backbone", row.backbone), ("projector", row.projector))[: 2 - self.no_projector]:
            self.highest_rank[where] = max(self.highest_rank.get(where, 0.0), metrics.effective_rank)
            if found := find_collapse(metrics, where, highest_rank=self.highest_rank[where]):
                yield _alarm(row, where, found, *cause)
        if uncorrelated:
            found = _finding("uncorrelated views", "intraclass_correlation", correlation, MIN_VIEW_CORRELATION)
            yield _alarm(row, "backbone", found, *cause)

    def find_cause(self, *, uncorrelated: bool) -> tuple[str, Details]:
        """Return the probable cause and its details. The cause is the first of this list that applies:

        - "missing term": a term is 0 at the first logged step, and its hyperparameter is 0 or absent;
        - "dominant term": a term is more than 100 times the sum of all others;
        - "no projector": the views are uncorrelated, the loss has not diverged, and there is no projector;
        - "augmentation": the same with a projector;
        - "large steps": in all other cases; the details say if there is no projector.
        """
        terms, hyper = self.first_row.terms if self.first_row else {}, dict(self.recipe.get("hyper", {}))
        # A hinge, such as VICReg's variance term, can be 0 in a healthy run; then its hyperparameter is not 0.
        missing = [name for name, value in terms.items() if value == 0 and not hyper.get(name)]
        if missing and len(missing) < len(terms):
            return "missing term", {"terms": missing, "hyper": hyper}
        if dominant := dominant_term(terms):
            name, ratio = dominant
            return "dominant term", {"terms": [name], "ratio": ratio, "hyper": hyper}
        if uncorrelated and ("divergence", "loss") not in self.raised:
            return ("no projector" if self.no_projector else "augmentation"), {}
        return "large steps", self.step_settings() | ({"no_projector": True} if self.no_projector else {})

    def step_settings(self) -> Details:
        """Return the learning rate and the EMA momentum, if the recipe has these settings."""
        lr, momentum = self.recipe.get("optimizer", {}).get("lr"), self.recipe.get("method", {}).get("momentum")
        return {name: value for name, value in (("lr", lr), ("momentum", momentum)) if value is not None}


def _finding(alarm: str, metric: str, observed: float, threshold: float, **details: Any) -> Details:
    """Return the fields of an alarm for a metric beyond its threshold."""
    return {"alarm": alarm, "metric": metric, "observed": observed, "threshold": threshold, "details": details}


def _alarm(
    row: TrainRow | SpectrumRow, where: str, found: Details, cause: str, settings: Details | None = None
) -> AlarmRow:
    fields = found | {"details": found["details"] | (settings or {})}
    return AlarmRow(step=row.step, epoch=row.epoch, where=where, cause=cause, **fields)


def not_finite_alarm(
    step: int, epoch: float, where: str, recipe: Recipe, *, precision: str, **details: str
) -> AlarmRow:
    """Return the alarm for NaN or infinite values, which end a run.

    Args:
        step: the step at which the values were found.
        epoch: the number of epochs at this step.
        where: "loss", "weights" or "embeddings".
        recipe: the recipe of the run.
        precision: the precision of the run, e.g. "bf16-mixed".
        details: `term` and `value` for a loss, `tensor` for weights, `images` for embeddings.
    """
    # Before the first step has changed the weights, the learning rate cannot be the cause.
    first = step == 0 or (step == 1 and where == "loss")
    cause = "objective or views" if first else "large steps"
    settings: Details = {"lr": recipe.optimizer.lr, "warmup": recipe.schedule.warmup, "precision": precision}
    settings |= {"objective": recipe.objective, **details}
    return AlarmRow(
        step=step, epoch=epoch, alarm="not finite", where=where, metric=where, cause=cause, details=settings
    )


def detect_collapse(
    rows: Iterable[Row], *, burn_in_end: int, recipe: Mapping[str, Any] | None = None
) -> list[AlarmRow]:
    """Return the alarms that a log raises, in order.

    Args:
        rows: the rows of metrics.jsonl.
        burn_in_end: the first step at which a spectrum can raise an alarm.
        recipe: the recipe as a JSON object.

    >>> numbers = dict(collapsed_dimensions=0, dimensions=8, samples=80, condition_number=9.0, entropy=1.0)
    >>> low, high = (SpectrumMetrics(effective_rank=rank, **numbers) for rank in (1.1, 6.0))
    >>> rows = [SpectrumRow(step=step, epoch=step / 10, backbone=low, projector=high) for step in (0, 10, 20, 30)]
    >>> [(alarm.step, alarm.alarm, alarm.metric, alarm.observed) for alarm in detect_collapse(rows, burn_in_end=20)]
    [(20, 'dimensional collapse', 'effective_rank', 1.1)]
    """
    detector = CollapseDetector(burn_in_end, recipe or {})
    return [alarm for row in rows for alarm in detector.update(row)]


def compute_burn_in_end(*, steps: int, warmup: int) -> int:
    """Return the first step at which a spectrum can raise an alarm.

    Burn-in lasts three times the learning-rate warmup, limited to between 1/20 and 1/4 of the run, and at least 50
    steps. Effective ranks
    decrease steeply during warmup and recover afterwards: in all 57 healthy runs of `docs/alarm.md` the decrease ends
    within two warmups.

    Args:
        steps: number of steps of the run.
        warmup: number of steps of the learning-rate warmup.

    >>> [compute_burn_in_end(steps=steps, warmup=warmup) for steps, warmup in ((220, 22), (10_000, 500), (10_000, 0))]
    [55, 1500, 500]
    """
    return max(min(max(3 * warmup, math.ceil(steps / 20)), math.ceil(steps / 4)), MIN_BURN_IN)


def find_collapse(metrics: SpectrumMetrics, where: str, *, highest_rank: float = 0.0) -> Details | None:
    """Return the most severe collapse of one spectrum, or None.

    Args:
        metrics: the metrics of the spectrum; the relative variance may be None.
        where: "backbone" or "projector"; collapsed dimensions of a projector raise no alarm, because healthy runs have
            them too.
        highest_rank: the highest effective rank since the end of burn-in.

    >>> numbers = dict(dimensions=128, samples=1280, condition_number=None, entropy=3.0)
    >>> find_collapse(SpectrumMetrics(effective_rank=30.0, collapsed_dimensions=64, **numbers), "backbone")["observed"]
    0.5
    """
    n, D, details = metrics.samples, metrics.dimensions, {"samples": metrics.samples, "dimensions": metrics.dimensions}
    if n < 2 * MIN_DIMENSIONS:
        return None
    rank, highest = (
        metrics.effective_rank if D >= MIN_DIMENSIONS else None,
        {"highest": highest_rank, "share": MIN_RANK_SHARE},
    )
    for alarm, metric, value, least, more in (
        ("complete collapse", "relative_variance", metrics.relative_variance, MIN_RELATIVE_VARIANCE, {}),
        ("dimensional collapse", "effective_rank", rank, MIN_EFFECTIVE_RANK, {}),
        ("dimensional collapse", "effective_rank", rank, MIN_RANK_SHARE * highest_rank, highest),
    ):
        if value is not None and value < least:
            return _finding(alarm, metric, value, least, **details, **more)
    share = collapsed_share(metrics.collapsed_dimensions, D, n)
    if where == "backbone" and share > MAX_COLLAPSED_SHARE:
        return _finding("dimensional collapse", "collapsed_share", share, MAX_COLLAPSED_SHARE, **details)
    return None


def collapsed_share(collapsed: int, D: int, n: int) -> float:
    """Return the share of the first m = min(D, n/2) eigenvalues that are collapsed; collapsed eigenvalues after the
    m-th do not count.

    For Gaussian embeddings with D = n/2 equal eigenvalues, the smallest estimated eigenvalue is (1 − √(D/n))² = 0.09 of
    the true value (Marchenko and Pastur 1967); for D → n the estimate goes to zero, although no dimension is collapsed.

    Args:
        collapsed: number of collapsed dimensions among the first min(D, n − 1).
        D: number of dimensions.
        n: number of images.

    >>> collapsed_share(2, 8, 80), collapsed_share(30, 100, 101), collapsed_share(75, 100, 101)
    (0.25, 0.0, 0.5)
    """
    resolved = min(D, n // 2)
    return max(1 - (min(D, n - 1) - collapsed) / resolved, 0.0) if resolved else 0.0


def dominant_term(terms: Mapping[str, float]) -> tuple[str, float] | None:
    """Return the term that is more than 100 times the sum of all others, with this ratio, or None.

    >>> dominant_term({"variance": 20.0, "invariance": -4000.0})
    ('invariance', 200.0)
    """
    *rest, (largest, name) = sorted((abs(value), name) for name, value in terms.items()) or [(0.0, "")]
    others = sum(value for value, _ in rest)
    return (name, largest / others) if others > 0 and largest > DOMINANT_RATIO * others else None
