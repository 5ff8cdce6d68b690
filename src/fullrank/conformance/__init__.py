"""Conformance checks: code that tests the requirements of an objective, the library's or a user's."""

from fullrank.conformance.check import CHECKS, ConformanceReport, Measurements, check, run_check
from fullrank.conformance.check_result import CheckResult
from fullrank.conformance.exactness import Exactness, measure_exactness
from fullrank.conformance.free_embeddings import FreeEmbeddings, optimize_free_embeddings
from fullrank.conformance.objective_case import ObjectiveCase, objective_case

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
