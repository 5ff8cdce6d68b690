"""How the papers' figures are drawn, with the style of all figures."""

import io
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from fullrank.plot_style import COLORS, MATPLOTLIB_STYLE, color_scale, label_ends, plot_band, subplots

if TYPE_CHECKING:
    import matplotlib.figure

__all__ = ["COLORS", "MATPLOTLIB_STYLE", "color_scale", "label_ends", "plot_band", "subplots"]  # of all figures

# Theoretical curves, which are drawn above measured ones.
THEORY_LINE: dict[str, Any] = {"color": "black", "linestyle": "--", "linewidth": 0.8, "zorder": 3}


def plot_runs(axis: Any, x: Sequence, runs: Iterable[Sequence], *, label: str | None = None, **style: Any) -> None:
    """Draw one line, or several lines (points, lines), per run in the same style, with one label for all."""
    for k, values in enumerate(runs):
        axis.plot(x, values, **style)[0].set_label(None if k else label)


def add_theory_legend(axis: Any, label: str, **position: Any) -> None:
    """Draw the legend of an axis, with an entry for the theoretical curves."""
    axis.plot([], [], **THEORY_LINE, label=label)
    axis.legend(**position)


def plot_dots(axis: Any, rows: Sequence[tuple[str, Sequence[float]]], *, notes: Sequence[str] = ()) -> None:
    """Draw one line for each (label, numbers): a dot per seed and a bar for the mean; `notes` stand on the right."""
    for place, (_, numbers) in enumerate(rows):
        if numbers:
            axis.plot([sum(numbers) / len(numbers)] * 2, [place - 0.35, place + 0.35], color="C0", linewidth=1.5)
        axis.plot(numbers, [place] * len(numbers), "o", color="C0", markersize=3, alpha=0.6)
    axis.set_yticks(range(len(rows)), [label for label, _ in rows])
    axis.set_ylim(max(len(rows), 1) - 0.5, -0.5)
    axis.grid(axis="x", alpha=0.3)
    if notes:
        right = axis.secondary_yaxis("right")
        right.set_yticks(range(len(rows)), notes)
        right.tick_params(length=0, labelsize=7, labelcolor="dimgray")
        right.spines["right"].set_visible(False)


def to_svg(figure: "matplotlib.figure.Figure") -> str:
    """Return the figure as an SVG element that fills the width of a web page's column.

    >>> to_svg(subplots()[0])[:4]
    '<svg'
    """
    from matplotlib import rc_context

    file = io.StringIO()
    with rc_context(MATPLOTLIB_STYLE):
        figure.savefig(file, format="svg", bbox_inches="tight", metadata={"Date": None})
    element = file.getvalue()[file.getvalue().index("<svg") :]
    tag, rest = element.split(">", 1)
    return re.sub(r' (width|height)="[^"]*"', "", tag).replace("<svg", '<svg width="100%"', 1) + ">" + rest
