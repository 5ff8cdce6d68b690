"""The figures of a report as data of plotly.js: dicts with `data`, `layout` and, for the spectra, `frames`.

Colours of the page (paper, ink, grid) are not in them: the script of the page adds those of its light or dark scheme.
"""

from collections.abc import Callable, Iterable, Sequence
from html import escape
from operator import attrgetter
from textwrap import wrap
from typing import Any

import numpy as np
from jaxtyping import Float

from fullrank.evaluation.score import MAIN_METRICS, Evaluation, Score
from fullrank.report.plot_style import COLORS, DASHES
from fullrank.report.summary import RunSummary, series
from fullrank.run.spectrum_history import LOCATIONS

Figure = dict[str, Any]
# Title, settings of the vertical axis, curves.
Panel = tuple[str, dict[str, Any], list[dict[str, Any]]]

# Pixels: height of a panel, space above it for its title, margin below the last.
PANEL, GAP, BOTTOM = 150, 42, 48
# Number of points of one quantity, over all runs; a longer curve is drawn by its smallest and largest values.
MAX_POINTS = 5_000
# Number of points of one curve: two for each pixel of the width.
MAX_POINTS_OF_CURVE = 2_000
# Limits that keep the page small: positions of the slider, eigenvalues of a spectrum, eigenvalues of all runs together.
MAX_POSITIONS, MAX_EIGENVALUES, MAX_NUMBERS = 60, 1024, 60_000
# Eigenvalues below 10^−DECADES of the largest are rounding errors.
DECADES = 10
# Eigenvalues shown over training; the 14th is the last in the figures of Skean et al. 2024. Several runs show every
# fourth.
EIGENVALUE_INDICES = (1, 2, 4, 8, 14, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
PERCENT: dict[str, Any] = {"tickformat": ".3~p", "nticks": 5}
LOG: dict[str, Any] = {"type": "log", "exponentformat": "power", "tickfont": {"size": 10}, "nticks": 6}


def losses(runs: Sequence[RunSummary]) -> Figure | None:
    """Return the loss and each of its weighted terms over the steps, one panel each."""
    held_out = _curves(runs, "spectrum", "loss, held-out images", attrgetter("held_out_loss"), points=True)
    trained = _curves(runs, "train", "loss", attrgetter("loss"), faint=bool(held_out))
    axis = {"exponentformat": "power", "nticks": 5}
    panels: list[Panel] = [("loss (the sum of its terms)", axis, held_out + trained)]
    for term in dict.fromkeys(term for run in runs for row in run.train for term in row.terms):
        panels.append((term, axis, _curves(runs, "train", term, lambda row, term=term: row.terms.get(term))))
    return _over_steps(runs, panels)


def progress(runs: Sequence[RunSummary]) -> Figure | None:
    """Return accuracies of the probes, agreement of views, effective ranks and collapsed dimensions over the steps."""
    held_out = _curves(runs, "spectrum", "held-out images", attrgetter("probe_accuracy"), points=True, form=".1%")
    batch = _curves(runs, "train", "training batch", attrgetter("probe_train_accuracy"), faint=True, form=".1%")
    test = _curves(runs, "online", "top 1", attrgetter("accuracy"), points=True, form=".1%")
    test += _curves(runs, "online", "top 5", attrgetter("top5"), points=True, faint=True, form=".1%")
    agreement = _curves(runs, "spectrum", "agreement", attrgetter("intraclass_correlation"), points=True, form=".1%")
    panels: list[Panel] = [
        ("accuracy of the online linear probe", PERCENT, held_out + batch),
        ("accuracy on all test images", PERCENT, test),
        ("agreement of the views", PERCENT, agreement),
    ]
    for metric in ("effective_rank", "collapsed_dimensions"):
        for location in LOCATIONS:
            name = f"{metric.replace('_', ' ')}, {location}"
            curves = _curves(runs, "spectrum", name, attrgetter(f"{location}.{metric}"), points=True)
            if metric == "effective_rank" and location == "projector":
                curves += _curves(runs, "train", f"{name}, training batch", attrgetter(metric), faint=True)
            if metric == "effective_rank" or any(any(curve["y"]) for curve in curves):
                panels.append((name, {"nticks": 5, "rangemode": "tozero"}, curves))
    return _over_steps(runs, panels)


def eigenvalues(runs: Sequence[RunSummary]) -> Figure | None:
    """Return some eigenvalues of both locations over the steps, on a logarithmic axis."""
    panels: list[Panel] = []
    for location in LOCATIONS:
        found = _tables(runs, location)
        width = max((table.shape[1] for _, table in found.values()), default=0)
        indices = [j for j in EIGENVALUE_INDICES[:: 1 if len(runs) == 1 else 4] if j <= width]
        opacities = np.linspace(1.0, 0.45, max(len(indices), 1)).round(2).tolist()
        curves = [
            _line(i, runs, f"λ{j}", steps, mask_rounding_errors(table)[:, j - 1], form=".3~g") | {"opacity": opacity}
            for j, opacity in zip(indices, opacities, strict=False)
            for i, (steps, table) in found.items()
            if j <= table.shape[1]
        ]
        shown = (table[:, [j - 1 for j in indices if j <= table.shape[1]]] for _, table in found.values())
        axis = LOG | {"range": log_range(shown)}
        panels.append((f"eigenvalues {', '.join(map(str, indices))}, {location}", axis, curves))
    return _over_steps(runs, panels)


def spectrum(runs: Sequence[RunSummary]) -> Figure | None:
    """Return the eigenvalues of both locations against their index, with a slider over the steps.

    The curves are the last spectrum of each run and, faint, its first. Each frame replaces the last ones by those of
    another step. Several runs are matched by the share of their training: the positions are those of the run with the
    most spectra.
    """
    known = {i: run.spectra.steps for i, run in enumerate(runs) if run.spectra}
    if not known:
        return None
    shares = {i: steps / max(1, steps[-1]) for i, steps in known.items()}
    longest = max(shares.values(), key=len)
    positions = spread(len(longest), MAX_POSITIONS)
    at_most = min(MAX_EIGENVALUES, MAX_NUMBERS // (len(LOCATIONS) * len(positions) * len(runs)))
    panels: list[Panel] = []
    frames: list[list[list[float | None]]] = [[] for _ in positions]
    faint, ranges = [], []
    for location in [name for name in LOCATIONS if _tables(runs, name)]:
        shown = {i: table for i, (_, table) in _tables(runs, location).items()}
        curves = []
        for i, table in shown.items():
            indices = spread(table.shape[1], at_most)
            table = np.maximum(table[:, indices], 0.0)  # a negative eigenvalue of a covariance is a rounding error
            numbers = [j + 1 for j in indices]
            curves.append(_line(i, runs, "eigenvalue", numbers, table[-1], form=".3~g"))
            first = _line(i, runs, "first eigenvalue", numbers, table[0], faint=True) | {"hoverinfo": "skip"}
            faint.append(first | {"yaxis": _axis("y", len(panels))})
            for frame, position in zip(frames, positions, strict=True):
                frame.append(_rounded(table[int(np.abs(shares[i] - longest[position]).argmin())], 4))
        ranges.append(log_range(table / np.where(table[:, :1] > 0, table[:, :1], 1.0) for table in shown.values()))
        panels.append((f"eigenvalues, {location}", LOG | {"range": log_range(shown.values())}, curves))
    figure = _stack(runs, panels, height=2 * PANEL, gap=GAP + BOTTOM)
    assert figure is not None
    steps = next(iter(known.values()))
    names = [f"{steps[k]:,}" if len(runs) == 1 else f"{100 * longest[k]:.0f} %" for k in positions]
    jump = {"mode": "immediate", "transition": {"duration": 0}, "frame": {"duration": 0, "redraw": True}}
    slider = {
        "active": len(positions) - 1,
        "currentvalue": {"prefix": "step " if len(runs) == 1 else "share of the training: "},
        "steps": [{"label": name, "method": "animate", "args": [[str(k)], jump]} for k, name in enumerate(names)],
        "pad": {"t": 56},
        "x": 0.2,
        "len": 0.8,
    }
    play = {"label": "Play", "method": "animate", "args": [None, jump | {"frame": {"duration": 120, "redraw": True}}]}
    menu = {"type": "buttons", "showactive": False, "buttons": [play], "x": 0, "xanchor": "left"}
    menu |= {"y": 0, "yanchor": "top", "pad": {"t": 62}}
    figure["layout"] |= {"sliders": [slider], "updatemenus": [menu], "height": figure["layout"]["height"] + 106}
    figure["data"] += faint
    for k in range(len(ranges)):  # the widths of the locations differ, so each has its own horizontal axis
        axis = {"title": {"text": "index of the eigenvalue"}, "anchor": _axis("y", k)}
        figure["layout"][_axis("xaxis", k)] = axis
    for trace in figure["data"]:
        trace["xaxis"] = trace["yaxis"].replace("y", "x")
    figure["frames"] = [{"name": str(k), "data": [{"y": y} for y in frame]} for k, frame in enumerate(frames)]
    return figure | {"relative_ranges": ranges}


def few_shot(runs: Sequence[RunSummary]) -> Figure | None:
    """Return the accuracy over the number of labels per class, with intervals: a line for each feature set of one run,
    or for the backbone of each of several runs.

    All lines are of one data set: the most relevant of the first run that has a curve of at least two points.
    """
    found = [(run, each) for run in runs for each in run.evaluations_by_relevance() if len(_few_shot(each)) > 1]
    if not found:
        return None
    data = found[0][1].data
    if len(runs) == 1:
        evaluation = found[0][1]
        names = dict.fromkeys(score.features for score in evaluation.scores)
        curves = [(i, name, _few_shot(evaluation, name)) for i, name in enumerate(names)]
    else:
        of = {run.label: _few_shot(each) for run, each in reversed(found) if each.data == data}
        curves = [(i, run.label, of[run.label]) for i, run in enumerate(runs) if run.label in of]
    traces = []
    for i, label, scores in curves:
        ends = [(score.value, score.low or score.value, score.high or score.value) for score in scores.values()]
        bars = {"array": [high - y for y, _, high in ends], "arrayminus": [y - low for y, low, _ in ends]}
        line = _line(i, runs, label, list(scores), np.array([y for y, *_ in ends]), points=True, form=".1%")
        traces.append(line | {"name": label, "error_y": {"type": "data", "thickness": 1, "width": 3} | bars})
    figure = _stack(runs, [(f"accuracy on {data or 'the test images'}", PERCENT, traces)], height=210)
    assert figure is not None
    ticks = sorted({n for *_, scores in curves for n in scores})
    axis = {"type": "log", "title": {"text": "labels per class"}, "tickvals": ticks, "ticktext": list(map(str, ticks))}
    legend = {"orientation": "h", "x": 0, "y": -0.4, "yanchor": "top"}
    figure["layout"] |= {"xaxis": figure["layout"]["xaxis"] | axis, "legend": legend, "showlegend": len(runs) == 1}
    return figure


def _few_shot(evaluation: Evaluation, features: str = "backbone") -> dict[int, Score]:
    """Return number of labels per class → score of one feature set, in increasing order."""
    scores = {
        n: score
        for score in evaluation.scores
        if score.probe == "few-shot" and score.metric in MAIN_METRICS and score.features == features
        if isinstance(n := score.settings.get("labels"), int)
    }
    return dict(sorted(scores.items()))


def _curves(
    runs: Sequence[RunSummary], rows: str, name: str, value: Callable[[Any], float | None], **style: Any
) -> list[dict[str, Any]]:
    """Return the curve of a quantity of the rows `train`, `spectrum` or `online` of each run that has it."""
    found = [(i, *series(getattr(run, rows), value)) for i, run in enumerate(runs)]
    return [_line(i, runs, name, steps, values, **style) for i, steps, values in found if steps]


def _line(
    i: int,
    runs: Sequence[RunSummary],
    name: str,
    x: list[int],
    y: Float[np.ndarray, " n"],
    *,
    points: bool = False,
    faint: bool = False,
    form: str = ".6~g",
) -> dict[str, Any]:
    """Return a curve in the colour and the dash of the i-th run; `form` is d3's format of its values."""
    kept = envelope(y, min(MAX_POINTS_OF_CURVE, MAX_POINTS // len(runs)))
    color, label = COLORS[i % len(COLORS)], f"{runs[i].label}: {name}" if len(runs) > 1 else name
    return {
        "type": "scatter",
        "mode": "lines+markers" if points or len(x) == 1 else "lines",
        "name": plain(runs[i].label if len(runs) > 1 else name),
        "meta": [runs[i].label if len(runs) > 1 else runs[0].label, name],
        "legendgroup": str(i),
        "opacity": 0.4 if faint else 1.0,
        "line": {"color": color, "dash": DASHES[i // len(COLORS) % len(DASHES)], "width": 1.25 if faint else 2},
        "marker": {"color": color, "size": 4},
        "hovertemplate": f"%{{y:{form}}}<extra>{plain(label)}</extra>",
        "x": [x[k] for k in kept],
        "y": _rounded(y[kept]),
    }


def _over_steps(runs: Sequence[RunSummary], panels: Sequence[Panel]) -> Figure | None:
    """Return panels over the steps, which all end at the same step, with a line and a mark for each alarm."""
    figure = _stack(runs, panels)
    if figure is None:
        return None
    layout, last = figure["layout"], max([1, *(run.last_step for run in runs)])
    layout["xaxis"] |= {"title": {"text": "step"}, "range": [0, 1.02 * last], "exponentformat": "none"}
    for i, run in enumerate(runs):
        for step in dict.fromkeys(alarm.step for alarm in run.alarms):
            color = COLORS[i % len(COLORS)]
            messages = [line for alarm in run.alarms if alarm.step == step for line in wrap(alarm.message, 90)]
            mark = {"x": step, "yref": "paper", "y": 1, "yanchor": "bottom", "text": "▼", "showarrow": False}
            text = "<br>".join(map(plain, [run.label, *messages] if len(runs) > 1 else messages))
            layout["annotations"].append(mark | {"hovertext": text, "font": {"color": color, "size": 14}})
            line = {"type": "line", "x0": step, "x1": step, "yref": "paper", "y0": 0, "y1": 1, "layer": "below"}
            layout["shapes"].append(line | {"line": {"color": color, "width": 1, "dash": "dot"}})
    return figure


def _stack(
    runs: Sequence[RunSummary], panels: Sequence[Panel], *, height: int = PANEL, gap: int = GAP
) -> Figure | None:
    """Return panels one above the other, without those that have no curve; None without any."""
    panels = [panel for panel in panels if panel[2]]
    if not panels:
        return None
    inner = len(panels) * (height + gap) - gap
    layout: dict[str, Any] = {
        "height": GAP + inner + BOTTOM,
        "margin": {"l": 52, "r": 10, "t": GAP, "b": BOTTOM},
        "showlegend": False,
        "hovermode": "x unified",
        "hoversubplots": "axis" if len(runs) == 1 else "single",  # values of all panels of many runs would cover it
        "uirevision": "keep",
        "xaxis": {"anchor": _axis("y", len(panels) - 1)},
        "annotations": [],
        "shapes": [],
    }
    data = []
    for k, (title, axis, curves) in enumerate(panels):
        top = 1 - k * (height + gap) / inner
        layout[_axis("yaxis", k)] = axis | {"domain": [max(top - height / inner, 0.0), top]}
        heading = {"text": f"<b>{plain(title)}</b>", "xref": "paper", "yref": "paper", "x": 0, "y": top}
        layout["annotations"].append(heading | {"xanchor": "left", "yanchor": "bottom", "showarrow": False})
        data += [curve | {"yaxis": _axis("y", k)} for curve in curves]
    return {"data": data, "layout": layout}


def _axis(letter: str, k: int) -> str:
    """Return plotly's name of the k-th axis: y, y2, y3 …"""
    return letter if k == 0 else f"{letter}{k + 1}"


def _tables(runs: Sequence[RunSummary], location: str) -> dict[int, tuple[list[int], Float[np.ndarray, "T D"]]]:
    """Return the steps and the eigenvalues at a location of each run that has them."""
    spectra = {i: run.spectra for i, run in enumerate(runs) if run.spectra and location in run.spectra.eigenvalues}
    return {i: (found.steps.tolist(), found.eigenvalues[location]) for i, found in spectra.items()}


def plain(text: str) -> str:
    """Escape text for plotly: its labels can contain a subset of HTML, and %{x} as a field.

    >>> plain("<b>%{x}")
    '&lt;b&gt;%&#123;x}'
    """
    return escape(text, quote=False).replace("%{", "%&#123;")


def log_range(tables: Iterable[Float[np.ndarray, "_ _"]]) -> list[float]:
    """Return the powers of ten between which an axis shows all positive eigenvalues except rounding errors.

    >>> log_range([np.array([[10.0, 1e-3], [1.0, 0.0]])])
    [-3.3, 1.3]
    """
    found = [np.log10(values) for table in tables for row in table if len(values := row[np.isfinite(row) & (row > 0)])]
    if not found:
        return [-1.0, 1.0]
    bottom = min(max(values.min(), values.max() - DECADES) for values in found)
    return [round(float(bottom) - 0.3, 2), round(float(max(values.max() for values in found)) + 0.3, 2)]


def mask_rounding_errors(eigenvalues: Float[np.ndarray, "... D"]) -> Float[np.ndarray, "... D"]:
    """Replace zeros and rounding errors by NaN, relative to the largest eigenvalue, which is the first of each row.

    >>> mask_rounding_errors(np.array([[1e12, 1.0], [1.0, 1e-3], [0.0, 0.0]])).tolist()
    [[1000000000000.0, nan], [1.0, 0.001], [nan, nan]]
    """
    return np.where(eigenvalues > eigenvalues[..., :1] * 10.0**-DECADES, eigenvalues, np.nan)


def spread(n: int, at_most: int) -> list[int]:
    """Return at most `at_most` (two or more) of the indices 0 … n−1, evenly spread, with the first and the last.

    >>> spread(10, 4), spread(3, 4)
    ([0, 3, 6, 9], [0, 1, 2])
    """
    return np.linspace(0, n - 1, min(n, max(at_most, 2))).round().astype(int).tolist()


def envelope(y: Float[np.ndarray, " n"], at_most: int) -> list[int]:
    """Return about `at_most` indices of a curve that keep its peaks: of each stretch, the smallest value and the
    largest, or a gap if it has one.

    >>> envelope(np.array([0.0, 9.0, 1.0, 2.0, -5.0, 2.0, 3.0, np.nan]), 4)
    [0, 1, 4, 7]
    """
    if len(y) <= max(at_most, 4):
        return list(range(len(y)))
    filled = np.where(np.isnan(y), np.inf, y)
    stretches = np.array_split(np.arange(len(y)), at_most // 2)
    return sorted({int(k) for part in stretches for k in (part[filled[part].argmin()], part[filled[part].argmax()])})


def _rounded(values: Float[np.ndarray, " n"], digits: int = 6) -> list[float | None]:
    """Return values for JSON, None for gaps; with fewer digits, a loss that falls from 5.55 to 5.54 would be stairs."""
    return [float(f"{value:.{digits}g}") if np.isfinite(value) else None for value in values.tolist()]


# Name in the template → function of the runs.
FIGURES = {draw.__name__: draw for draw in (progress, spectrum, eigenvalues, losses, few_shot)}
