"""The result of `fullrank check` in a sentence."""

from fullrank.testing import ConformanceReport

SIGNS = {"passed": "✓", "failed": "✗", "info": "·"}
"""Status of a result → the sign before its name."""


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
