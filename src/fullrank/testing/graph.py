"""Checks of the computation graph: `torch.compile` without a graph break, and no synchronisation of host and device."""

from collections.abc import Iterator
from contextlib import contextmanager

import jaxtyping
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode

from fullrank.objectives.signature import takes_generator
from fullrank.testing.check_result import CheckResult, exception_line, exception_result, info, required
from fullrank.testing.objective_case import ObjectiveCase, loss_of, max_abs, terms_of

REMEDY = (
    "keep every value a tensor: use torch.where instead of if, and no .item(), float(), bool() or print of a tensor"
)


def check_compile(case: ObjectiveCase) -> list[CheckResult]:
    """Check that `torch.compile(fullgraph=True)` accepts the function, and that the compiled function gives the same
    terms.
    """
    name = "compiles into one graph"
    if takes_generator(case.objective):
        return [info(name, "not tested: torch.compile accepts no generator")]
    tensors = case.random_tensors(torch.Generator().manual_seed(0))
    expected = terms_of(case, tensors)
    with _no_shape_checks():
        torch._dynamo.reset()  # functions with the same code share a limit on recompilations
        try:
            compiled = torch.compile(lambda tensors: terms_of(case, tensors), fullgraph=True, backend="eager")(tensors)
        except Exception as error:  # of any type, from dynamo or from the function
            return [exception_result(name, error, remedy=REMEDY)]
    difference = max_abs((compiled[term] - expected[term]) / expected[term].abs().clamp_min(1) for term in expected)
    same = difference <= 1e-12  # in float64: a compiled function may sum in another order
    measured = "the same terms" if same else f"differs by {difference:.2g}"
    return [required(name, same, measured=measured, expected="fullgraph=True, the same terms", remedy=REMEDY)]


def check_host_sync(case: ObjectiveCase) -> list[CheckResult]:
    """Check that loss and gradient read no value of a tensor on the host. (On CUDA, eigvalsh and Cholesky always
    synchronise.)
    """
    tensors = case.random_tensors(torch.Generator().manual_seed(0))
    with FakeTensorMode() as mode, _no_shape_checks():
        fake = {name: mode.from_tensor(t).requires_grad_(name in case.embedding_names) for name, t in tensors.items()}
        try:
            torch.autograd.grad(loss_of(case, fake), [fake[name] for name in case.embedding_names])
            sync = ""
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            sync = f"reads a value on the host ({exception_line(error)})"
    expected = "no value read on the host"
    return [
        required("no host synchronisation", not sync, measured=sync or "reads none", expected=expected, remedy=REMEDY)
    ]


@contextmanager
def _no_shape_checks() -> Iterator[None]:
    """Disable jaxtyping's checks, which break a graph."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", before)
