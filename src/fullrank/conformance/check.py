"""The whole contract, for one objective: every promise looked at, and what it costs and reaches measured."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from fullrank.conformance import collapse, cost, exactness, free, gradients, graph, invariances, precision, values, weights
from fullrank.conformance.finding import CheckResult, failure
from fullrank.conformance.subject import ObjectiveCase, objective_case
from fullrank.errors import UserError
from fullrank.objectives import Objective, frossl

Check = Callable[[ObjectiveCase], list[CheckResult]]

CHECKS: dict[str, Check] = {
    "terms": values.terms,
    "weights": weights.weights,
    "gradient": gradients.reach,
    "finite differences": gradients.finite_differences,
    "collapse": collapse.collapse,
    "float32": precision.float32,
    "bfloat16": precision.bfloat16,
    "invariances": invariances.invariances,
    "one graph": graph.fullgraph,
    "no wait": graph.no_host_sync,
}
"""What is looked at in this process: function of the subject to findings. The first is the condition of all others."""


@dataclass(kw_only=True)
class Measured:
    """What was measured beside FroSSL; empty where the examination ended before."""

    processes: list[exactness.Exactness] = field(default_factory=list)
    costs: dict[str, cost.Cost] = field(default_factory=dict)
    """By name, the subject first."""
    spectra: dict[str, free.Free] = field(default_factory=dict)
    """Likewise, of free embeddings."""

    def compare_cost(self, subject: ObjectiveCase) -> list[CheckResult]:
        """Measure its cost, and FroSSL's in the same minute."""
        reference = _reference(subject)
        self.costs = {s.name: cost.cost(s) for s in (subject, reference)}
        return cost.findings(self.costs[subject.name], self.costs[reference.name])

    def compare_free(self, subject: ObjectiveCase) -> list[CheckResult]:
        """Minimise it over free embeddings, and FroSSL from the same start."""
        reference = _reference(subject)
        self.spectra = {s.name: free.free(s) for s in (subject, reference)}
        return free.findings(self.spectra[subject.name], self.spectra[reference.name])


def _reference(subject: ObjectiveCase) -> ObjectiveCase:
    return replace(objective_case(frossl), views=subject.views)


@dataclass(frozen=True, kw_only=True)
class Report:
    """What was found about one objective."""

    name: str
    takes: str
    """Its tensors with their sizes, as it was examined."""
    findings: tuple[CheckResult, ...]
    measured: Measured
    seconds: float

    @property
    def passed(self) -> bool:
        """Whether nothing failed."""
        return not any(finding.verdict == "failed" for finding in self.findings)


def examine(name: str, check: Check, subject: ObjectiveCase) -> list[CheckResult]:
    """Make the check of that name; what the function raises is a finding too.

    Raises:
        UserError: the function refuses even the first call, for something that its user can mend: a number that fits no small embeddings.
    """
    try:
        return check(subject)
    except Exception as error:  # of any kind: it is the function of a user
        if isinstance(error, UserError) and check is values.terms:
            raise
        return [failure(name, error, remedy="it raises where this check calls it; see what it assumes")]


def check(
    objective: Objective,
    *,
    name: str = "",
    numbers: Mapping[str, Any] | None = None,
    processes: Sequence[int] = (1, 2, 4),
    progress: Callable[[str], None] = lambda _: None,
) -> Report:
    """Examine an objective, one of the library or a function of your own, in less than a minute on two cores.

    Args:
        objective: takes tensors by position, named as in the library (Z (V, N, D) and others), numbers by keyword, and returns weighted
            terms by name. To compare processes, others import it: it is defined by def in a module.
        name: how to call it.
        numbers: those of its numbers that are not at their default.
        processes: numbers of processes to compare; with none above one, no process is started.
        progress: told what is being looked at.

    Returns:
        The findings, with what was measured.

    Raises:
        UserError: a tensor that no method supplies, a number without a default, a function that other processes cannot import, or what
            the function itself raises as UserError at its first call.

    >>> from fullrank.objectives import vicreg
    >>> report = check(vicreg, processes=())
    >>> report.passed, report.takes
    (True, 'Z (2, 12, 5)')
    """
    began = time.perf_counter()
    subject = objective_case(objective, name=name, numbers=numbers)
    takes = ", ".join(f"{key} {tuple(t.shape)}" for key, t in subject.draw(torch.Generator()).items())
    measured = Measured()
    progress("terms")
    found = examine("terms", values.terms, subject)
    if any(finding.name == "differentiable" and finding.verdict == "passed" for finding in found):  # else there is nothing to measure
        if max(processes, default=1) > 1:
            progress(f"{max(processes)} processes")  # first, since it refuses a function that cannot be imported
            measured.processes += exactness.exactness([subject], processes=processes)[subject.name]
            found += exactness.findings(measured.processes)
        for label, one in CHECKS.items():
            if one is not values.terms:
                progress(label)
                found += examine(label, one, subject)
        for label, one in {"cost": measured.compare_cost, "free embeddings": measured.compare_free}.items():
            progress(label)
            found += examine(label, one, subject)
    return Report(name=subject.name, takes=takes, findings=tuple(found), measured=measured, seconds=time.perf_counter() - began)
