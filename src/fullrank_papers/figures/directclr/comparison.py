"""What the figures of trained projectors share: numbers per seed, claims about the linear probe, and plots."""

from collections.abc import Mapping, Sequence
from typing import Any

from fullrank.evaluation.paired import paired_difference
from fullrank_papers.figures.directclr.study import LABELS
from fullrank_papers.figures.figure import Rows, Verdict, verdict
from fullrank_papers.figures.numerics import check_higher
from fullrank_papers.plot_style import plot_dots, plot_runs

EQUALITY_BOUND = 0.02  # largest difference of equal accuracies; the paper calls those equal that differ by 0.9 points
LINE_STYLES = ("-", "--", ":", "-.")


def accuracies(runs: Sequence[Rows], part: str = "whole") -> list[float]:
    """Return the accuracies of the linear probe on a part of r, one per seed."""
    return [run["accuracy"][part] for run in runs]


def ranks(runs: Sequence[Rows]) -> list[float]:
    """Return the effective ranks of r, one per seed."""
    return [run["representation"]["effective_rank"] for run in runs]


def better(rows: Rows, a: str, b: str, paper: Mapping[str, float]) -> Verdict:
    """Return the verdict on the claim that the probe on r is more accurate behind projector `a` than behind `b`."""
    values = {"a": LABELS[a], "b": LABELS[b], "difference": paper[a] - paper[b]}
    return check_higher(accuracies(rows[a]), accuracies(rows[b]), **values)


def equal(rows: Rows, a: str, b: str, paper: Mapping[str, float]) -> Verdict:
    """Return the verdict on the claim that both probes are equally accurate: the interval is within
    ±`EQUALITY_BOUND`.
    """
    gap = paired_difference(accuracies(rows[a]), accuracies(rows[b]))
    values = {"a": LABELS[a], "b": LABELS[b], "difference": paper[a] - paper[b], "bound": 100 * EQUALITY_BOUND}
    return verdict(gap.format(" points", scale=100.0), gap.is_within(EQUALITY_BOUND), **values)


def plot_accuracies(axis: Any, rows: Rows, paper: Mapping[str, float]) -> None:
    """Draw one line per projector: a dot per seed, a bar for the mean, and on the right the paper's percentage."""
    numbers = [(LABELS[name], [100 * accuracy for accuracy in accuracies(rows[name])]) for name in paper]
    plot_dots(axis, numbers, notes=[f"paper: {percentage} %" for percentage in paper.values()])
    axis.set_xlabel("accuracy of a linear probe of r, % (dots: seeds, bars: mean)")


def plot_spectra(axis: Any, spectra: Mapping[str, Sequence[Rows]]) -> None:
    """Draw eigenvalues of covariances as shares of the largest, one line per seed: label → spectra."""
    for k, (label, runs) in enumerate(spectra.items()):
        shares = [[value / spectrum["eigenvalues"][0] for value in spectrum["eigenvalues"]] for spectrum in runs]
        style = {"color": f"C{k}", "linestyle": LINE_STYLES[k], "alpha": 0.7, "label": label}
        plot_runs(axis, runs[0]["index"], shares, **style)
    axis.set_yscale("log", nonpositive="mask")
    axis.set(xlabel="index j", ylabel="λⱼ/λ₁ of the covariance")
    axis.locator_params(axis="x", integer=True)
    axis.legend()
