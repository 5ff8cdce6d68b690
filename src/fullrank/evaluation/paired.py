"""The mean difference between paired runs, with the 95 % interval of Student's paired t-test.

Two runs are a pair if they have the same seed.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scipy.special import stdtrit


@dataclass(frozen=True)
class PairedDifference:
    """The mean and standard deviation of n differences between paired runs; sd is None if n = 1."""

    mean: float
    sd: float | None
    n: int

    @property
    def half_width(self) -> float:
        """Half the width of the 95 % interval of the mean, t(0.975, n − 1) · sd/√n; infinite for n = 1."""
        return math.inf if self.sd is None else float(stdtrit(self.n - 1, 0.975)) * self.sd / self.n**0.5

    def exceeds(self, bound: float) -> bool | None:
        """Return whether the difference is above `bound`; None if the interval contains it."""
        return None if abs(self.mean - bound) <= self.half_width else self.mean > bound

    def is_within(self, bound: float) -> bool | None:
        """Return whether the interval lies inside ±`bound` (True) or outside (False); None if it lies in both."""
        if abs(self.mean) + self.half_width < bound:
            return True
        return False if abs(self.mean) - self.half_width > bound else None

    def format(self, unit: str = "", *, scale: float = 1.0) -> str:
        """Return the mean, the interval, the standard deviation and n as text.

        >>> PairedDifference(0.012, 0.01, 3).format(" points", scale=100.0)
        '+1.20 ± 2.48 points, sd 1.00, n = 3'
        """
        interval = unit if self.sd is None else f" ± {scale * self.half_width:.2f}{unit}, sd {scale * self.sd:.2f}"
        return f"{scale * self.mean:+.2f}{interval}, n = {self.n}"


def paired_difference(a: Sequence[float], b: Sequence[float], *, step: float = 0.0) -> PairedDifference:
    """Return the difference a − b of paired values.

    Args:
        a: values.
        b: values of the same pairs.
        step: the values are multiples of it, as the accuracy on n images of 1/n. The standard deviation is at least
            that of rounding both values to multiples, step/√6, because equal differences of a few pairs do not show
            that all pairs differ as much.

    >>> paired_difference([3.0, 4.0, 5.0], [1.0, 2.0, 3.0])
    PairedDifference(mean=2.0, sd=0.0, n=3)
    """
    gaps = [x - y for x, y in zip(a, b, strict=True)]
    sd = max(statistics.stdev(gaps), step / 6**0.5) if len(gaps) > 1 else None
    return PairedDifference(statistics.fmean(gaps), sd, len(gaps))


def paired_by_seed(a: Mapping[int, float], b: Mapping[int, float], *, step: float = 0.0) -> PairedDifference | None:
    """Return the difference a − b over the seeds that both have; None without such a seed.

    >>> paired_by_seed({0: 3.0, 1: 4.0, 2: 9.0}, {0: 1.0, 1: 2.0})
    PairedDifference(mean=2.0, sd=0.0, n=2)
    """
    seeds = sorted(set(a) & set(b))
    return paired_difference([a[seed] for seed in seeds], [b[seed] for seed in seeds], step=step) if seeds else None
