"""Numbers over training: panels one above the other on one step axis, a quantity a panel, so that colour means the run alone."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from fullrank.report.alarms import LANE, lanes, lines
from fullrank.report.figures import GAP, PANEL, Figure, above_rounding, layout, line, log_range, plain, significant, thin, title
from fullrank.report.read import PARTS, Record

POINTS = 5_000
"""Points of one quantity that all runs share, which keeps the page small: runs that logged more are drawn thinned."""
DIGITS = 6
"""Of a value: with four, a loss that falls from 5.55 to 5.54 would do so in stairs."""

INDICES = (1, 2, 4, 8, 14, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
"""Eigenvalues that are followed over training; the 14th is the last that Skean et al. 2024 follow. Of several runs every other one."""


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One quantity of every run over the steps; a faint curve is the noisier companion of another one in its panel."""

    name: str
    of: Callable[[Record], tuple[list[int], list[float | None]]]
    """Its steps and values."""
    faint: bool = False
    markers: bool = False
    opacity: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Panel:
    title: str
    curves: tuple[Curve, ...]
    values: str = ".4~g"
    """How d3 formats a value under the pointer."""
    axis: dict[str, Any]
    """What its axis says besides where it lies."""


def losses(runs: Sequence[Record]) -> Figure | None:
    """The loss and each of its weighted terms over the steps, a panel each; None where no run logged a loss."""
    names = dict.fromkeys(name for run in runs for row in run.train for name in row.get("terms") or {})
    axis = {"exponentformat": "power", "nticks": 5}
    drawn = [("loss (the sum of its terms)", Curve(name="loss", of=_logged("train", "loss")))]
    drawn += [(name, Curve(name=name, of=_logged("train", "terms", name))) for name in names]
    return _stack(runs, [Panel(title=words, curves=(curve,), values=f".{DIGITS}~g", axis=axis) for words, curve in drawn])


def progress(runs: Sequence[Record]) -> Figure | None:
    """Accuracy of the online probe, effective rank and dead dimensions over the steps, a panel each; None where none was logged."""
    accuracy = (
        Curve(name="accuracy, held-out images", of=_logged("spectrum", "probe_accuracy"), markers=True),
        Curve(name="accuracy, training batch", of=_logged("train", "probe_train_accuracy"), faint=True),
    )
    batch = Curve(name="effective rank, projector, training batch", of=_logged("train", "effective_rank"), faint=True)
    panels = [Panel(title="accuracy of the online linear probe", curves=accuracy, values=".1%", axis={"tickformat": ".3~p", "nticks": 5})]
    for measure in ("effective_rank", "collapsed_dimensions"):
        words = measure.replace("_", " ")
        for part in PARTS:
            held_out = Curve(name=f"{words}, {part}, held-out images", of=_logged("spectrum", part, measure), markers=True)
            curves = (held_out, batch) if (measure, part) == ("effective_rank", "projector") else (held_out,)
            if measure == "effective_rank" or any(value for run in runs for value in held_out.of(run)[1]):
                panels.append(Panel(title=f"{words}, {part}", curves=curves, axis={"nticks": 5, "rangemode": "tozero"}))
    return _stack(runs, panels)


def eigenvalues(runs: Sequence[Record]) -> Figure | None:
    """Some eigenvalues of both parts over the steps, a panel each, on a logarithmic axis; None where no run has spectra."""
    tables = {part: [run.spectra.eigenvalues[part] for run in runs if run.spectra and part in run.spectra.eigenvalues] for part in PARTS}
    widest = {part: max((table.shape[1] for table in of), default=0) for part, of in tables.items()}
    followed = [j for j in INDICES[:: 1 if len(runs) == 1 else 4] if j <= max(widest.values())]
    opacities = np.linspace(1.0, 0.45, len(followed)).round(2).tolist()
    panels = []
    for part in PARTS:
        curves = tuple(
            Curve(name=f"λ{j} of the {part}", of=partial(_eigenvalue, part=part, j=j), opacity=opacity)
            for j, opacity in zip(followed, opacities, strict=True)
            if j <= widest[part]
        )
        said = f"eigenvalues {', '.join(str(j) for j in followed if j <= widest[part])}, {part}"
        span = log_range(table[:, [j - 1 for j in followed if j <= table.shape[1]]] for table in tables[part])
        axis = {"type": "log", "exponentformat": "power", "tickfont": {"size": 10}, "nticks": 6, "range": span}
        panels.append(Panel(title=said, curves=curves, values=".3~g", axis=axis))
    return _stack(runs, panels)


def _logged(kind: str, *keys: str) -> Callable[[Record], tuple[list[int], list[float | None]]]:
    """A number of the log."""
    return lambda run: run.series(kind, *keys)


def _eigenvalue(run: Record, *, part: str, j: int) -> tuple[list[int], list[float | None]]:
    """The j-th eigenvalue of a part; None, which is a gap, where it is zero or a rounding error."""
    table = run.spectra.eigenvalues.get(part) if run.spectra else None
    if run.spectra is None or table is None or table.shape[1] < j:
        return [], []
    values = [float(value) if np.isfinite(value) else None for value in above_rounding(table[:, [0, j - 1]])[:, 1]]
    return run.spectra.steps.tolist(), values


def _stack(runs: Sequence[Record], panels: Iterable[Panel]) -> Figure | None:
    """Panels one above the other, the alarms above them all; a panel of which no run has a value is left out."""
    drawn = [(panel, traces) for panel in panels if (traces := _traces(runs, panel))]
    if not drawn:
        return None
    marks, room = lanes(runs)
    strip = [("alarms", marks, {"visible": False, "range": [-0.5, room / LANE - 0.5], "fixedrange": True}, room)] if marks else []
    rows = strip + [(panel.title, traces, panel.axis, PANEL) for panel, traces in drawn]
    inner = sum(height + GAP for *_, height in rows)
    hover = "axis" if len(runs) == 1 else "single"  # all panels of many runs would cover the figure
    figure: Figure = {"data": [], "layout": layout(inner, runs=len(runs)) | {"hoversubplots": hover, "annotations": []}}
    below = inner
    in_legend: set[str] = set()
    for k, (words, traces, axis, height) in enumerate(rows):
        top = (below - GAP) / inner
        below -= GAP + height
        figure["layout"][_axis("yaxis", k)] = axis | {"domain": [below / inner, top]}
        figure["layout"]["annotations"].append(title(words, top))
        for trace in traces:
            shown = trace["showlegend"] and trace["legendgroup"] not in in_legend
            in_legend |= {trace["legendgroup"]} if shown else set()
            figure["data"].append(trace | {"yaxis": _axis("y", k), "showlegend": shown})
    edge = (inner - GAP) / inner
    figure["layout"] |= {"shapes": lines(runs, top=edge), "meta": {"over_steps": True, "top": edge}}
    figure["layout"]["xaxis"] = {
        "title": {"text": "step"},
        "unifiedhovertitle": {"text": "step %{x}"},
        "anchor": _axis("y", len(rows) - 1),
        "range": [0, 1.02 * _last(runs)],
        "exponentformat": "none",
    }
    return figure


def _traces(runs: Sequence[Record], panel: Panel) -> list[dict[str, Any]]:
    drawn = [(i, run, curve, *curve.of(run)) for i, run in enumerate(runs) for curve in panel.curves]
    return [
        line(i, run.label, faint=curve.faint, markers=curve.markers or len(steps) == 1)
        | ({} if curve.faint else {"opacity": curve.opacity})
        | _points(steps, values, most=POINTS // len(runs))
        | _words(run.label, curve.name, panel.values, several=len(runs) > 1)
        for i, run, curve, steps, values in drawn
        if any(value is not None for value in values)
    ]


def _last(runs: Sequence[Record]) -> int:
    """The last step of all runs, at which every axis of time ends, so that figures can be read one below the other."""
    steps = [lines[-1]["step"] for run in runs for lines in (run.train, run.spectrum_rows, run.warnings) if lines]
    return max([1, *steps, *(int(run.spectra.steps[-1]) for run in runs if run.spectra)])


def _points(steps: list[int], values: list[float | None], *, most: int) -> dict[str, Any]:
    kept = thin(len(steps), most)
    return {"x": [steps[k] for k in kept], "y": [significant(values[k], digits=DIGITS) for k in kept]}


def _words(label: str, quantity: str, form: str, *, several: bool) -> dict[str, Any]:
    name = f"{label}: {quantity}" if several else quantity
    return {"hovertemplate": f"%{{y:{form}}}<extra>{plain(name)}</extra>", "meta": {"run": label, "quantity": quantity}}


def _axis(letter: str, k: int) -> str:
    """Plotly's name of the k-th axis: y, y2, y3 …"""
    return letter if k == 0 else f"{letter}{k + 1}"
