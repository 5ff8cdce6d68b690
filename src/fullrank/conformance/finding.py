"""What a check found: a promise, whether it is kept, what was measured, and what to do."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """One line of a report.

    >>> required("finite", True, measured="0.25", expected="a finite value", remedy="clamp what is divided by")
    CheckResult(name='finite', verdict='passed', measured='0.25', expected='a finite value', remedy='')
    """

    name: str
    """What was looked at."""
    verdict: Literal["passed", "failed", "noted"]
    """A property that no objective has to have is only noted."""
    measured: str
    expected: str = ""
    remedy: str = ""
    """What to change; empty unless it failed."""


def required(name: str, holds: bool, *, measured: str, expected: str, remedy: str) -> CheckResult:
    """Return the finding about what every objective has to keep."""
    verdict = "passed" if holds else "failed"
    return CheckResult(name=name, verdict=verdict, measured=measured, expected=expected, remedy="" if holds else remedy)


def noted(name: str, measured: str) -> CheckResult:
    """Return the finding about what may be so or not."""
    return CheckResult(name=name, verdict="noted", measured=measured)


def failure(name: str, error: BaseException, *, remedy: str = "") -> CheckResult:
    r"""Return the finding that a function raised.

    >>> failure("compile", ValueError("no\nway")).measured
    'ValueError: no'
    """
    return CheckResult(name=name, verdict="failed", measured=one_line(error), expected="no exception", remedy=remedy)


def one_line(error: BaseException) -> str:
    """Return the kind of an exception and the first line of what it says.

    >>> one_line(KeyError("Z"))
    "KeyError: 'Z'"
    """
    first = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {first}"[:300]
