"""The page of `fullrank check`: every result, and figures of the measurements of the objective and of FroSSL."""

from collections.abc import Sequence
from html import escape
from typing import Any

from fullrank.report.document import figure_block, html_document, html_table
from fullrank.report.figures import Figure, escape_label, figure_layout, line_trace, panel_title, round_significant
from fullrank.report.plot_style import LOG_AXIS, PANEL_GAP, PANEL_HEIGHT
from fullrank.testing import CheckResult, ConformanceReport

SIGNS = {"passed": "✓", "failed": "✗", "info": "·"}
"""Status of a result → the sign before its name."""

CAPTIONS = {
    "spectrum": "Eigenvalues of the centred covariance of the first view, divided by the largest, after the objective was minimised "
    "over free embeddings. Faint: the initial embeddings, which span four dimensions apart from noise.",
    "samples": "Time of loss and gradient against the number of samples, float32, one thread, both axes logarithmic.",
    "dimensions": "Time of loss and gradient against the number of dimensions, float32, one thread, both axes logarithmic.",
}


def render(report: ConformanceReport) -> str:
    """Return the HTML page, which needs no network.

    >>> from fullrank.testing import Measurements
    >>> "<h1>mine</h1>" in render(ConformanceReport(name="mine", tensors="", results=(), measurements=Measurements(), seconds=1.0))
    True
    """
    figures = {"spectrum": spectrum_figure(report)} | {
        axis: time_figure(report, axis) for axis in ("samples", "dimensions")
    }
    shown = {name: figure for name, figure in figures.items() if figure}
    blocks = {name: figure_block(name, figure, CAPTIONS[name]) for name, figure in shown.items()}

    def section(status: str, caption: str) -> str:
        return _table([result for result in report.results if result.status == status], caption=caption)

    sections = {
        "Failed": section("failed", "Failed checks, with a remedy."),
        "Passed": section("passed", "Requirements of every objective."),
        "Measured": section("info", "Properties that differ between objectives."),
        "Spectrum": blocks.get("spectrum", ""),
        "Cost": blocks.get("samples", "") + blocks.get("dimensions", ""),
    }
    verdict = f'<p class="verdict {"good" if report.passed else "failed"}">{escape(summary(report))}.</p>'
    return html_document(title=report.name, verdicts=verdict, sections=sections, figures=shown)


def summary(report: ConformanceReport) -> str:
    """Return the report in a sentence.

    >>> from fullrank.testing import Measurements
    >>> summary(ConformanceReport(name="mine", tensors="Z (2, 12, 5)", results=(), measurements=Measurements(), seconds=3.2))
    'mine passes the conformance check: 0 checks passed, in 3 s; tested with Z (2, 12, 5)'
    """
    failed, passed = (sum(result.status == status for result in report.results) for status in ("failed", "passed"))
    verdict = (
        f"fails the conformance check: {failed} check{'s' * (failed != 1)} failed; "
        if failed
        else "passes the conformance check: "
    )
    return f"{report.name} {verdict}{passed} check{'s' * (passed != 1)} passed, in {report.seconds:.0f} s; tested with {report.tensors}"


def spectrum_figure(report: ConformanceReport) -> Figure | None:
    """Return the figure of eigenvalues against their index, the objective's and FroSSL's; None if they were not
    measured.
    """
    spectra = {name: (s.before, s.after) for name, s in report.measurements.spectra.items() if s.after is not None}
    if not spectra:
        return None
    traces = [
        _spectrum_trace(i, name, after.eigenvalues.tolist()) for i, (name, (_, after)) in enumerate(spectra.items())
    ]
    before = next(iter(spectra.values()))[0].eigenvalues.tolist()
    traces.append(_spectrum_trace(len(spectra), "start", before, faint=True))
    return _figure(traces, x="index of the eigenvalue", y="eigenvalue / largest", kind="linear")


def time_figure(report: ConformanceReport, axis: str) -> Figure | None:
    """Return the figure of milliseconds against N (`axis` "samples") or D ("dimensions"); None if they were not
    measured.
    """
    if not report.measurements.costs:
        return None
    traces = []
    for i, (name, cost) in enumerate(report.measurements.costs.items()):
        sizes, seconds = zip(*getattr(cost, axis), strict=True)
        points = {"x": list(sizes), "y": [round_significant(1e3 * value) for value in seconds]}
        traces.append(line_trace(i, name, markers=True) | points | {"meta": {"run": name, "quantity": "milliseconds"}})
    return _figure(traces, x="samples N" if axis == "samples" else "dimensions D", y="milliseconds", kind="log")


def _spectrum_trace(i: int, name: str, values: Sequence[float], *, faint: bool = False) -> dict[str, Any]:
    x, y = (
        list(range(1, len(values) + 1)),
        [round_significant(value / values[0]) if value > 0 else None for value in values],
    )
    return line_trace(i, name, faint=faint) | {"x": x, "y": y, "meta": {"run": name, "quantity": "eigenvalue"}}


def _figure(traces: list[dict[str, Any]], *, x: str, y: str, kind: str) -> Figure:
    height = 2 * PANEL_HEIGHT + PANEL_GAP
    top = 1 - PANEL_GAP / height
    hover = [{"hovertemplate": f"%{{y:.3~g}}<extra>{escape_label(trace['meta']['run'])}</extra>"} for trace in traces]
    axes = figure_layout(height, runs=len(traces)) | {
        "xaxis": {"title": {"text": x}, "type": kind},
        "yaxis": LOG_AXIS | {"dtick": 1, "domain": [0, top]},
        "annotations": [panel_title(y, top)],
    }
    return {"data": [trace | text for trace, text in zip(traces, hover, strict=True)], "layout": axes}


def _table(results: Sequence[CheckResult], *, caption: str) -> str:
    """Return a table with one row for each result, without columns that are empty in all rows."""
    if not results:
        return ""
    columns = [
        column for column in ("measured", "expected", "remedy") if any(getattr(result, column) for result in results)
    ]
    rows = [
        [f"{SIGNS[r.status]} {escape(r.name)}", *(escape(getattr(r, column)) for column in columns)] for r in results
    ]
    return html_table(["check", *columns], rows, caption=caption, stacks=True)
