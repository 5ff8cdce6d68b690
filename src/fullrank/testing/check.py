"""All checks of one objective."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from fullrank.errors import UserError, exception_line
from fullrank.objectives import Objective
from fullrank.testing import checks
from fullrank.testing.case import ObjectiveCase, objective_case
from fullrank.testing.measurements import compare_costs, compare_free_embeddings
from fullrank.testing.processes import exactness_results, measure_exactness
from fullrank.testing.report import CheckResult, Report

Check = Callable[[ObjectiveCase], Iterable[CheckResult]]

# Name → check that runs in this process. All others run only if the first one passes.
CHECKS: dict[str, Check] = {
    "terms": checks.check_terms,
    "weights": checks.check_weights,
    "gradient": checks.check_gradient_flow,
    "finite differences": checks.check_finite_differences,
    "collapse": checks.check_collapse,
    "float32": checks.check_float32,
    "bfloat16": checks.check_bfloat16,
    "invariances": checks.check_invariances,
    "compile": checks.check_compile,
    "host synchronisation": checks.check_host_sync,
}


def run_check(name: str, check: Check, case: ObjectiveCase) -> list[CheckResult]:
    """Run one check; an exception from the objective is a failed result.

    Raises:
        UserError: the objective raises a UserError at its first call, for example because a hyperparameter does not
            fit.
    """
    try:
        return list(check(case))
    except Exception as error:  # of any type, from the user's function
        if isinstance(error, UserError) and check is checks.check_terms:
            raise
        remedy = "expected no exception; find what the function assumes about its tensors, and remove the assumption"
        return [CheckResult(name, False, exception_line(error), remedy)]


def check(
    objective: Objective,
    *,
    name: str = "",
    hyper: Mapping[str, Any] | None = None,
    processes: Sequence[int] = (1, 2, 4),
    progress: Callable[[str], Any] = lambda _: None,
) -> Report:
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
    start, results = time.perf_counter(), []
    case = objective_case(objective, name=name, hyper=hyper)
    for label, function in {**CHECKS, "cost": compare_costs, "free embeddings": compare_free_embeddings}.items():
        progress(label)
        results += run_check(label, function, case)
        if label == "terms":
            if not any(result.name == "differentiable" and result.passed for result in results):
                break
            # Now, because a function that cannot be imported is a UserError.
            results += exactness_results(measure_exactness([case], processes=processes)[case.name])
    tensors = ", ".join(f"{key} {tuple(t.shape)}" for key, t in case.random_tensors().items())
    return Report(name=case.name, tensors=tensors, results=tuple(results), seconds=time.perf_counter() - start)
