"""Comparison of projectors: claims about the linear probe, and plots with one mark per seed."""

import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from fullrank.sweep.paired import paired_difference
from fullrank_papers.figures.directclr.study import LABELS, values_per_seed
from fullrank_papers.figures.figure import ClaimResult, Rows, paper_claim
from fullrank_papers.figures.plotting import plot_runs
from fullrank_papers.figures.seeds import check_higher

if TYPE_CHECKING:
    import matplotlib.axes

EQUALITY_BOUND = (
    0.02  # largest difference of equal accuracies; the paper calls accuracies equal that differ by up to 0.9 points
)
LINE_STYLES = ("-", "--", ":", "-.")


def probe_accuracies(rows: Rows, projector: str) -> list[float]:
    """Return the accuracies of the linear probe on r behind a projector, one per seed."""
    return values_per_seed(rows[projector], "accuracy", "whole")


def better(rows: Rows, a: str, b: str, paper: Mapping[str, float]) -> tuple[str, ClaimResult]:
    """Return the statement and the result of the claim that the probe on r is more accurate behind projector `a` than
    behind `b`.
    """
    difference = f"; {paper[a] - paper[b]:+.1f} points in the paper"
    check = check_higher(probe_accuracies(rows, a), probe_accuracies(rows, b), paper=difference)
    return f"{LABELS[a]} is better than {LABELS[b]}", check


def equal(rows: Rows, a: str, b: str, paper: Mapping[str, float]) -> tuple[str, ClaimResult]:
    """Return the statement and the result of the claim that both probes are equally accurate: the interval is within
    ±`EQUALITY_BOUND`.
    """
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
        plot_runs(
            axis, runs[0]["index"], shares, color=f"C{number}", linestyle=LINE_STYLES[number], alpha=0.7, label=label
        )
    axis.set_yscale("log", nonpositive="mask")
    axis.set(xlabel="index j", ylabel="λⱼ/λ₁ of the covariance")
    axis.locator_params(axis="x", integer=True)
    axis.legend()
