"""Figures over the training steps: one panel for each quantity, one colour for each run, and markers for the alarms."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from textwrap import wrap
from typing import Any

import numpy as np

from fullrank.report.figures import (
    Figure,
    envelope_indices,
    escape_label,
    figure_layout,
    line_trace,
    log_range,
    mask_rounding_errors,
    panel_title,
    round_significant,
)
from fullrank.report.number_format import format_count
from fullrank.report.plot_style import LOG_AXIS, PANEL_GAP, PANEL_HEIGHT
from fullrank.report.run_summary import RunSummary, Series, series
from fullrank.run.alarm_messages import alarm_message
from fullrank.run.spectrum_history import LOCATIONS

MAX_POINTS = 5_000
"""Maximum number of points of one quantity, over all runs; longer curves are thinned, which keeps the page small and
fast."""
MAX_POINTS_OF_CURVE = 2_000
"""Maximum number of points of one curve: two for each pixel of the width, so that a thinned curve looks like all of its
points."""
DIGITS = 6
"""Significant digits of a value; with four, a loss that falls from 5.55 to 5.54 would look like stairs."""
ALARM_ROW = 16
"""Height of the row of alarms of one run, in pixels."""
LINE_LENGTH = 90
"""Characters per line of the text that appears under the pointer."""
EIGENVALUE_INDICES = (1, 2, 4, 8, 14, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
"""Eigenvalues shown over training. The 14th is the last in the figures of Skean et al. 2024. Several runs show every
fourth of these."""


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One quantity over the steps."""

    name: str
    series: Sequence[Series]
    """Steps and values of each run."""
    faint: bool = False
    """Whether the curve is a noisier version of another curve in the same panel."""
    markers: bool = False
    opacity: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Panel:
    """Curves that share axes."""

    title: str
    curves: Sequence[Curve]
    axis: dict[str, Any]
    """Settings of the vertical axis, without its position."""
    number_format: str = ".4~g"
    """Format of the values under the pointer, in d3's notation."""


def loss_caption(runs: Sequence[RunSummary]) -> str:
    """Return the sentence about runs whose held-out loss is of fewer images than a training batch has; empty without
    such runs.
    """
    pairs = {
        (row.backbone.samples, batch): None
        for run in runs
        for row in [row for row in run.spectrum if row.held_out_loss is not None][-1:]
        if isinstance(batch := run.recipe.get("batch_size"), int) and row.backbone.samples < batch
    }
    if not pairs:
        return ""
    numbers = " and ".join(f"{format_count(n)} instead of {format_count(batch)} images" for n, batch in pairs)
    return (
        f" The held-out loss is of a smaller batch than the training loss, {numbers}: the value of most objectives depends on this number, "
        "so compare how the curves change and not their heights."
    )


def loss_figure(runs: Sequence[RunSummary]) -> Figure | None:
    """Return the loss and each of its weighted terms over the steps, one panel each; None if no run has a logged
    loss.
    """
    held_out = Curve(
        name="loss, held-out images",
        series=[series(run.spectrum, attrgetter("held_out_loss")) for run in runs],
        markers=True,
    )
    behind = any(steps for steps, _ in held_out.series)
    trained = Curve(name="loss", series=[series(run.train, attrgetter("loss")) for run in runs], faint=behind)
    curves = {"loss (the sum of its terms)": [held_out, trained]}
    for term in dict.fromkeys(term for run in runs for row in run.train for term in row.terms):
        curves[term] = [
            Curve(name=term, series=[series(run.train, lambda row, term=term: row.terms.get(term)) for run in runs])
        ]
    axis = {"exponentformat": "power", "nticks": 5}
    panels = [
        Panel(title=title, curves=drawn, number_format=f".{DIGITS}~g", axis=axis) for title, drawn in curves.items()
    ]
    return _stack_panels(runs, panels)


def progress_figure(runs: Sequence[RunSummary]) -> Figure | None:
    """Return accuracy of the online probe, agreement of the views, effective rank and collapsed dimensions over the
    steps; None if no run has any of them.
    """

    def of_batch(name: str, field: str) -> Curve:
        return Curve(
            name=f"{name}, training batch", series=[series(run.train, attrgetter(field)) for run in runs], faint=True
        )

    def of_held_out(name: str, field: str) -> Curve:
        return Curve(
            name=f"{name}, held-out images",
            series=[series(run.spectrum, attrgetter(field)) for run in runs],
            markers=True,
        )

    def of_views(name: str, field: str) -> Curve:
        return Curve(
            name=f"{name}, training batch",
            series=[series(run.spectrum, attrgetter(field)) for run in runs],
            markers=True,
        )

    accuracy = [of_held_out("accuracy", "probe_accuracy"), of_batch("accuracy", "probe_train_accuracy")]
    axis = {"tickformat": ".3~p", "nticks": 5}
    panels = [Panel(title="accuracy of the online linear probe", curves=accuracy, number_format=".1%", axis=axis)]
    agreement = of_views("agreement of the views", "intraclass_correlation")
    panels.append(Panel(title="agreement of the views", curves=[agreement], number_format=".1%", axis=axis))
    for metric in ("effective_rank", "collapsed_dimensions"):
        for location in LOCATIONS:
            title = f"{metric.replace('_', ' ')}, {location}"
            curves = [of_held_out(title, f"{location}.{metric}")]
            if (metric, location) == ("effective_rank", "projector"):
                curves.append(of_batch(title, "effective_rank"))
            if metric == "effective_rank" or any(any(values) for _, values in curves[0].series):
                panels.append(Panel(title=title, curves=curves, axis={"nticks": 5, "rangemode": "tozero"}))
    return _stack_panels(runs, panels)


def eigenvalue_figure(runs: Sequence[RunSummary]) -> Figure | None:
    """Return some eigenvalues of both locations over the steps, on a logarithmic axis; None if no run has spectra."""
    tables = {
        name: [run.spectra.eigenvalues[name] for run in runs if run.spectra and name in run.spectra.eigenvalues]
        for name in LOCATIONS
    }
    widths = {location: max((table.shape[1] for table in spectra), default=0) for location, spectra in tables.items()}
    indices = [j for j in EIGENVALUE_INDICES[:: 1 if len(runs) == 1 else 4] if j <= max(widths.values())]
    opacities = dict(zip(indices, np.linspace(1.0, 0.45, len(indices)).round(2).tolist(), strict=True))
    panels = []
    for location in LOCATIONS:
        shown = [j for j in indices if j <= widths[location]]
        curves = [
            Curve(
                name=f"λ{j} of the {location}",
                series=[_eigenvalue_series(run, location, j) for run in runs],
                opacity=opacities[j],
            )
            for j in shown
        ]
        span = log_range(table[:, [j - 1 for j in shown if j <= table.shape[1]]] for table in tables[location])
        title = f"eigenvalues {', '.join(map(str, shown))}, {location}"
        panels.append(
            Panel(title=title, curves=curves, number_format=".3~g", axis=LOG_AXIS | {"nticks": 6, "range": span})
        )
    return _stack_panels(runs, panels)


def _eigenvalue_series(run: RunSummary, location: str, j: int) -> Series:
    """Return the j-th eigenvalue over the steps; zeros and rounding errors are None, which plotly draws as gaps."""
    if run.spectra is None or location not in run.spectra.eigenvalues or run.spectra.eigenvalues[location].shape[1] < j:
        return [], []
    values = mask_rounding_errors(run.spectra.eigenvalues[location][:, [0, j - 1]])[:, 1].tolist()
    return run.spectra.steps.tolist(), [value if np.isfinite(value) else None for value in values]


def alarm_markers(runs: Sequence[RunSummary]) -> tuple[list[dict[str, Any]], int]:
    """Return one trace of markers for each run with alarms, each in its own row, and the height of all rows in pixels.

    >>> alarm_markers([])
    ([], 0)
    """
    with_alarms = [(i, run) for i, run in enumerate(runs) if run.alarms]
    traces = []
    for row, (i, run) in zip(reversed(range(len(with_alarms))), with_alarms, strict=True):
        texts: dict[int, list[str]] = {}
        for alarm in run.alarms:
            texts.setdefault(alarm.step, []).append(alarm_message(alarm))
        trace = line_trace(i, run.label)
        points = {
            "mode": "markers",
            "marker": {"color": trace["line"]["color"], "size": 10, "symbol": "triangle-down"},
            "showlegend": False,
            "x": list(texts),
            "y": [row] * len(texts),
            "text": [
                "<br>".join(escape_label(line) for text in messages for line in wrap(text, LINE_LENGTH))
                for messages in texts.values()
            ],
            "hovertemplate": f"%{{text}}<extra>{escape_label(f'{run.label}: alarm' if len(runs) > 1 else 'alarm')}</extra>",
            "meta": {
                "run": run.label,
                "quantity": "alarm",
                "texts": ["; ".join(messages) for messages in texts.values()],
            },
        }
        traces.append(trace | points)
    return traces, ALARM_ROW * len(with_alarms)


def alarm_lines(runs: Sequence[RunSummary], *, top: float) -> list[dict[str, Any]]:
    """Return a vertical line at each step at which a run has an alarm, from the horizontal axis to the fraction `top`
    of the height.
    """
    places = dict.fromkeys((i, alarm.step) for i, run in enumerate(runs) for alarm in run.alarms)
    return [
        {
            "type": "line",
            "xref": "x",
            "x0": step,
            "x1": step,
            "yref": "paper",
            "y0": 0,
            "y1": top,
            "layer": "below",
            "opacity": 0.6,
        }
        | {"legendgroup": str(i)}  # with it, the page hides the lines of a run
        | {"line": {"color": line_trace(i, "")["line"]["color"], "width": 1, "dash": "dot"}}
        for i, step in places
    ]


def _stack_panels(runs: Sequence[RunSummary], panels: Iterable[Panel]) -> Figure | None:
    """Return panels one above the other, with the alarms at the top; panels without values are omitted."""
    drawn = [(panel, traces) for panel in panels if (traces := _panel_traces(runs, panel))]
    if not drawn:
        return None
    markers, height = alarm_markers(runs)
    alarm_axis = {"visible": False, "range": [-0.5, height / ALARM_ROW - 0.5], "fixedrange": True}
    rows = [("alarms", markers, alarm_axis, height)] if markers else []
    rows += [(panel.title, traces, panel.axis, PANEL_HEIGHT) for panel, traces in drawn]
    inner = sum(height + PANEL_GAP for *_, height in rows)
    hover = "axis" if len(runs) == 1 else "single"  # the values of all panels of many runs would cover the figure
    figure: Figure = {
        "data": [],
        "layout": figure_layout(inner, runs=len(runs)) | {"hoversubplots": hover, "annotations": []},
    }
    below = inner
    in_legend: set[str] = set()
    for k, (title, traces, axis, height) in enumerate(rows):
        top = (below - PANEL_GAP) / inner
        below -= PANEL_GAP + height
        figure["layout"][_axis_name("yaxis", k)] = axis | {"domain": [below / inner, top]}
        figure["layout"]["annotations"].append(panel_title(title, top))
        for trace in traces:
            shown = trace["showlegend"] and trace["legendgroup"] not in in_legend
            in_legend |= {trace["legendgroup"]} if shown else set()
            figure["data"].append(trace | {"yaxis": _axis_name("y", k), "showlegend": shown})
    edge = (inner - PANEL_GAP) / inner
    longest = max(len(steps) for panel, _ in drawn for curve in panel.curves for steps, _ in curve.series)
    thinned = {"thinned": f"{longest:,}"} if longest > points_of_curve(len(runs)) else {}
    figure["layout"] |= {"shapes": alarm_lines(runs, top=edge), "meta": {"over_steps": True, "top": edge} | thinned}
    figure["layout"]["xaxis"] = {
        "title": {"text": "step"},
        "unifiedhovertitle": {"text": "step %{x}"},
        "anchor": _axis_name("y", len(rows) - 1),
        "range": [0, 1.02 * _last_step(runs)],
        "exponentformat": "none",
    }
    return figure


def _panel_traces(runs: Sequence[RunSummary], panel: Panel) -> list[dict[str, Any]]:
    traces = []
    for i, run in enumerate(runs):
        for curve in panel.curves:
            steps, values = curve.series[i]
            if all(value is None for value in values):
                continue
            indices = envelope_indices(values, points_of_curve(len(runs)))
            name = f"{run.label}: {curve.name}" if len(runs) > 1 else curve.name
            trace = line_trace(i, run.label, faint=curve.faint, markers=curve.markers or len(steps) == 1) | {
                "x": [steps[k] for k in indices],
                "y": [round_significant(values[k], digits=DIGITS) for k in indices],
                "hovertemplate": f"%{{y:{panel.number_format}}}<extra>{escape_label(name)}</extra>",
                "meta": {"run": run.label, "quantity": curve.name},
            }
            traces.append(trace if curve.faint else trace | {"opacity": curve.opacity})
    return traces


def points_of_curve(runs: int) -> int:
    """Return the maximum number of points of one curve, on a page about this number of runs.

    >>> points_of_curve(1), points_of_curve(50)
    (2000, 100)
    """
    return min(MAX_POINTS_OF_CURVE, MAX_POINTS // runs)


def _last_step(runs: Sequence[RunSummary]) -> int:
    """Return the last step of all runs; all step axes end there, so that figures can be compared from top to bottom."""
    steps = [rows[-1].step for run in runs for rows in (run.train, run.spectrum, run.alarms) if rows]
    return max([1, *steps, *(int(run.spectra.steps[-1]) for run in runs if run.spectra)])


def _axis_name(letter: str, k: int) -> str:
    """Return plotly's name of the k-th axis: y, y2, y3 …"""
    return letter if k == 0 else f"{letter}{k + 1}"
