"""Comparison of projectors over a few seeds: paired confidence intervals, claims that follow from them, and plots.

Runs are paired by their seed: both have the same initial weights, the same order of images and the same views. A claim is reproduced if the
whole 95 % interval of the mean difference agrees with it, not reproduced if none of the interval does, and otherwise undecidable.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fullrank.reproduce.directclr.study import LABELS, values_per_seed
from fullrank.reproduce.figure import ClaimResult, Rows, paper_claim
from fullrank.reproduce.plotting import plot_runs

if TYPE_CHECKING:
    import matplotlib.axes

CONFIDENCE = 0.95
EQUALITY_BOUND = 0.02  # largest difference of equal accuracies; the paper calls accuracies equal that differ by up to 0.9 points
LINE_STYLES = ("-", "--", ":", "-.")


@dataclass(frozen=True)
class PairedDifference:
    """The mean and standard deviation of n differences between paired runs; sd is None if n = 1."""

    mean: float
    sd: float | None
    n: int

    @property
    def half_width(self) -> float:
        """Half the width of the 95 % interval of the mean, t(0.975, n − 1) · sd/√n; infinite for n = 1."""
        from scipy.stats import t

        return math.inf if self.sd is None else float(t.ppf((1 + CONFIDENCE) / 2, self.n - 1)) * self.sd / self.n**0.5

    def is_positive(self) -> bool | None:
        """Return whether the difference is positive; None if the interval contains 0."""
        return None if abs(self.mean) <= self.half_width else self.mean > 0

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


def paired_difference(a: Sequence[float], b: Sequence[float]) -> PairedDifference:
    """Return the difference a − b of paired values.

    >>> paired_difference([3.0, 4.0, 5.0], [1.0, 2.0, 3.0])
    PairedDifference(mean=2.0, sd=0.0, n=3)
    """
    gaps = [x - y for x, y in zip(a, b, strict=True)]
    return PairedDifference(statistics.fmean(gaps), statistics.stdev(gaps) if len(gaps) > 1 else None, len(gaps))


def check_higher(a: Sequence[float], b: Sequence[float], *, unit: str = " points", scale: float = 100.0, paper: str = "") -> ClaimResult:
    """Return the claim that a is higher than b: the interval of their paired differences is above zero."""
    gap = paired_difference(a, b)
    return paper_claim(f"95 % interval above 0{paper}", gap.format(unit, scale=scale), gap.is_positive())


def probe_accuracies(rows: Rows, projector: str) -> list[float]:
    """Return the accuracies of the linear probe on r behind a projector, one per seed."""
    return values_per_seed(rows[projector], "accuracy", "whole")


def better(rows: Rows, a: str, b: str, paper: Mapping[str, float]) -> tuple[str, ClaimResult]:
    """Return the statement and the result of the claim that the probe on r is more accurate behind projector `a` than behind `b`."""
    difference = f"; {paper[a] - paper[b]:+.1f} points in the paper"
    check = check_higher(probe_accuracies(rows, a), probe_accuracies(rows, b), paper=difference)
    return f"{LABELS[a]} is better than {LABELS[b]}", check


def equal(rows: Rows, a: str, b: str, paper: Mapping[str, float]) -> tuple[str, ClaimResult]:
    """Return the statement and the result of the claim that both probes are equally accurate: the interval is within ±`EQUALITY_BOUND`."""
    gap = paired_difference(probe_accuracies(rows, a), probe_accuracies(rows, b))
    expected = f"95 % interval within ±{100 * EQUALITY_BOUND:.0f} points; {paper[a] - paper[b]:+.1f} in the paper"
    return f"{LABELS[a]} is as good as {LABELS[b]}", paper_claim(
        expected, gap.format(" points", scale=100.0), gap.is_within(EQUALITY_BOUND)
    )


def plot_accuracies(axis: "matplotlib.axes.Axes", rows: Rows, paper: Mapping[str, float]) -> None:
    """Draw one line per projector: a dot per seed, a bar for the mean, and on the right the paper's percentage."""
    for place, name in enumerate(paper):
        percentages = [100 * accuracy for accuracy in probe_accuracies(rows, name)]
        axis.plot([statistics.fmean(percentages)] * 2, [place - 0.3, place + 0.3], color="C0", linewidth=1.5)
        axis.plot(percentages, [place] * len(percentages), "o", color="C0", markersize=4, alpha=0.6)
    axis.set_yticks(range(len(paper)), [LABELS[name] for name in paper])
    axis.invert_yaxis()
    axis.margins(y=0.1)
    axis.set_xlabel("accuracy of a linear probe of r, % (dots: seeds, bars: mean)")
    right = axis.secondary_yaxis("right")
    right.set_yticks(range(len(paper)), [f"paper: {percentage} %" for percentage in paper.values()])
    right.tick_params(length=0, labelsize=8, labelcolor="dimgray")
    right.spines["right"].set_visible(False)


def plot_spectra(axis: "matplotlib.axes.Axes", spectra: Mapping[str, Sequence[Rows]]) -> None:
    """Draw eigenvalues of covariances as shares of the largest, one line per seed: label → spectra."""
    for number, (label, runs) in enumerate(spectra.items()):
        shares = [[value / spectrum["eigenvalues"][0] for value in spectrum["eigenvalues"]] for spectrum in runs]
        plot_runs(axis, runs[0]["index"], shares, color=f"C{number}", linestyle=LINE_STYLES[number], alpha=0.7, label=label)
    axis.set_yscale("log", nonpositive="mask")
    axis.set(xlabel="index j", ylabel="λⱼ/λ₁ of the covariance")
    axis.locator_params(axis="x", integer=True)
    axis.legend()
