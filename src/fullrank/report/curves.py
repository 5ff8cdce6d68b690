"""Numbers over training: panels one above the other on one step axis, a quantity a panel, so that colour means the run alone."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fullrank.report.figures import GAP, PANEL, Figure, layout, line, plain, significant, thin, title
from fullrank.report.read import PARTS, Record

POINTS = 5_000
"""Points of one quantity that all runs share, which keeps the page small: runs that logged more are drawn thinned."""


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One quantity of every run over the steps; a faint curve is the noisier companion of another one in its panel."""

    name: str
    kind: str
    keys: tuple[str, ...]
    faint: bool = False


@dataclass(frozen=True, kw_only=True)
class Panel:
    title: str
    curves: tuple[Curve, ...]
    values: str = ".4~g"
    """How d3 formats a value under the pointer."""
    ticks: str = ".4~g"


def losses(runs: Sequence[Record]) -> Figure | None:
    """The loss and each of its weighted terms over the steps, a panel each; None where no run logged a loss."""
    names = dict.fromkeys(name for run in runs for row in run.train for name in row.get("terms", {}))
    panels = [Panel(title="loss (the sum of its terms)", curves=(Curve(name="loss", kind="train", keys=("loss",)),))]
    panels += [Panel(title=name, curves=(Curve(name=name, kind="train", keys=("terms", name)),)) for name in names]
    return _stack(runs, panels)


def progress(runs: Sequence[Record]) -> Figure | None:
    """Accuracy of the online probe and effective rank of both parts over the steps, a panel each; None where none was logged."""
    accuracy = (
        Curve(name="held-out images", kind="watch", keys=("probe_accuracy",)),
        Curve(name="training batch", kind="train", keys=("probe_train_accuracy",), faint=True),
    )
    ranks = [Curve(name=f"{part}, held-out images", kind="watch", keys=(part, "effective_rank")) for part in PARTS]
    batch = Curve(name="projector, training batch", kind="train", keys=("effective_rank",), faint=True)
    panels = [
        Panel(title="accuracy of the online linear probe", curves=accuracy, values=".1%", ticks=".3~p"),
        Panel(title="effective rank, backbone", curves=(ranks[0],)),
        Panel(title="effective rank, projector", curves=(ranks[1], batch)),
    ]
    return _stack(runs, panels)


def _stack(runs: Sequence[Record], panels: Iterable[Panel]) -> Figure | None:
    """Panels one above the other; a panel of which no run has a value is left out."""
    drawn = [(panel, traces) for panel in panels if (traces := _traces(runs, panel))]
    if not drawn:
        return None
    height = len(drawn) * (PANEL + GAP)
    figure: Figure = {"data": [], "layout": layout(height, runs=len(runs)) | {"hoversubplots": "axis", "annotations": []}}
    for k, (panel, traces) in enumerate(drawn):
        top = 1 - (k * (PANEL + GAP) + GAP) / height
        figure["layout"][_axis("yaxis", k)] = {"domain": [top - PANEL / height, top], "tickformat": panel.ticks, "nticks": 5}
        figure["layout"]["annotations"].append(title(panel.title, top))
        figure["data"] += [trace | {"yaxis": _axis("y", k), "showlegend": k == 0 and trace["showlegend"]} for trace in traces]
    figure["layout"]["xaxis"] = {
        "title": {"text": "step"},
        "unifiedhovertitle": {"text": "step %{x}"},
        "anchor": _axis("y", len(drawn) - 1),
        "rangemode": "tozero",
        "exponentformat": "none",
    }
    return figure


def _traces(runs: Sequence[Record], panel: Panel) -> list[dict[str, Any]]:
    drawn = [(i, run, curve, *run.series(curve.kind, *curve.keys)) for i, run in enumerate(runs) for curve in panel.curves]
    return [
        line(i, run.label, faint=curve.faint, markers=curve.kind == "watch" or len(steps) == 1)
        | _points(steps, values, most=POINTS // len(runs))
        | _words(run.label, curve.name, panel.values, several=len(runs) > 1)
        for i, run, curve, steps, values in drawn
        if any(value is not None for value in values)
    ]


def _points(steps: list[int], values: list[float | None], *, most: int) -> dict[str, Any]:
    kept = thin(len(steps), most)
    return {"x": [steps[k] for k in kept], "y": [significant(values[k]) for k in kept]}


def _words(label: str, quantity: str, form: str, *, several: bool) -> dict[str, Any]:
    name = f"{label}: {quantity}" if several else quantity
    return {"hovertemplate": f"%{{y:{form}}}<extra>{plain(name)}</extra>", "meta": {"run": label, "quantity": quantity}}


def _axis(letter: str, k: int) -> str:
    """Plotly's name of the k-th axis: y, y2, y3 …"""
    return letter if k == 0 else f"{letter}{k + 1}"
