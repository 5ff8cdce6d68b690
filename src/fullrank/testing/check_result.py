"""The result of one check: passed, failed with a remedy, or a measured property that is not required."""

from dataclasses import dataclass
from typing import Literal

from fullrank.errors import exception_line


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """One line of a conformance report.

    >>> required("finite", True, measured="0.25", expected="a finite value", remedy="clamp the denominator")
    CheckResult(name='finite', status='passed', measured='0.25', expected='a finite value', remedy='')
    """

    name: str
    """Name of the check."""
    status: Literal["passed", "failed", "info"]
    """'info': the property is measured but not required."""
    measured: str
    expected: str = ""
    remedy: str = ""
    """What to change; empty unless the check failed."""


def required(name: str, passed: bool, *, measured: str, expected: str, remedy: str) -> CheckResult:
    """Return the result for a requirement of every objective."""
    status = "passed" if passed else "failed"
    return CheckResult(name=name, status=status, measured=measured, expected=expected, remedy="" if passed else remedy)


def info(name: str, measured: str) -> CheckResult:
    """Return the result for a property that is not required."""
    return CheckResult(name=name, status="info", measured=measured)


def exception_result(name: str, error: BaseException, *, remedy: str = "") -> CheckResult:
    r"""Return the result for a function that raised an exception.

    >>> exception_result("compile", ValueError("no\nway")).measured
    'ValueError: no'
    """
    return CheckResult(
        name=name, status="failed", measured=exception_line(error), expected="no exception", remedy=remedy
    )
