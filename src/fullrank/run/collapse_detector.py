"""Detect divergence, collapse, and uncorrelated, equal or constant views in the log of a run, without labels, and say
what probably caused them.

`docs/alarm.md` lists the runs on which the thresholds were measured.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from fullrank.run.rows import AlarmRow, Row, SpectrumMetrics, SpectrumRow, TrainRow

# Minimum; untrained networks start at 10⁻², and training increases the relative variance.
MIN_RELATIVE_VARIANCE = 1e-3
# Maximum relative variance of embeddings that are equal up to float32 rounding, (10⁻⁵)².
ROUNDING_VARIANCE = 1e-10
# Minimum standard deviation of the pixels of views; 1 is that of the data, and views of real images are above 0.1.
MIN_DEVIATION = 1e-3
# Minimum; with a lower effective rank, the embeddings are close to a line.
MIN_EFFECTIVE_RANK = 2.0
# Minimum share of the highest effective rank since the end of burn-in; the 56 healthy runs stay above 4/5.
MIN_RANK_SHARE = 1 / 2
# Maximum share of collapsed dimensions in a backbone; 55 healthy runs have none, one has 9 % at its end.
MAX_COLLAPSED_SHARE = 1 / 6
# Minimum intraclass correlation; at 0.2, the augmentation causes four fifths of the variance.
MIN_VIEW_CORRELATION = 0.2
# Maximum intraclass correlation; equal views have 1 up to rounding in float64, and all augmented ones less than 0.95.
MAX_VIEW_CORRELATION = 1 - 1e-6
# Maximum ratio of the loss to Σ|terms| at the first logged step; healthy runs stay below a ratio of 2.
MAX_LOSS_RATIO = 10.0
# Minimum number of steps; after 50 steps the initial BatchNorm statistics have a weight of 0.9⁵⁰ = 0.5 %.
MIN_BURN_IN = 50
# Lower limit for D and for n/2; with fewer dimensions or images, even noise has an effective rank below 2.
MIN_DIMENSIONS = 4
# Minimum ratio of one term to all others at the first logged step; the others then have almost no gradient.
DOMINANT_RATIO = 100.0


class Finding(NamedTuple):
    """A metric beyond its threshold: the kind of the alarm, the numbers, and what the message says about them."""

    alarm: str
    metric: str
    observed: float
    threshold: float
    text: str


class Cause(NamedTuple):
    """The probable cause of an alarm: its name, what the message says about it, and what to change."""

    name: str
    text: str
    remedy: str


ADD_PROJECTOR = "add a projector (--projector.kind mlp, --projector.widths)"
NO_PROJECTOR = Cause(
    "no projector", "there is no projector, so the objective acts directly on the backbone", ADD_PROJECTOR
)
AUGMENTATION = Cause(
    "augmentation",
    "the augmentation is too strong, or the last feature map of the backbone is too small",
    "weaken the views (--views.0.crop.scale, noise, affine, jitter), or reduce the strides of the backbone "
    "(--backbone.arguments)",
)
VIEWS = Cause(
    "views",
    "the images have no contrast, or a transform removes it",
    "look at the views (views.png); check the images, custom transforms, and the settings of the views (--views)",
)
NO_AUGMENTATION = Cause(
    "no augmentation",
    "the augmentation changes nothing, or each image has one view that is used twice",
    "look at the views (views.png); turn on augmentations (--views.0.crop.scale, jitter, noise), and check custom "
    "transforms",
)
NETWORK = Cause(
    "network",
    "the network gives all images the same output; no earlier output differed between images",
    "look at the views (views.png); check the network (--backbone, --projector) and its initial weights",
)
FIRST_STEP = Cause(
    "objective or views",
    "the objective or the views are wrong (no step was taken before)",
    "check the hyperparameters of the objective (--hyper) and the views (--views)",
)


@dataclass
class CollapseDetector:
    """Reads the rows of a log one by one, and raises each kind of alarm once per location.

    The state depends only on the rows so far, so a resumed run replays its log.

    Attributes:
        burn_in_end: The first step at which a spectrum can raise an alarm.
        recipe: The recipe as a JSON object; causes and remedies name its settings.
        images: What the spectra are measured on, except `full`; for messages.
        weights_known: Whether a term of 0 whose weight is not in the recipe has none.
        first_row: The first row of training; of a sum of objectives with the first value that is not 0 of each term,
            since an objective may start later.
        no_projector: True as long as backbone and projector had identical metrics in every row. After a collapse they
            may be identical by chance, and a diagonal projector is the identity at step 0, so one row is not enough to
            decide.
        highest_rank: The highest effective rank of each location since the end of burn-in.
        varied: Whether embeddings differed between images in any row so far.
        raised: Kind and location of each alarm so far.
    """

    burn_in_end: int
    recipe: Mapping[str, Any] = field(default_factory=dict)
    images: str = "held-out images"
    weights_known: bool = True
    first_row: TrainRow | None = None
    no_projector: bool = True
    highest_rank: dict[str, float] = field(default_factory=dict)
    varied: bool = False
    raised: set[tuple[str, str]] = field(default_factory=set)

    @property
    def is_sum(self) -> bool:
        """Whether the objective is a sum of objectives, or has hyperparameters in its text."""
        return any(mark in self.recipe.get("objective", "") for mark in "+(")

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
            first = self.first_row or row
            late = {name: value for name, value in row.terms.items() if self.is_sum and not first.terms.get(name)}
            self.first_row = first = replace(first, terms=first.terms | late)
            yield from self.evaluate_loss(row, first)
            yield from self.evaluate_variance(row, row.relative_variance or {}, "training images")
        elif isinstance(row, SpectrumRow):
            self.no_projector &= row.backbone == row.projector
            yield from self.evaluate_views(row)
            if row.step >= self.burn_in_end:
                yield from self.evaluate_spectra(row)
            parts = {"backbone": row.backbone, "projector": row.projector}
            enough = {where: part for where, part in parts.items() if part.samples >= 2 * MIN_DIMENSIONS}
            variance = {where: part.relative_variance for where, part in enough.items()}
            yield from self.evaluate_variance(row, variance, self.images)

    def evaluate_loss(self, row: TrainRow, first: TrainRow) -> Iterator[AlarmRow]:
        """Yield an alarm if the loss exceeds 10 Σ|terms| of the first row; a sum below 1 counts as 1."""
        threshold = MAX_LOSS_RATIO * max(sum(map(abs, first.terms.values())), 1.0)
        if row.loss > threshold:
            expected = f"expected at most {threshold:.4g} ({first.loss:.4g} at the first logged step)"
            found = Finding("divergence", "loss", row.loss, threshold, f"{row.loss:.4g}, {expected}")
            yield _alarm(row, "loss", found, self.large_steps())

    def evaluate_views(self, row: SpectrumRow) -> Iterator[AlarmRow]:
        """Yield an alarm for constant views, and for views of an image with one representation; also during burn-in."""
        for metric, deviation, what, over in (
            ("image_deviation", row.image_deviation, "all images give the same view", "images"),
            ("pixel_deviation", row.pixel_deviation, "each view has a single colour", "pixels"),
        ):
            if deviation is not None and deviation < MIN_DEVIATION:
                text = f"{what} (deviation {deviation:.1g} over the {over}), expected {MIN_DEVIATION:g} or more"
                yield _alarm(row, "views", Finding("constant views", metric, deviation, MIN_DEVIATION, text), VIEWS)
                return
        if (correlation := row.intraclass_correlation or 0.0) > MAX_VIEW_CORRELATION:
            text = f"the views of an image have the same representation (intraclass correlation {correlation:.6f})"
            found = Finding("equal views", "intraclass_correlation", correlation, MAX_VIEW_CORRELATION, text)
            yield _alarm(row, "views", found, NO_AUGMENTATION)

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
            cause = VIEWS
        else:
            cause = self.find_cause(uncorrelated=False) if self.varied else NETWORK
        where, value = next(iter(equal.items()))  # if all representations are equal, so are all embeddings
        text = f"all {images} have the same output (relative variance {value:.1g}), expected more than 1e-10"
        yield _alarm(row, where, Finding("complete collapse", "batch_variance", value, ROUNDING_VARIANCE, text), cause)

    def evaluate_spectra(self, row: SpectrumRow) -> Iterator[AlarmRow]:
        """Yield the most severe collapse of each location, and an alarm if the views are uncorrelated."""
        correlation = 1.0 if row.intraclass_correlation is None else row.intraclass_correlation
        uncorrelated = correlation < MIN_VIEW_CORRELATION
        cause = self.find_cause(uncorrelated=uncorrelated)
        for where, metrics in (("backbone", row.backbone), ("projector", row.projector))[: 2 - self.no_projector]:
            self.highest_rank[where] = max(self.highest_rank.get(where, 0.0), metrics.effective_rank)
            found = find_collapse(metrics, where, self.images, highest_rank=self.highest_rank[where])
            if not found and row.full:  # more images at the end, with no earlier maximum
                found = find_collapse(row.full_metrics(where), where, "images")
            if found:
                yield _alarm(row, where, found, cause)
        if uncorrelated:
            share = f"views of one image share {max(correlation, 0):.1%} of the variance"
            text = f"{share}, expected {MIN_VIEW_CORRELATION:.0%} or more"
            found = Finding("uncorrelated views", "intraclass_correlation", correlation, MIN_VIEW_CORRELATION, text)
            yield _alarm(row, "backbone", found, cause)

    def find_cause(self, *, uncorrelated: bool) -> Cause:
        """Return the probable cause, the first of this list that applies:

        - "missing term": a term is 0 at the first logged step, and its hyperparameter is 0 or absent;
        - "dominant term": a term is more than 100 times the sum of all others;
        - "no projector": the views are uncorrelated, the loss has not diverged, and there is no projector;
        - "augmentation": the same with a projector;
        - "large steps": in all other cases; the name says if there is no projector.
        """
        terms, hyper = self.first_row.terms if self.first_row else {}, self.recipe.get("hyper", {})
        # A hinge, such as VICReg's variance term, can be 0 in a healthy run; then its hyperparameter is not 0.
        missing = [name for name, value in terms.items() if value == 0 and not hyper.get(name, not self.weights_known)]
        if missing and not self.is_sum and len(missing) < len(terms):
            have = f"s {' and '.join(map(repr, missing))} have" if len(missing) > 1 else f" '{missing[0]}' has"
            text = f"the loss term{have} no weight (0 at the first logged step)"
            return Cause("missing term", text, change_weights("raise", missing, hyper))
        if dominant := dominant_term(terms):
            name, ratio = dominant
            text = f"the loss term '{name}' was {ratio:,.0f} times as large as all others at the first logged step"
            return Cause(f"dominant term: {name}", text, change_weights("lower", [name], hyper))
        if uncorrelated and ("divergence", "loss") not in self.raised:
            return NO_PROJECTOR if self.no_projector else AUGMENTATION
        return self.large_steps(no_projector=self.no_projector)

    def large_steps(self, *, no_projector: bool = False) -> Cause:
        """Return the cause that no other explains, with the values of the learning rate and of the EMA momentum."""
        lr, momentum = self.recipe.get("optimizer", {}).get("lr"), self.recipe.get("method", {}).get("momentum")
        reasons = ["the steps are too large"]
        rate = "lower the learning rate (--optimizer.lr" + (f", now {lr:g})" if lr else ")")
        changes = [rate, "lengthen the warm-up (--schedule.warmup)"]
        if momentum:
            reasons.append("the EMA momentum of the teacher is too low")
            now = " ".join(f"{value:g}" for value in momentum)
            changes.append(f"raise the momentum (--method.momentum, now {now})")
        if no_projector:
            reasons.append("there is no projector")
            changes.append(ADD_PROJECTOR)
        name = "large steps, no projector" if no_projector else "large steps"
        return Cause(name, ", or ".join(reasons), f"{', '.join(changes[:-1])}, or {changes[-1]}")

    def not_finite(self, step: int, epoch: float, where: str, observation: str) -> AlarmRow:
        """Return the alarm for NaN or infinite values, which end a run.

        Args:
            step: the step at which the values were found.
            epoch: the number of epochs at this step.
            where: "loss", "weights" or "embeddings".
            observation: what is not finite.
        """
        initial = step == 0 or (step == 1 and where != "weights")  # no step has changed the weights
        name, text, remedy = FIRST_STEP if initial else self.large_steps()
        objective, machine = self.recipe.get("objective", ""), self.recipe.get("machine", {})
        # The backward pass in bfloat16 can overflow where float32 does not. A monitor does not know the precision.
        if not machine.get("precision", "unknown").startswith(("32", "64")):
            text = f"the precision is too coarse, or {text}"
            remedy = f"compute in float32 (--machine.precision 32-true), or {remedy}"
        remedy += f", or fix the objective (fullrank check {objective})" * (":" in objective)
        why: dict[str, Any] = {"cause": name, "remedy": remedy, "message": f"{observation}; probably because {text}"}
        return AlarmRow(step=step, epoch=epoch, alarm="not finite", where=where, metric=where, **why)


def change_weights(change: str, terms: Sequence[str], hyper: Mapping[str, object]) -> str:
    """Return the flags that change the weights of terms; in most objectives a term and its weight have the same
    name.
    """
    flags = [f"--hyper.{name}" for name in terms if name in hyper]
    if hyper.get("log") is False and (change == "lower" or not flags):
        return "turn on FroSSL's logarithm (--hyper.log)"
    if flags:
        return f"{change} {' and '.join(flags)}"
    return "change the weights of the terms" + (f" ({', '.join(f'--hyper.{name}' for name in hyper)})" if hyper else "")


def _alarm(row: TrainRow | SpectrumRow, where: str, found: Finding, cause: Cause) -> AlarmRow:
    message = f"{found.alarm}, {where}: {found.text}; probably because {cause.text}"
    why: dict[str, Any] = {"cause": cause.name, "remedy": cause.remedy, "message": message}
    why |= {"alarm": found.alarm, "metric": found.metric, "observed": found.observed, "threshold": found.threshold}
    return AlarmRow(step=row.step, epoch=row.epoch, where=where, **why)


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
    steps. Effective ranks decrease steeply during warmup and recover afterwards; after burn-in, those of the 56 healthy
    runs of `docs/alarm.md` stay above four fifths of their maximum.

    Args:
        steps: number of steps of the run.
        warmup: number of steps of the learning-rate warmup.

    >>> [compute_burn_in_end(steps=steps, warmup=warmup) for steps, warmup in ((220, 22), (10_000, 500), (10_000, 0))]
    [55, 1500, 500]
    """
    return max(min(max(3 * warmup, math.ceil(steps / 20)), math.ceil(steps / 4)), MIN_BURN_IN)


def find_collapse(
    metrics: SpectrumMetrics, where: str, images: str = "held-out images", *, highest_rank: float = 0.0
) -> Finding | None:
    """Return the most severe collapse of one spectrum, or None.

    Args:
        metrics: the metrics of the spectrum; the relative variance may be None.
        where: "backbone" or "projector"; collapsed dimensions of a projector raise no alarm, because healthy runs have
            them too.
        images: what the spectrum is measured on.
        highest_rank: the highest effective rank since the end of burn-in.

    >>> numbers = dict(dimensions=128, samples=1280, condition_number=None, entropy=3.0)
    >>> find_collapse(SpectrumMetrics(effective_rank=30.0, collapsed_dimensions=64, **numbers), "backbone").observed
    0.5
    """
    n, D, variance, rank = metrics.samples, metrics.dimensions, metrics.relative_variance, metrics.effective_rank
    if n < 2 * MIN_DIMENSIONS:
        return None
    if variance is not None and variance < MIN_RELATIVE_VARIANCE:
        text = f"relative variance {variance:.2g} on {n} {images}, expected {MIN_RELATIVE_VARIANCE:g} or more"
        return Finding("complete collapse", "relative_variance", variance, MIN_RELATIVE_VARIANCE, text)
    for least, expected in (
        (MIN_EFFECTIVE_RANK, f"{MIN_EFFECTIVE_RANK:g}"),
        (MIN_RANK_SHARE * highest_rank, f"{MIN_RANK_SHARE:.0%} of its maximum {highest_rank:.3f}"),
    ):
        if rank < least and D >= MIN_DIMENSIONS:
            text = f"effective rank {rank:.3f} of {D} dimensions on {n} {images}, expected {expected} or more"
            return Finding("dimensional collapse", "effective_rank", rank, least, text)
    share, most = collapsed_share(metrics.collapsed_dimensions, D, n), MAX_COLLAPSED_SHARE
    if where == "backbone" and share > most:
        resolved = f"the {min(D, n // 2)} dimensions that {n} images can measure"
        text = f"{share:.1%} of {resolved} are collapsed, expected at most {most:.1%}"
        return Finding("dimensional collapse", "collapsed_share", share, most, text)
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
