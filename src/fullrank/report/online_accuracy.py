"""The figure of a probe's accuracy on all test images over the epochs, and the text below it: the online probe, or a
linear probe on labels from another place.
"""

from collections.abc import Sequence
from typing import Any

from fullrank.report.figures import Figure, escape_label, figure_layout, line_trace, panel_title, round_significant
from fullrank.report.number_format import format_count
from fullrank.report.plot_style import PANEL_GAP, PANEL_HEIGHT
from fullrank.report.run_summary import RunSummary, look_up

PANELS = {"accuracy": "accuracy", "top5": "top-5 accuracy"}
"""Field of an `OnlineRow` → its name."""
PROBE_NAMES = {"online": "the online linear probe", "linear": "a linear probe on the labelled images"}
"""`OnlineRow.probe` → what is scored."""


def online_figure(runs: Sequence[RunSummary]) -> Figure | None:
    """Return the accuracy, and the top-5 accuracy if there is one, over the epochs; None if no run was scored at
    `probe.epochs`.
    """
    panels = {field: traces for field in PANELS if (traces := _traces(runs, field))}
    if not panels:
        return None
    inner = len(panels) * (PANEL_HEIGHT + PANEL_GAP)
    figure: Figure = {"data": [], "layout": figure_layout(inner, runs=len(runs)) | {"annotations": []}}
    for k, (field, traces) in enumerate(panels.items()):
        bottom, axis = 1 - (k + 1) * (PANEL_HEIGHT + PANEL_GAP) / inner, "" if k == 0 else str(k + 1)
        top = bottom + PANEL_HEIGHT / inner
        figure["layout"][f"yaxis{axis}"] = {"tickformat": ".3~p", "nticks": 5, "domain": [max(bottom, 0.0), top]}
        figure["layout"]["annotations"].append(
            panel_title(f"{PANELS[field]} of {_probes(runs)}, all {_images(runs)}", top)
        )
        figure["data"] += [trace | {"yaxis": f"y{axis}", "showlegend": k == 0} for trace in traces]
    last = max(row.epoch for run in runs for row in run.online)
    figure["layout"]["xaxis"] = {
        "title": {"text": "epoch"},
        "unifiedhovertitle": {"text": "epoch %{x}"},
        "anchor": "y" if len(panels) == 1 else f"y{len(panels)}",
        "range": [0, 1.02 * last],
    }
    return figure


def _traces(runs: Sequence[RunSummary], field: str) -> list[dict[str, Any]]:
    traces = []
    for i, run in enumerate(runs):
        rows = [row for row in run.online if getattr(row, field) is not None]
        if rows:
            points = {"x": [row.epoch for row in rows], "y": [round_significant(getattr(row, field)) for row in rows]}
            quantity = f"{'online' if rows[-1].probe == 'online' else 'linear probe,'} {PANELS[field]}"
            name = f"{run.label}: {quantity}" if len(runs) > 1 else quantity
            hover = {
                "hovertemplate": f"%{{y:.2%}}<extra>{escape_label(name)}</extra>",
                "meta": {"run": run.label, "quantity": quantity},
            }
            traces.append(line_trace(i, run.label, markers=True) | points | hover)
    return traces


def online_caption(runs: Sequence[RunSummary]) -> str:
    """Return the text below the figure, with the number of images of each run that differs from the others.

    >>> online_caption([])
    'Share of all test images that the online linear probe classifies correctly after an epoch, in eval mode.'
    """
    counts = {run.label: format_count(run.online[-1].images) for run in runs if run.online}
    distinct = dict.fromkeys(counts.values())
    each = (
        [f"n = {count}" for count in distinct]
        if len(distinct) == 1
        else [f"{label}: n = {count}" for label, count in counts.items()]
    )
    sentence = f"Share of all {_images(runs)} that {_probes(runs)} classifies correctly after an epoch, in eval mode."
    return f"{sentence} {', '.join(each)} images." if each else sentence


def _probes(runs: Sequence[RunSummary]) -> str:
    """Return the names of the probes that were scored."""
    return (
        " or ".join(dict.fromkeys(PROBE_NAMES[run.online[-1].probe] for run in runs if run.online))
        or PROBE_NAMES["online"]
    )


def _images(runs: Sequence[RunSummary]) -> str:
    """Return "test images", or "validation images" if these take the place of the test images."""
    kinds = {
        "validation" if look_up(run.recipe, "data", "validation") and run.online[-1].probe == "online" else "test"
        for run in runs
        if run.online
    }
    return f"{' or '.join(sorted(kinds)) or 'test'} images"
