"""The style of the papers' figures, beside that of all figures."""

import io
import re
from typing import TYPE_CHECKING, Any

from fullrank.report.plot_style import MATPLOTLIB_STYLE

if TYPE_CHECKING:
    import matplotlib.figure

# Theoretical curves, which are drawn above measured ones.
THEORY_LINE: dict[str, Any] = {"color": "black", "linestyle": "--", "linewidth": 0.8, "zorder": 3}


def color_scale(n: int) -> list[tuple[float, float, float, float]]:
    """Return n colors from dark to light, all visible on white paper.

    >>> len(color_scale(3))
    3
    """
    from matplotlib import colormaps

    return [colormaps["viridis"](0.9 * k / max(1, n - 1)) for k in range(n)]


def to_svg(figure: "matplotlib.figure.Figure") -> str:
    """Return the figure as an SVG element that fills the width of a web page's column.

    >>> from fullrank.report.plot_style import subplots
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
