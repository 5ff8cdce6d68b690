"""Titles and captions of figures."""

import re
import textwrap
from collections.abc import Callable, Sequence

from fullrank.plot_style import MATPLOTLIB_STYLE
from fullrank.reproduce.figure import MplFigure, Rows


def draw_with_caption(plot: Callable[[Rows], MplFigure], rows: Rows, *, title: str, lines: Sequence[str]) -> MplFigure:
    """Return the plot of `rows` with a title above and the lines of a caption below."""
    from matplotlib import rc_context

    with rc_context(MATPLOTLIB_STYLE):
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
