"""Functions that all plotly figures of a report use: traces, layout, ranges, and downsampling, which keeps the page
small.
"""

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

import numpy as np
from jaxtyping import Float

from fullrank.report.plot_style import BOTTOM_MARGIN, FONT, LEGEND_HEIGHT, run_line

Figure = dict[str, Any]
"""The JSON that plotly.js draws: `data` and `layout`; the spectrum figure also has `frames`, one for each position of
the slider."""

DECADES = 10
"""Eigenvalues below 10^−DECADES of the largest are rounding errors."""


def line_trace(i: int, label: str, *, faint: bool = False, markers: bool = False) -> dict[str, Any]:
    """Return the style of a line of the i-th run, without points."""
    style = run_line(i)
    return {
        "type": "scatter",
        "mode": "lines+markers" if markers else "lines",
        "name": escape_label(label),
        "legendgroup": str(i),
        "showlegend": not faint,
        "opacity": 0.4 if faint else 1.0,
        "line": style | {"width": 1.25 if faint else 2},
        "marker": {"color": style["color"], "size": 4},
    }


def figure_layout(inner: int, *, runs: int) -> dict[str, Any]:
    """Return the layout of a figure, `inner` pixels high between its margins, with a legend if there are several
    runs.
    """
    top = LEGEND_HEIGHT if runs > 1 else 0
    return {
        "height": top + inner + BOTTOM_MARGIN,
        "margin": {"l": 52, "r": 10, "t": top, "b": BOTTOM_MARGIN},
        "font": dict(FONT),
        "showlegend": runs > 1,
        "legend": {"orientation": "h", "x": 0, "y": 1, "yanchor": "bottom"},
        "hovermode": "x unified",
        "uirevision": "keep",
    }


def panel_title(text: str, top: float) -> dict[str, Any]:
    """Return the title of the panel that ends at `top`, a fraction of the figure's height."""
    position = {"xref": "paper", "yref": "paper", "x": 0, "y": top, "xanchor": "left", "yanchor": "bottom"}
    return {"text": f"<b>{escape_label(text)}</b>", "showarrow": False} | position


def log_range(tables: Iterable[Float[np.ndarray, "_ _"]]) -> list[float]:
    """Return the smallest and the largest power of ten of an axis that shows all positive eigenvalues except rounding
    errors.

    Args:
        tables: spectra, one per row.

    >>> log_range([np.array([[10.0, 1e-3], [1.0, 0.0]])])
    [-3.3, 1.3]
    """
    spectra = [
        np.log10(values) for table in tables for row in table if len(values := row[np.isfinite(row) & (row > 0)])
    ]
    if not spectra:
        return [-1.0, 1.0]
    bottom = min(max(values.min(), values.max() - DECADES) for values in spectra)
    return [round(float(bottom) - 0.3, 2), round(float(max(values.max() for values in spectra)) + 0.3, 2)]


def mask_rounding_errors(eigenvalues: Float[np.ndarray, "... D"]) -> Float[np.ndarray, "... D"]:
    """Replace zeros and rounding errors by NaN, relative to the largest eigenvalue of each row; rows are in descending
    order.

    >>> mask_rounding_errors(np.array([[1e12, 1.0], [1.0, 1e-3], [0.0, 0.0]])).tolist()
    [[1000000000000.0, nan], [1.0, 0.001], [nan, nan]]
    """
    return np.where(eigenvalues > eigenvalues[..., :1] * 10.0**-DECADES, eigenvalues, np.nan)


def describe_figure(figure: Figure) -> str:
    """Return the text of a figure for screen readers: the first and the last point of each curve, and all alarms.

    A figure that is no line chart brings its own text, `description` in the `meta` of its layout.
    """
    if description := figure["layout"].get("meta", {}).get("description"):
        return description
    axis = figure["layout"]["xaxis"]["title"]["text"]
    curves = []
    for trace in figure["data"]:
        if texts := trace["meta"].get("texts"):
            curves += [
                f"alarm of {trace['meta']['run']} at {axis} {x}: {text}"
                for x, text in zip(trace["x"], texts, strict=True)
            ]
            continue
        points = [(x, y) for x, y in zip(trace["x"], trace["y"], strict=True) if y is not None]
        if points and trace["opacity"] == 1.0:
            (x0, y0), (x1, y1) = points[0], points[-1]
            curves.append(
                f"{trace['meta']['quantity']} of {trace['meta']['run']}: {y0:g} at {axis} {x0}, {y1:g} at {x1}"
            )
    return f"Line chart. {'; '.join(curves)}."


def spread_indices(n: int, at_most: int) -> list[int]:
    """Return at most `at_most` (two or more) of the indices 0 … n−1, evenly spread, with the first and the last.

    >>> spread_indices(10, 4), spread_indices(3, 4)
    ([0, 3, 6, 9], [0, 1, 2])
    """
    return np.linspace(0, n - 1, min(n, max(at_most, 2))).round().astype(int).tolist()


def envelope_indices(values: Sequence[float | None], at_most: int) -> list[int]:
    """Return at most about `at_most` indices of a curve that keep its peaks: of each stretch, the smallest and the
    largest value.

    The first and the last value stay too, and of the values that are None or not finite one of each stretch, as a gap.

    >>> envelope_indices([0.0, 9.0, 1.0, 2.0, 1.0, 2.0, -5.0, 2.0, 3.0], 6)
    [0, 1, 2, 5, 6, 8]
    """
    n = len(values)
    if n <= max(at_most, 2):
        return list(range(n))
    y = np.array([np.nan if value is None else value for value in values], dtype=float)
    kept = {0, n - 1}
    for stretch in np.array_split(np.arange(1, n - 1), max(at_most // 2 - 1, 1)):
        finite = stretch[np.isfinite(y[stretch])]
        if len(finite):
            kept |= {int(finite[y[finite].argmin()]), int(finite[y[finite].argmax()])}
        if len(finite) < len(stretch):
            kept.add(int(stretch[~np.isfinite(y[stretch])][0]))
    return sorted(kept)


def round_significant(value: int | float | None, *, digits: int = 4) -> float | None:
    """Round to a number of significant digits; return None, which plotly draws as a gap, if the value is not finite.

    >>> round_significant(0.000123456), round_significant(5.548321, digits=6), round_significant(float("inf"))
    (0.0001235, 5.54832, None)
    """
    return float(f"{value:.{digits}g}") if value is not None and np.isfinite(value) else None


def escape_label(text: str) -> str:
    """Escape text for plotly: its labels can contain a subset of HTML, and %{x} as a field.

    >>> escape_label("<b>%{x}")
    '&lt;b&gt;%&#123;x}'
    """
    return escape(text, quote=False).replace("%{", "%&#123;")
