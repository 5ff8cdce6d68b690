"""Checks of an objective, the library's or a user's: `fullrank check`, and `check` in Python."""

from fullrank.testing.case import ObjectiveCase, objective_case
from fullrank.testing.check import CHECKS, check, run_check
from fullrank.testing.measurements import optimize_free_embeddings
from fullrank.testing.processes import measure_exactness
from fullrank.testing.report import CheckResult, Report

__all__ = [
    "CHECKS", "CheckResult", "ObjectiveCase", "Report", "check", "measure_exactness", "objective_case",
    "optimize_free_embeddings", "run_check",
]  # fmt: skip
