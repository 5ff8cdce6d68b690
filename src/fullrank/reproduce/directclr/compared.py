"""Projectors side by side: their accuracies drawn, and the claims that one is better than another, or as good."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from fullrank.reproduce.directclr.paired import difference
from fullrank.reproduce.directclr.study import LABELS, per_seed
from fullrank.reproduce.figure import Claim, Rows

if TYPE_CHECKING:
    import matplotlib.axes

EQUAL = 0.02  # accuracies closer than this are one: those that the paper calls the same differ by up to 0.9 points
NOT_RESOLVED = ": not resolved"


def draw_accuracies(axis: "matplotlib.axes.Axes", rows: Rows, paper: Mapping[str, float]) -> None:
    """Draw a line a projector: a dot a seed, a bar for their mean, and the paper's percentage at the right."""
    for place, (name, percentage) in enumerate(paper.items()):
        percentages = [100 * accuracy for accuracy in per_seed(rows[name], "accuracy", "whole")]
        mean = sum(percentages) / len(percentages)
        axis.plot([mean, mean], [place - 0.3, place + 0.3], color="C0", linewidth=1.5)
        axis.plot(percentages, [place] * len(percentages), "o", color="C0", markersize=4, alpha=0.6)
        axis.annotate(f"paper: {percentage}", (1.02, place), xycoords=("axes fraction", "data"), va="center", fontsize=8, color="gray")
    axis.set_yticks(range(len(paper)), [LABELS[name] for name in paper])
    axis.invert_yaxis()
    axis.margins(y=0.1)
    axis.set_xlabel("accuracy of a linear probe of r, % (dots: seeds, bars: mean)")


def higher(
    statement: str,
    a: Sequence[float],
    b: Sequence[float],
    *,
    unit: str = " points",
    scale: float = 100.0,
    paper: str = "",
    corrected: bool = False,
) -> Claim:
    """Return the claim that a is more than b, paired by seed: the interval of the differences is above zero."""
    found = difference(a, b)
    return Claim(
        statement,
        expected="95 % interval above 0" + paper,
        measured=found.text(unit, scale=scale) + ("" if found.beyond(0.0) else NOT_RESOLVED),
        holds=found.positive,
        corrected=corrected,
    )


def better(rows: Rows, a: str, b: str, paper: Mapping[str, float]) -> Claim:
    """Return the claim that r is worth more behind `a` than behind `b`."""
    accuracies = (per_seed(rows[name], "accuracy", "whole") for name in (a, b))
    return higher(f"{LABELS[a]} beats {LABELS[b]}", *accuracies, paper=f"; {paper[a] - paper[b]:+.1f} points in the paper")


def equal(rows: Rows, a: str, b: str, paper: Mapping[str, float]) -> Claim:
    """Return the claim that r is worth as much behind `a` as behind `b`: the whole interval is within ±`EQUAL`."""
    found = difference(*(per_seed(rows[name], "accuracy", "whole") for name in (a, b)))
    resolved = found.within(EQUAL) or found.beyond(EQUAL)
    return Claim(
        f"{LABELS[a]} is as good as {LABELS[b]}",
        expected=f"95 % interval within ±{100 * EQUAL:.0f} points; {paper[a] - paper[b]:+.1f} in the paper",
        measured=found.text(" points", scale=100.0) + ("" if resolved else NOT_RESOLVED),
        holds=found.within(EQUAL),
    )


def draw_spectra(axis: "matplotlib.axes.Axes", runs: Sequence[Rows], place: str, *, color: str, label: str, scaled: bool = False) -> None:
    """Draw the eigenvalues of the covariance at a place, a line a seed; `scaled`: as shares of the largest."""
    for number, run in enumerate(runs):
        found = run[place]
        largest = found["eigenvalues"][0] if scaled else 1.0
        shown = [value / largest for value in found["eigenvalues"]]
        axis.plot(found["index"], shown, color=color, linewidth=1.2, alpha=0.7, label=None if number else label)
