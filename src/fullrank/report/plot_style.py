"""The style of all figures: colours of runs, axes of plotly's figures, settings of matplotlib's."""

import io
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import matplotlib.figure
    import numpy as np

# Each colour has a contrast above 3:1 (WCAG 1.4.11) with a white page and with the dark page of the report, so that a
# run keeps its colour.
COLORS = ("#2f7fd1", "#d9541e", "#1a9a64", "#9a62d0", "#a87b00", "#d0478f", "#0e93a3", "#7a8088")
DASHES = ("solid", "dash", "dot", "dashdot")
"""Plotly's names of dashes. The runs after the last colour start again at the first colour, with the next dash."""

# Pixels of a plotly figure: a panel, the space above it for its title, a legend, the margin below.
PANEL_HEIGHT, PANEL_GAP, LEGEND_HEIGHT, BOTTOM_MARGIN = 150, 42, 30, 48

FONT: dict[str, Any] = {"family": "system-ui, sans-serif", "size": 12}
LOG_AXIS: dict[str, Any] = {"type": "log", "exponentformat": "power", "tickfont": {"size": 10}}
"""A logarithmic axis of a plotly figure."""

MATPLOTLIB_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "fullrank",  # the same data give the same file
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "lines.linewidth": 1.2,
    "figure.constrained_layout.wspace": 0.06,  # space between the labels of neighbouring axes
    "savefig.dpi": 150,
    "savefig.facecolor": "white",
}
THEORY_LINE: dict[str, Any] = {"color": "black", "linestyle": "--", "linewidth": 0.8, "zorder": 3}
"""The style of theoretical curves, which are drawn above measured ones."""


def run_line(i: int) -> dict[str, str]:
    """Return the colour and the dash of the i-th run in plotly's figures.

    >>> run_line(8)
    {'color': '#2f7fd1', 'dash': 'dash'}
    """
    return {"color": COLORS[i % len(COLORS)], "dash": DASHES[i // len(COLORS) % len(DASHES)]}


def subplots(
    rows: int = 1, columns: int = 1, *, width: float = 9.0, height: float = 3.2, **shared: Any
) -> "tuple[matplotlib.figure.Figure, np.ndarray]":
    """Return a matplotlib figure of `width` × `height` inches and its axes (rows, columns); `shared` as in matplotlib:
    `sharex=True`.

    >>> subplots(1, 3)[1].shape
    (1, 3)
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure  # pyplot would keep the figure and ask for a display

    with rc_context(MATPLOTLIB_STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        return figure, figure.subplots(rows, columns, squeeze=False, **shared)


def color_scale(n: int) -> list[tuple[float, float, float, float]]:
    """Return n colors from dark to light, all visible on white paper.

    >>> len(color_scale(3))
    3
    """
    from matplotlib import colormaps

    return [colormaps["viridis"](0.9 * k / max(1, n - 1)) for k in range(n)]


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
