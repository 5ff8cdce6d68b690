"""The bootstrap over test images: statistics of weighted images, in random resamples of the images or their groups."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int64

# Resamples of an interval: the ends of a 95 % interval are then the 50th smallest and the 50th largest value.
RESAMPLES = 2000
# Weights in memory at the same time: four megabytes, about the cache of a core.
CELLS = 2**19

# A function of the weights of n images, how often each is drawn in each of b resamples.
Statistic = Callable[[Float[np.ndarray, "b n"]], Float[np.ndarray, " b"]]


def resample(
    statistics: list[Statistic], groups: Int64[np.ndarray, " n"], *, resamples: int = RESAMPLES, seed: int = 0
) -> Float[np.ndarray, "resamples k"]:
    """Return each statistic in random resamples of the images, with replacement; all of them share the resamples.

    Images of one group are drawn together, because images of one patient or scene are not independent.

    Args:
        statistics: functions of the weights of the images.
        groups: the group of each image, -1 for an image of its own.
        resamples: number of resamples.
        seed: seed of the resamples.

    Source: Efron and Tibshirani 1993, An Introduction to the Bootstrap, Sections 6.2 and 8.5.

    >>> values = resample([weighted_mean(np.array([0.0, 0, 1]))], np.full(3, -1), resamples=500)
    >>> values.shape, bool(values.std() > 0.2)
    ((500, 1), True)
    """
    unit, rng, parts = units(groups), np.random.default_rng(seed), []
    count, block = int(unit.max()) + 1, max(CELLS // len(unit), 1)
    for start in range(0, resamples, block):
        rows = min(block, resamples - start)
        drawn = rng.integers(count, size=(rows, count)) + count * np.arange(rows)[:, None]
        times = np.bincount(drawn.ravel(), minlength=rows * count).reshape(rows, count).astype(float)
        parts.append(np.stack([statistic(times[:, unit]) for statistic in statistics], axis=1))
    return np.concatenate(parts)


def units(groups: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, " n"]:
    """Return a number from 0 for what is drawn together: a group, or an image without a group.

    >>> units(np.array([7, -1, 7, -1])).tolist()
    [2, 0, 2, 1]
    """
    labels = np.where(groups < 0, np.arange(len(groups)) - len(groups), groups)  # negative numbers for images alone
    return np.unique(labels, return_inverse=True)[1]


def interval(values: Float[np.ndarray, " resamples"]) -> tuple[float, float]:
    """Return the ends of the 95 % percentile interval of the values that are finite.

    >>> [round(end, 3) for end in interval(np.linspace(0, 1, 1001))]
    [0.025, 0.975]
    """
    low, high = np.nanquantile(values, [0.025, 0.975]).tolist()
    return low, high


def weighted_mean(values: Float[np.ndarray, " n"]) -> Statistic:
    """Return the mean of values as a statistic."""
    return lambda weights: weights @ values / weights.sum(1)


@dataclass(frozen=True)
class MeanOfClasses:
    """The statistic that is the mean of a statistic of one class, such as `area`, over the classes where it is defined.

    Attributes:
        of_class: A function of the weights, of which images are in the class, and of their scores.
    """

    of_class: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
    positive: Bool[np.ndarray, "n K"]
    scores: Float[np.ndarray, "n K"]

    def by_class(self, weights: Float[np.ndarray, "b n"]) -> Float[np.ndarray, "b K"]:
        """Return the statistic of each class, NaN for a class that is absent from a resample."""
        with np.errstate(invalid="ignore", divide="ignore"):
            pairs = zip(self.positive.T, self.scores.T, strict=True)
            return np.stack([self.of_class(weights, *pair) for pair in pairs], axis=1)

    def __call__(self, weights: Float[np.ndarray, "b n"]) -> Float[np.ndarray, " b"]:
        values = np.ma.masked_invalid(self.by_class(weights))
        return values.mean(axis=1).filled(np.nan)


def recall(weights: np.ndarray, positive: np.ndarray, hits: np.ndarray) -> np.ndarray:
    """Return the weighted share of the images of a class that are classified correctly."""
    return weights @ (positive * hits) / (weights @ positive)


def area(
    weights: Float[np.ndarray, "b n"], positive: Bool[np.ndarray, " n"], score: Float[np.ndarray, " n"]
) -> Float[np.ndarray, " b"]:
    """Return the area under the ROC curve of weighted images; ties count half.

    With the weights W⁺ of a class and W⁻ of the others: Σᵢ wᵢ⁺ (W⁻ below i + ½ W⁻ tied with i) / (W⁺ W⁻), the share of
    pairs in the right order.
    """
    order = np.argsort(score, kind="stable")
    starts = np.flatnonzero(np.diff(score[order], prepend=-np.inf) != 0)  # the first image of each value
    above, below = (np.add.reduceat(weights[:, order] * kind[order], starts, axis=1) for kind in (positive, ~positive))
    return (above * (below.cumsum(1) - below / 2)).sum(1) / (above.sum(1) * below.sum(1))


def average_precision(
    weights: Float[np.ndarray, "b n"], positive: Bool[np.ndarray, " n"], score: Float[np.ndarray, " n"]
) -> Float[np.ndarray, " b"]:
    """Return the average precision Σₜ (Rₜ − Rₜ₋₁) Pₜ of weighted images.

    P and R are precision and recall of the images whose score is at least the t-th highest; equal scores count
    together, as in `sklearn.metrics.average_precision_score`.
    """
    order = np.argsort(-score, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(score[order])), len(score) - 1)  # the last image of each value
    drawn = weights[:, order]
    found, seen = (drawn * positive[order]).cumsum(1)[:, ends], drawn.cumsum(1)[:, ends]
    gained = np.diff(found, axis=1, prepend=0.0)
    return np.where(seen > 0, gained * found / seen, 0.0).sum(1) / found[:, -1]
