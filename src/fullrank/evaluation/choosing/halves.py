"""Intervals of a statistic of images, from random halves of them."""

from collections.abc import Callable, Iterator

import numpy as np
from jaxtyping import Bool, Float, Int64

from fullrank.evaluation.bootstrap import units

HALVES = 50
"""Number of random halves: a standard deviation of 50 values has a relative error of 10 %."""
NORMAL = 1.96
"""Half the width of a 95 % interval of a normal distribution, in standard deviations."""


def random_halves(
    groups: Int64[np.ndarray, " n"], *, halves: int = HALVES, seed: int = 0
) -> Iterator[Bool[np.ndarray, " n"]]:
    """Yield random halves of n images without replacement; images of one group stay together.

    Of an odd number of groups, the larger and the smaller half take turns.

    For a mean, and for statistics that are nearly linear in the distribution of the images, the value of a random half
    varies around that of all images as the latter varies around its expectation, because (1 − ½) / (½ n) = 1/n: the
    jackknife that deletes d = n/2 images. A bootstrap draws an image twice, which then is its own nearest neighbour and
    lowers a rank, so it is not used.

    Args:
        groups: the group of each image, -1 for an image of its own.
        halves: number of halves.
        seed: seed of the halves.

    Source: Shao and Wu 1989, A General Theory for Jackknife Variance Estimation.
    """
    unit = units(groups, len(groups))
    count, generator = int(unit.max()) + 1, np.random.default_rng(seed)
    for number in range(halves):
        chosen = np.zeros(count, bool)
        chosen[generator.permutation(count)[: (count + number % 2) // 2]] = True
        yield chosen[unit]


def deviations(
    statistic: Callable[[Bool[np.ndarray, " n"]], float], groups: Int64[np.ndarray, " n"], *, seed: int = 0
) -> Float[np.ndarray, " halves"]:
    """Return the statistic of each random half minus the mean over the halves.

    The statistic of half as many images can have another expectation, such as a lower rank, so the mean is removed. If
    a value is infinite, all deviations are NaN, and so is the interval.
    """
    values = np.array([statistic(half) for half in random_halves(groups, seed=seed)])
    return values - values.mean() if np.isfinite(values).all() else np.full(len(values), np.nan)


def margin(deviation: Float[np.ndarray, " halves"]) -> float:
    """Return half the width of the 95 % interval."""
    return NORMAL * float(deviation.std(ddof=1))
