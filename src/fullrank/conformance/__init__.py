"""What every objective promises, as code that examines any function: the library's own pass through it, and so can yours."""

from fullrank.conformance.check import CHECKS, Measured, Report, check, examine
from fullrank.conformance.exactness import Exactness, exactness
from fullrank.conformance.finding import CheckResult
from fullrank.conformance.free import Free, free
from fullrank.conformance.subject import ObjectiveCase, objective_case

__all__ = [
    "CHECKS",
    "CheckResult",
    "Exactness",
    "Free",
    "Measured",
    "ObjectiveCase",
    "Report",
    "check",
    "exactness",
    "examine",
    "free",
    "objective_case",
]
