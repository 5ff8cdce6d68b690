"""The style of the figures. They are drawn without a display."""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from fullrank.reproduce.figure import MplFigure, Rows

if TYPE_CHECKING:
    import numpy as np

STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # keep text as text
    "svg.hashsalt": "fullrank",  # the same rows give the same file
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "lines.linewidth": 1.2,
    "figure.constrained_layout.wspace": 0.06,  # keeps the labels of neighbouring axes apart
    "savefig.dpi": 150,
    "savefig.facecolor": "white",
}
THEORY_LINE: dict[str, Any] = {"color": "black", "linestyle": "--", "linewidth": 0.8, "zorder": 3}
"""Style of theory curves. They are drawn over measured curves."""


def subplots(rows: int = 1, columns: int = 1, *, width: float = 9.0, height: float = 3.2, **shared: Any) -> tuple[MplFigure, np.ndarray]:
    """Return a figure of `width` × `height` inches and its axes (rows, columns); `shared` goes to matplotlib, such as `sharex=True`.

    >>> subplots(1, 3)[1].shape
    (1, 3)
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure  # not pyplot: it stores figures and needs a display

    with rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        return figure, figure.subplots(rows, columns, squeeze=False, **shared)


def color_scale(n: int) -> list[tuple[float, float, float, float]]:
    """Return n colors from dark to light, all visible on white paper.

    >>> len(color_scale(3))
    3
    """
    from matplotlib import colormaps

    return [colormaps["viridis"](0.9 * k / max(1, n - 1)) for k in range(n)]


def draw_with_caption(plot: Callable[[Rows], MplFigure], rows: Rows, *, title: str, lines: Sequence[str]) -> MplFigure:
    """Return the plot of `rows` with a title above and the lines of a caption below."""
    from matplotlib import rc_context

    with rc_context(STYLE):
        figure = plot(rows)
        width = int(figure.get_figwidth() * 16.5)  # in characters of the caption's font
        figure.suptitle(title, x=0.01, ha="left", fontsize=10, fontweight="bold")
        caption = "\n".join(textwrap.fill(use_no_break_spaces(line), width, subsequent_indent="    ") for line in lines)
        figure.text(0.01, -0.02, caption, ha="left", va="top", fontsize=8, linespacing=1.4)
    return figure


def use_no_break_spaces(line: str) -> str:
    r"""Return a line with no-break spaces around = and ±, so that "n = 3" is not broken.

    >>> use_no_break_spaces("n = 3").split(" ")
    ['n\xa0=\xa03']
    """
    return re.sub(" ([=±]) ", "\N{NO-BREAK SPACE}\\1\N{NO-BREAK SPACE}", line)


def to_svg(figure: MplFigure) -> str:
    """Return the figure as an SVG element that fills the width of a web page's column.

    >>> to_svg(subplots()[0])[:4]
    '<svg'
    """
    from matplotlib import rc_context

    file = io.StringIO()
    with rc_context(STYLE):
        figure.savefig(file, format="svg", bbox_inches="tight", metadata={"Date": None})
    element = file.getvalue()[file.getvalue().index("<svg") :]
    tag, rest = element.split(">", 1)
    return re.sub(r' (width|height)="[^"]*"', "", tag).replace("<svg", '<svg width="100%"', 1) + ">" + rest
