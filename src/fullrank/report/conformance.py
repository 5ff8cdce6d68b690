"""The page of `fullrank check`: every finding, and the figures of what was measured beside FroSSL."""

from collections.abc import Sequence
from html import escape
from typing import Any

from fullrank.conformance import CheckResult, Report
from fullrank.plot_style import LOG_AXIS, PANEL_GAP, PANEL_HEIGHT
from fullrank.report.document import figure_block, html_document, html_table
from fullrank.report.figures import Figure, escape_label, figure_layout, line_trace, panel_title, round_significant

SIGNS = {"passed": "✓", "failed": "✗", "noted": "·"}
"""What stands before a finding, beside the word: colour and sign only repeat it."""

CAPTIONS = {
    "spectrum": "Eigenvalues of the centred covariance of the first view, divided by the largest, after the objective alone was minimised "
    "over free embeddings. Faint: where they began, in four dimensions but for noise.",
    "samples": "Time of value and gradient against the number of samples, float32, one thread, both axes logarithmic.",
    "dimensions": "Time of value and gradient against the number of dimensions, likewise.",
}


def render(report: Report) -> str:
    """The page as text: it opens offline, as that of a run does.

    >>> from fullrank.conformance import Measured
    >>> "<h1>mine</h1>" in render(Report(name="mine", takes="", findings=(), measured=Measured(), seconds=1.0))
    True
    """
    figures = {"spectrum": spectra(report)} | {of: times(report, of) for of in ("samples", "dimensions")}
    shown = {name: figure for name, figure in figures.items() if figure}
    blocks = {name: figure_block(name, figure, CAPTIONS[name]) for name, figure in shown.items()}
    noted = [finding for finding in report.findings if finding.verdict == "noted"]
    sections = {
        "To mend": _table([finding for finding in report.findings if finding.verdict == "failed"], caption="What failed, and a remedy."),
        "Kept": _table(
            [finding for finding in report.findings if finding.verdict == "passed"], caption="What every objective has to keep."
        ),
        "Measured": _table(noted, caption="What differs from one objective to another."),
        "Spectrum": blocks.get("spectrum", ""),
        "Cost": blocks.get("samples", "") + blocks.get("dimensions", ""),
    }
    return html_document(title=report.name, verdicts=_verdict(report), sections=sections, figures=shown)


def summary(report: Report) -> str:
    """The report in a sentence.

    >>> from fullrank.conformance import Measured
    >>> summary(Report(name="mine", takes="Z (2, 12, 5)", findings=(), measured=Measured(), seconds=3.2))
    'mine keeps the contract: 0 checks passed, in 3 s; examined with Z (2, 12, 5)'
    """
    failed = sum(finding.verdict == "failed" for finding in report.findings)
    passed = sum(finding.verdict == "passed" for finding in report.findings)
    said = "keeps the contract" if report.passed else f"breaks the contract: {failed} check{'s' * (failed != 1)} failed"
    joined = "; " if failed else ": "
    return (
        f"{report.name} {said}{joined}{passed} check{'s' * (passed != 1)} passed, in {report.seconds:.0f} s; examined with {report.takes}"
    )


def spectra(report: Report) -> Figure | None:
    """Eigenvalues against their index, the objective's and FroSSL's; None where they were not measured."""
    reached = [(name, free) for name, free in report.measured.spectra.items() if free.after is not None]
    if not reached:
        return None
    traces = [_eigenvalues(i, name, free.after.eigenvalues.tolist()) for i, (name, free) in enumerate(reached) if free.after]
    begun = _eigenvalues(len(reached), "start", reached[0][1].before.eigenvalues.tolist(), faint=True)
    return _figure([*traces, begun], x="index of the eigenvalue", y="eigenvalue / largest", kind="linear")


def times(report: Report, of: str) -> Figure | None:
    """Milliseconds against N (`of` "samples") or D ("dimensions"); None where they were not measured."""
    if not report.measured.costs:
        return None
    traces = [_points(i, name, getattr(cost, of), "milliseconds") for i, (name, cost) in enumerate(report.measured.costs.items())]
    return _figure(traces, x="samples N" if of == "samples" else "dimensions D", y="milliseconds", kind="log")


def _eigenvalues(i: int, name: str, values: Sequence[float], *, faint: bool = False) -> dict[str, Any]:
    x, y = list(range(1, len(values) + 1)), [round_significant(value / values[0]) if value > 0 else None for value in values]
    return line_trace(i, name, faint=faint) | {"x": x, "y": y, "meta": {"run": name, "quantity": "eigenvalue"}}


def _points(i: int, name: str, points: Sequence[tuple[int, float]], quantity: str) -> dict[str, Any]:
    x, y = [at for at, _ in points], [round_significant(1e3 * seconds) for _, seconds in points]
    return line_trace(i, name, markers=True) | {"x": x, "y": y, "meta": {"run": name, "quantity": quantity}}


def _figure(traces: list[dict[str, Any]], *, x: str, y: str, kind: str) -> Figure:
    height = 2 * PANEL_HEIGHT + PANEL_GAP
    top = 1 - PANEL_GAP / height
    hover = [{"hovertemplate": f"%{{y:.3~g}}<extra>{escape_label(trace['meta']['run'])}</extra>"} for trace in traces]
    drawn = figure_layout(height, runs=len(traces)) | {
        "xaxis": {"title": {"text": x}, "type": kind},
        "yaxis": LOG_AXIS | {"dtick": 1, "domain": [0, top]},
        "annotations": [panel_title(y, top)],
    }
    return {"data": [trace | words for trace, words in zip(traces, hover, strict=True)], "layout": drawn}


def _table(findings: Sequence[CheckResult], *, caption: str) -> str:
    """Findings down; what was expected and the remedy where they say something."""
    if not findings:
        return ""
    columns = {
        "measured": [f.measured for f in findings],
        "expected": [f.expected for f in findings],
        "remedy": [f.remedy for f in findings],
    }
    kept = {name: cells for name, cells in columns.items() if any(cells)}
    rows = [[f"{SIGNS[f.verdict]} {escape(f.name)}", *(escape(cells[k]) for cells in kept.values())] for k, f in enumerate(findings)]
    return html_table(["check", *kept], rows, caption=caption, stacks=True)


def _verdict(report: Report) -> str:
    return f'<p class="verdict {"good" if report.passed else "failed"}">{escape(summary(report))}.</p>'
