"""The closing sentence of an evaluation: better, worse or not significant, by how much, and what would decide it.

A pure function of intervals. The interval is that of the difference of two accuracies on the same test images.
"""

import math
from collections.abc import Mapping, Sequence

from fullrank.evaluation.score import LEAST_UNITS, Comparison, percent

# If it would take this many times as many test images to decide, the sentence calls the difference too small.
OUT_OF_REACH = 100


def verdict(
    comparisons: Sequence[Comparison],
    curve: Mapping[int, float] | None = None,
    training: Mapping[float, float] | None = None,
    images: int = 0,
) -> str:
    """Return the sentence on the strongest alternative, the one with the highest accuracy; empty without a comparison.

    Args:
        comparisons: the backbone against each alternative, all by the same probe.
        curve: number of labels per class → accuracy of the backbone.
        training: epoch of pretraining → accuracy of a probe after this epoch.
        images: number of test images of `training`.

    >>> values = {"value": 0.9, "reference": 0.8, "difference": 0.1, "low": 0.05, "high": 0.15}
    >>> raw = Comparison(probe="knn", against="raw pixels", units=400, **values)
    >>> verdict([raw]).partition(";")[0]
    'Better: by kNN, the backbone has 90.0 %, raw pixels 80.0 %'
    """
    if not comparisons:
        return ""
    strongest = max(comparisons, key=lambda comparison: comparison.reference)
    name = f"{strongest.against}, the strongest alternative," if len(comparisons) > 1 else strongest.against
    outcome = decide(strongest)
    ends = f"{_points(strongest.low)} to {_points(strongest.high)}"
    accuracies = f"the backbone has {percent(strongest.value)}, {name} {percent(strongest.reference)}"
    difference = f"the difference is {_points(strongest.difference)} points (95 % interval {ends})"
    text = f"{outcome.capitalize()}: by {strongest.name}, {accuracies}; {difference}"
    unsure = outcome == "not significant"
    remedies = [what_decides(strongest), rising(curve or {}, strongest.units)] if unsure else []
    remedies += [still_rising(training or {}, images)] if outcome != "better" else []
    return "; ".join([text, *filter(None, remedies)]) + "."


def decide(comparison: Comparison) -> str:
    """Return 'better' or 'worse' if the interval of the difference excludes zero, else 'not significant', as with fewer
    than `LEAST_UNITS` test images or groups.
    """
    if comparison.units < LEAST_UNITS:
        return "not significant"
    return "better" if comparison.low > 0 else "worse" if comparison.high < 0 else "not significant"


def what_decides(comparison: Comparison) -> str:
    """Return how many test images would make a difference significant, or that more seeds are needed.

    More images narrow only their own part of the interval: a difference δ with half width h, of which s is that of the
    seeds, needs n (h² − s²)/(δ² − s²) images or groups.
    """
    what = "groups of test images" if comparison.grouped else "test images"
    if comparison.units < LEAST_UNITS:
        return f"{comparison.units} {what} are too few to decide, label at least {LEAST_UNITS}"
    half, seeds = (comparison.high - comparison.low) / 2, comparison.seed_half_width
    room = comparison.difference**2 - seeds**2
    if seeds > half / math.sqrt(2) or (seeds and room <= 0):  # the seeds give more than half of the variance
        cause = "much of the interval comes from the random numbers of the training"
        return f"{cause}, so more seeds would narrow it (now {comparison.seeds})"
    ratio = (half**2 - seeds**2) / room if room > 0 else math.inf
    if ratio > OUT_OF_REACH:
        return f"the difference is too small to decide with any realistic number of {what}"
    # an interval that is not symmetric can include zero at a ratio below 1
    needed = math.ceil(max(ratio, 1.1) * comparison.units)
    digits = 10 ** max(len(str(needed)) - 2, 0)
    about = f"about {math.ceil(needed / digits) * digits:,} {what}"
    return f"{about} would decide a difference of this size (now {comparison.units:,})"


def standard_error(*accuracies: float, images: int) -> float:
    """Return the standard error √(Σ a (1 − a) / n) of a difference of accuracies a, each on n test images.

    It takes the two for independent; on the same images their difference has a smaller error, if they agree.

    >>> round(standard_error(0.2, 0.2125, images=80), 3)
    0.064
    """
    return math.sqrt(sum(a * (1 - a) for a in accuracies) / images) if images else math.inf


def rising(curve: Mapping[int, float], images: int) -> str:
    """Return that more labels may help if the few-shot curve rises at its end, by more than two standard errors of the
    difference of its last two accuracies on so many test images; else nothing.

    >>> rising({1: 0.4, 5: 0.6, 10: 0.65}, 1000)
    'more labels may help, as accuracy rises from 60.0 % with 5 labels per class to 65.0 % with 10'
    """
    if len(curve) < 2:
        return ""
    (fewer, low), (more, high) = sorted(curve.items())[-2:]
    if high - low <= 2 * standard_error(low, high, images=images):
        return ""
    first = f"{percent(low)} with {fewer} label{'s' if fewer > 1 else ''} per class"
    return f"more labels may help, as accuracy rises from {first} to {percent(high)} with {more}"


def still_rising(training: Mapping[float, float], images: int) -> str:
    """Return whether the accuracy rose or fell in the last third of pretraining, by more than two standard errors of
    the difference of two accuracies on so many test images.

    Empty for a smaller change, for fewer than four points, or without a point in the middle third.

    >>> still_rising({0.0: 0.2, 10.0: 0.25, 20.0: 0.29, 30.0: 0.36}, 1000)
    'more epochs may help, as accuracy during pretraining rose from 29.0 % after epoch 20 to 36.0 % after epoch 30'
    """
    last = max(training, default=0.0)
    before = max((epoch for epoch in training if last / 3 <= epoch <= 2 * last / 3), default=None)
    if len(training) < 4 or before is None:
        return ""
    gain, error = training[last] - training[before], standard_error(training[before], training[last], images=images)
    if abs(gain) <= 2 * error:
        return ""
    may, change = ("may help", "rose") if gain > 0 else ("may not help", "fell")
    ends = f"from {percent(training[before])} after epoch {before:g} to {percent(training[last])} after epoch {last:g}"
    return f"more epochs {may}, as accuracy during pretraining {change} {ends}"


def _points(difference: float) -> str:
    return f"{100 * difference:+.1f}"
