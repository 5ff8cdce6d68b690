"""The style of all figures: colours of runs, settings of matplotlib, labels at the ends of lines, bands over seeds."""

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from string import ascii_lowercase
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from fullrank.files import atomic_write

if TYPE_CHECKING:
    import matplotlib.figure
    import numpy as np

P = ParamSpec("P")
T = TypeVar("T")
# Each colour has a contrast above 3:1 (WCAG 1.4.11) with a white page and with the dark page of the report, so that a
# run keeps its colour. Two colours differ by ΔE ≥ 16 (CIE 1976), also in deuteranopia and protanopia (Machado 2009).
COLORS = ("#1554fc", "#d27e00", "#007e54", "#a83f93", "#6993d2", "#bd3f00", "#939393", "#e73f69")

MATPLOTLIB_STYLE: dict[Any, Any] = {
    "axes.prop_cycle": f"cycler('color', {list(COLORS)})",
    "svg.fonttype": "none",  # text stays text
    "pdf.fonttype": 42,  # fonts are embedded whole
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


# File format of a saved figure → metadata: without the date, equal figures are equal files.
FORMATS: dict[str, Any] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": None}


def subplots(
    rows: int = 1, columns: int = 1, *, width: float = 9.0, height: float = 3.2, **shared: Any
) -> "tuple[matplotlib.figure.Figure, np.ndarray]":
    """Return a matplotlib figure of `width` × `height` inches and its axes (rows, columns), with a letter for each if
    there are several; `shared` as in matplotlib: `sharex=True`.

    >>> subplots(1, 3)[1].shape
    (1, 3)
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure  # pyplot would keep the figure and ask for a display

    with rc_context(MATPLOTLIB_STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False, **shared)
        for letter, axis in zip(ascii_lowercase[: axes.size if axes.size > 1 else 0], axes.flat, strict=False):
            axis.annotate(letter, (0, 1), (-26, 6), "axes fraction", "offset points", weight="bold")
        return figure, axes


def styled(draw: Callable[P, T]) -> Callable[P, T]:
    """Return a function that draws in the style of all figures: titles and legends are made in it too."""

    @functools.wraps(draw)
    def draw_in_style(*arguments: P.args, **options: P.kwargs) -> T:
        from matplotlib import rc_context

        with rc_context(MATPLOTLIB_STYLE):
            return draw(*arguments, **options)

    return draw_in_style


def color_scale(n: int) -> list[tuple[float, float, float, float]]:
    """Return n colors from dark to light, all visible on white paper.

    >>> len(color_scale(3))
    3
    """
    from matplotlib import colormaps

    return [colormaps["viridis"](0.9 * k / max(1, n - 1)) for k in range(n)]


def plot_band(axis: Any, x: Sequence[float], values: "np.ndarray", *, color: str, **style: Any) -> None:
    """Draw the mean of several runs (runs, x) as a line, and a band of ± the standard deviation over the runs."""
    mean, sd = values.mean(0), values.std(0, ddof=min(1, len(values) - 1))
    axis.plot(x, mean, color=color, **style)
    axis.fill_between(x, mean - sd, mean + sd, color=color, alpha=0.15, linewidth=0)


def label_ends(*axes: Any, gap: float = 10.0) -> None:
    """Write the label of each line of some axes of a figure at its last visible point, in its colour, instead of a
    legend. Labels keep a distance of `gap` points: they have the nearest places (least squares) in the same order.
    """
    import numpy as np
    from scipy.optimize import isotonic_regression

    axes[0].figure.draw_without_rendering()  # sets the size of the axes
    for axis in axes:
        low, high = axis.get_ylim()
        named = (line for line in axis.get_lines() if line.get_label()[0] != "_")
        seen = [(line, [(x, y) for x, y in line.get_xydata() if low <= y <= high]) for line in named]
        lines, ends = [line for line, points in seen if points], [max(points) for _, points in seen if points]
        heights = axis.transData.transform(np.reshape(ends, (-1, 2)))[:, 1] * 72 / axis.figure.dpi  # in points
        bottom, top = (edge * 72 / axis.figure.dpi for edge in (axis.bbox.y0, axis.bbox.y1))
        order, steps = np.argsort(heights), gap * np.arange(len(lines))
        places = isotonic_regression(heights[order] - steps).x.clip(bottom + gap / 2, top - steps[-1:].sum()) + steps
        for k, shift in zip(order, places - heights[order], strict=True):
            text = axis.annotate(lines[k].get_label(), ends[k], (5, shift), textcoords="offset points", va="center")
            text.set(color=lines[k].get_color(), fontsize=8, annotation_clip=False)


def save_figure(figure: "matplotlib.figure.Figure", path: Path) -> list[Path]:
    """Write a figure as PATH.svg, PATH.pdf and PATH.png, replacing existing files, and return the paths.

    Raises:
        UserError: the folder cannot be written.
    """
    for suffix, metadata in FORMATS.items():
        with atomic_write(path.with_name(f"{path.name}.{suffix}"), overwrite=True) as draft:
            figure.savefig(draft, format=suffix, bbox_inches="tight", metadata=metadata)
    return [path.with_name(f"{path.name}.{suffix}") for suffix in FORMATS]
