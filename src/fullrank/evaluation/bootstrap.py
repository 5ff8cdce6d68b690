"""The bootstrap over test images: intervals of scores, and of differences of scores on the same images."""

from collections.abc import Iterator

import numpy as np
from jaxtyping import Float, Int64

RESAMPLES = 2000
"""Resamples of an interval: the ends of a 95 % interval are then the 50th smallest and the 50th largest mean."""
CELLS = 2**23
"""Counts in memory at the same time."""


def resampled_means(
    values: Float[np.ndarray, "n k"],
    groups: Int64[np.ndarray, " n"] | None = None,
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Float[np.ndarray, "resamples k"]:
    """Return the mean of each column in random resamples of the rows, with replacement; all columns share the
    resamples.

    Rows of one group are drawn together, because images of one patient or scene are not independent. A mean divides by
    the number of rows of its resample.

    Args:
        values: a row for each test image, such as 1 where a probe is right and 0 elsewhere; a column for each score.
        groups: the group of each row, -1 for a row of its own; None: every row is its own.
        resamples: number of resamples.
        seed: seed of the resamples.

    Source: Efron and Tibshirani 1993, An Introduction to the Bootstrap, Sections 6.2 and 8.5.

    >>> means = resampled_means(np.array([[0.0, 1], [0, 1], [1, 1]]), resamples=500)
    >>> means.shape, bool((means[:, 1] == 1).all())
    ((500, 2), True)
    """
    unit = units(groups, len(values))
    count = int(unit.max()) + 1
    sizes = np.bincount(unit, minlength=count).astype(float)
    sums = np.stack([np.bincount(unit, weights=column, minlength=count) for column in values.T], axis=1)  # (units, k)
    drawn = draws(count, resamples, np.random.default_rng(seed))
    return np.concatenate([(times @ sums) / (times @ sizes)[:, None] for times in drawn])


def interval(means: Float[np.ndarray, "resamples k"]) -> tuple[Float[np.ndarray, " k"], Float[np.ndarray, " k"]]:
    """Return the ends of the 95 % percentile interval of each column.

    >>> [ends.round(3).tolist() for ends in interval(np.linspace(0, 1, 1001)[:, None])]
    [[0.025], [0.975]]
    """
    low, high = np.quantile(means, [0.025, 0.975], axis=0)
    return low, high


def units(groups: Int64[np.ndarray, " n"] | None, n: int) -> Int64[np.ndarray, " n"]:
    """Return a number from 0 for what is resampled together: a group, or a row without a group.

    >>> units(np.array([7, -1, 7, -1]), 4).tolist()
    [2, 0, 2, 1]
    """
    if groups is None:
        return np.arange(n)
    alone = groups < 0
    labels = np.where(alone, np.arange(n) - n, groups)  # negative numbers for rows of their own
    return np.unique(labels, return_inverse=True)[1]


def resampled_class_means(
    y: Int64[np.ndarray, " n"],
    hits: Float[np.ndarray, " n"],
    probabilities: Float[np.ndarray, "n K"] | None,
    groups: Int64[np.ndarray, " n"] | None = None,
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Float[np.ndarray, "resamples 2"]:
    """Return balanced accuracy and AUROC in random resamples of the rows; the draws of a seed are those of
    `resampled_means`.

    Both are means over the classes that a resample contains. A row that is drawn w times counts w times: with the
    weights of a class W⁺ and those of all others W⁻, the area is Σᵢ wᵢ⁺ (W⁻ below i + ½ W⁻ tied with i) / (W⁺ W⁻), the
    share of pairs in the right order.

    Args:
        y: the labels.
        hits: 1 where a prediction is right, 0 elsewhere.
        probabilities: the predicted probabilities; None: the AUROC is NaN.
        groups: as in `resampled_means`.
        resamples: number of resamples.
        seed: seed of the resamples.

    >>> y = np.arange(40) % 2
    >>> resampled_class_means(y, np.ones(40), np.eye(2)[y], resamples=2).tolist()
    [[1.0, 1.0], [1.0, 1.0]]
    """
    unit, present = units(groups, len(y)), np.unique(y)
    count, classes = int(unit.max()) + 1, (y[:, None] == present).astype(float)  # (n, K')
    parts = []
    for times in draws(count, resamples, np.random.default_rng(seed), rows_of_memory=len(y)):
        weights = times[:, unit]  # (b, n)
        size = weights @ classes
        with np.errstate(invalid="ignore", divide="ignore"):  # a class may be absent from a resample
            recalls = (weights @ (classes * hits[:, None])) / size
            areas = np.full_like(recalls, np.nan)
            if probabilities is not None and len(present) > 1:
                areas = np.stack([_area(weights, y == label, probabilities[:, label]) for label in present], axis=1)
            parts.append(np.stack([_mean_of_finite(recalls), _mean_of_finite(areas)], axis=1))
    return np.concatenate(parts)


def _area(
    weights: Float[np.ndarray, "b n"], positive: np.ndarray, score: Float[np.ndarray, " n"]
) -> Float[np.ndarray, " b"]:
    """Return the area under the ROC curve of weighted rows; ties count half."""
    order = np.argsort(score, kind="stable")
    starts = np.flatnonzero(np.diff(score[order], prepend=-np.inf))  # the first row of each value
    above, below = (np.add.reduceat(weights[:, order] * kind[order], starts, axis=1) for kind in (positive, ~positive))
    pairs = (above * (below.cumsum(1) - below / 2)).sum(1)
    return pairs / (above.sum(1) * below.sum(1))


def _mean_of_finite(values: Float[np.ndarray, "b K"]) -> Float[np.ndarray, " b"]:
    finite = np.isfinite(values)
    return np.where(finite, values, 0).sum(1) / finite.sum(1)


def draws(
    count: int, resamples: int, generator: np.random.Generator, *, rows_of_memory: int = 0
) -> Iterator[Float[np.ndarray, "b count"]]:
    """Yield how often each unit is in each resample, in blocks of resamples; the blocks do not change the draws."""
    block = max(CELLS // max(count, rows_of_memory), 1)
    for start in range(0, resamples, block):
        rows = min(block, resamples - start)
        drawn = generator.integers(count, size=(rows, count)) + count * np.arange(rows)[:, None]
        yield np.bincount(drawn.ravel(), minlength=rows * count).reshape(rows, count).astype(float)
