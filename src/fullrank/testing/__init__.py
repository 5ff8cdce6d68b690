"""Conformance checks: code that tests the requirements of an objective, the library's or a user's."""

from fullrank.testing.check import CHECKS, ConformanceReport, Measurements, check, run_check
from fullrank.testing.check_result import CheckResult
from fullrank.testing.exactness import Exactness, measure_exactness
from fullrank.testing.free_embeddings import FreeEmbeddings, optimize_free_embeddings
from fullrank.testing.objective_case import ObjectiveCase, objective_case

__all__ = [
    "CHECKS",
    "CheckResult",
    "ConformanceReport",
    "Exactness",
    "FreeEmbeddings",
    "Measurements",
    "ObjectiveCase",
    "check",
    "measure_exactness",
    "objective_case",
    "optimize_free_embeddings",
    "run_check",
]
