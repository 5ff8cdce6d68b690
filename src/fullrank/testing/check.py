"""All conformance checks of one objective, and the measurements of its cost and its spectrum."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from fullrank.errors import UserError
from fullrank.objectives import Objective, frossl
from fullrank.testing.check_result import CheckResult, exception_result
from fullrank.testing.cost import Cost, cost_results, measure_cost
from fullrank.testing.exactness import Exactness, exactness_results, measure_exactness
from fullrank.testing.free_embeddings import FreeEmbeddings, free_embeddings_result, optimize_free_embeddings
from fullrank.testing.gradients import check_collapse, check_finite_differences, check_gradient_flow
from fullrank.testing.graph import check_compile, check_host_sync
from fullrank.testing.invariances import check_invariances
from fullrank.testing.objective_case import ObjectiveCase, objective_case
from fullrank.testing.precision import check_bfloat16, check_float32
from fullrank.testing.terms import check_terms, check_weights

Check = Callable[[ObjectiveCase], list[CheckResult]]

CHECKS: dict[str, Check] = {
    "terms": check_terms,
    "weights": check_weights,
    "gradient": check_gradient_flow,
    "finite differences": check_finite_differences,
    "collapse": check_collapse,
    "float32": check_float32,
    "bfloat16": check_bfloat16,
    "invariances": check_invariances,
    "compile": check_compile,
    "host synchronisation": check_host_sync,
}
"""Name → check that runs in this process. All others run only if the first one passes."""


@dataclass(kw_only=True)
class Measurements:
    """Measurements of the objective and of FroSSL for comparison; empty if the checks end early."""

    exactness: list[Exactness] = field(default_factory=list)
    costs: dict[str, Cost] = field(default_factory=dict)
    """By name, the objective first."""
    spectra: dict[str, FreeEmbeddings] = field(default_factory=dict)
    """Spectra of free embeddings by name, the objective first."""

    def compare_cost(self, case: ObjectiveCase) -> list[CheckResult]:
        """Measure the cost of the objective and of FroSSL."""
        reference = _frossl_case(case)
        self.costs = {c.name: measure_cost(c) for c in (case, reference)}
        return cost_results(self.costs[case.name], self.costs[reference.name])

    def compare_spectra(self, case: ObjectiveCase) -> list[CheckResult]:
        """Minimise the objective over free embeddings, and FroSSL from the same start."""
        reference = _frossl_case(case)
        self.spectra = {c.name: optimize_free_embeddings(c) for c in (case, reference)}
        return [free_embeddings_result(self.spectra[case.name], self.spectra[reference.name])]


def _frossl_case(case: ObjectiveCase) -> ObjectiveCase:
    return replace(objective_case(frossl), views=case.views)


@dataclass(frozen=True, kw_only=True)
class ConformanceReport:
    """The results of all checks of one objective."""

    name: str
    tensors: str
    """The tensors of the checks, with their shapes."""
    results: tuple[CheckResult, ...]
    measurements: Measurements
    seconds: float

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return not any(result.status == "failed" for result in self.results)


def run_check(name: str, check: Check, case: ObjectiveCase) -> list[CheckResult]:
    """Run one check; an exception from the objective is a failed result.

    Raises:
        UserError: the objective raises a UserError at its first call, for example because a hyperparameter does not
            fit.
    """
    try:
        return check(case)
    except Exception as error:  # of any type, from the user's function
        if isinstance(error, UserError) and check is check_terms:
            raise
        return [
            exception_result(
                name, error, remedy="find what the function assumes about its tensors, and remove the assumption"
            )
        ]


def check(
    objective: Objective,
    *,
    name: str = "",
    hyper: Mapping[str, Any] | None = None,
    processes: Sequence[int] = (1, 2, 4),
    progress: Callable[[str], None] = lambda _: None,
) -> ConformanceReport:
    """Run all checks on an objective, in less than a minute on two cores.

    Args:
        objective: a function that takes tensors by position, with the library's names (Z (V, N, D) and others), and
            hyperparameters by keyword, and returns weighted terms by name. To compare processes, define it with `def`
            at the top level of a module.
        name: name of the objective in the report.
        hyper: hyperparameters that differ from their defaults.
        processes: numbers of processes to compare; no process is started if all are 1.
        progress: function that is called with the name of each check.

    Raises:
        UserError: no method supplies a tensor of the objective, a hyperparameter has no default, other processes cannot
            import the function, or the function itself raises a UserError at its first call.

    >>> from fullrank.objectives import vicreg
    >>> report = check(vicreg, processes=())
    >>> report.passed, report.tensors
    (True, 'Z (2, 12, 5)')
    """
    start = time.perf_counter()
    case = objective_case(objective, name=name, hyper=hyper)
    tensors = ", ".join(f"{key} {tuple(t.shape)}" for key, t in case.random_tensors(torch.Generator()).items())
    measurements = Measurements()
    progress("terms")
    results = run_check("terms", check_terms, case)
    if any(result.name == "differentiable" and result.status == "passed" for result in results):
        if max(processes, default=1) > 1:
            progress(f"{max(processes)} processes")  # first, because a function that cannot be imported is a UserError
            measurements.exactness = measure_exactness([case], processes=processes)[case.name]
            results += exactness_results(measurements.exactness)
        others = {label: function for label, function in CHECKS.items() if function is not check_terms}
        for label, function in {
            **others,
            "cost": measurements.compare_cost,
            "free embeddings": measurements.compare_spectra,
        }.items():
            progress(label)
            results += run_check(label, function, case)
    seconds = time.perf_counter() - start
    return ConformanceReport(
        name=case.name, tensors=tensors, results=tuple(results), measurements=measurements, seconds=seconds
    )
