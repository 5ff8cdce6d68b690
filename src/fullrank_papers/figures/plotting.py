"""Parts of plots that several figures share, and their titles and captions."""

import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from fullrank.report.plot_style import MATPLOTLIB_STYLE, THEORY_LINE
from fullrank_papers.figures.figure import MplFigure, Rows


def draw_with_caption(plot: Callable[[Rows], MplFigure], rows: Rows, *, title: str, lines: Sequence[str]) -> MplFigure:
    """Return the plot of `rows` with a title above and the lines of a caption below."""
    from matplotlib import rc_context

    with rc_context(MATPLOTLIB_STYLE):
        figure = plot(rows)
        width = int(figure.get_figwidth() * 16.5)  # in characters of the caption's font
        figure.suptitle(title, x=0.01, ha="left", fontsize=10, fontweight="bold")
        unbroken = (
            re.sub(" ([=±]) ", "\N{NO-BREAK SPACE}\\1\N{NO-BREAK SPACE}", line) for line in lines
        )  # "n = 3" stays on one line
        caption = "\n".join(textwrap.fill(line, width, subsequent_indent="    ") for line in unbroken)
        figure.text(0.01, -0.02, caption, ha="left", va="top", fontsize=8, linespacing=1.4)
    return figure


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
