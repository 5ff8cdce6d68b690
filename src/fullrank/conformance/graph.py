"""The objective as one graph: `torch.compile` without a break, and no wait of the host for the device."""

from collections.abc import Iterator
from contextlib import contextmanager

import jaxtyping
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode

from fullrank.conformance.finding import CheckResult, failure, one_line, required
from fullrank.conformance.loss import largest, loss_of, terms_of
from fullrank.conformance.subject import ObjectiveCase

REMEDY = "keep every value a tensor: torch.where instead of if, no item, no float() or bool() of a tensor, no printing"


def fullgraph(subject: ObjectiveCase) -> list[CheckResult]:
    """`torch.compile(fullgraph=True)` takes the function, and the compiled one gives the same terms."""
    tensors = subject.draw(torch.Generator().manual_seed(0))
    expected = terms_of(subject, tensors)
    with _unchecked_shapes():
        torch._dynamo.reset()  # else functions that share code count against one limit of recompilations
        try:
            found = torch.compile(lambda tensors: terms_of(subject, tensors), fullgraph=True, backend="eager")(tensors)
        except Exception as error:  # of any kind: dynamo's own, or what the function raises under it
            return [failure("compiles into one graph", error, remedy=REMEDY)]
    difference = largest(found[name] - expected[name] for name in expected)
    return [
        required(
            "compiles into one graph",
            difference == 0,
            measured=f"differs by {difference:.2g}" if difference else "the same terms",
            expected="fullgraph=True, the same terms",
            remedy=REMEDY,
        )
    ]


def no_host_sync(subject: ObjectiveCase) -> list[CheckResult]:
    """Value and gradient need no number on the host: nothing reads a tensor's value. (eigvalsh and Cholesky wait on CUDA by nature.)"""
    tensors = subject.draw(torch.Generator().manual_seed(0))
    with FakeTensorMode() as mode, _unchecked_shapes():
        fake = {name: mode.from_tensor(t).requires_grad_(name in subject.embeddings) for name, t in tensors.items()}
        try:
            torch.autograd.grad(loss_of(subject, fake), [fake[name] for name in subject.embeddings])
            waits = ""
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            waits = f"reads a value on the host ({one_line(error)})"
    expected = "no value read on the host"
    return [required("never waits for the device", not waits, measured=waits or "reads none", expected=expected, remedy=REMEDY)]


@contextmanager
def _unchecked_shapes() -> Iterator[None]:
    """Switch jaxtyping's checks off, which break a graph."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", before)
