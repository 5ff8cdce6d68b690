"""Parts of plots that several figures share, and their titles and captions."""

import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from fullrank.plot_style import MATPLOTLIB_STYLE, THEORY_LINE
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


def plot_runs(axis: Any, x: Sequence, runs: Iterable[Sequence], *, label: str | None = None, **style: Any) -> None:
    """Draw one line, or several lines (points, lines), per run in the same style, with one label for all."""
    for values in runs:
        first, *_ = axis.plot(x, values, **style)
        first.set_label(label)
        label = None


def add_theory_legend(axis: Any, label: str, **position: Any) -> None:
    """Draw the legend of an axis, with an entry for the theoretical curves."""
    axis.plot([], [], **THEORY_LINE, label=label)
    axis.legend(**position)
