"""The style of all figures: colours and dashes of runs, settings of matplotlib."""

from pathlib import Path
from string import ascii_lowercase
from typing import TYPE_CHECKING, Any

from fullrank.files import atomic_write

if TYPE_CHECKING:
    import matplotlib.figure
    import numpy as np

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


def save_figure(figure: "matplotlib.figure.Figure", path: Path) -> list[Path]:
    """Write a figure as PATH.svg, PATH.pdf and PATH.png, replacing existing files, and return the paths.

    Raises:
        UserError: the folder cannot be written.
    """
    for suffix, metadata in FORMATS.items():
        with atomic_write(path.with_name(f"{path.name}.{suffix}"), overwrite=True) as draft:
            figure.savefig(draft, format=suffix, bbox_inches="tight", metadata=metadata)
    return [path.with_name(f"{path.name}.{suffix}") for suffix in FORMATS]
