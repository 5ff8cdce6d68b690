"""The cost of an objective: time of loss and gradient, its growth with N and D, and the memory that is saved for the
backward pass.

The growth is also counted, from shapes alone: on torch's device "meta" a batch of any size takes no time and no memory.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fullrank.testing.check_result import CheckResult, info
from fullrank.testing.objective_case import ObjectiveCase, loss_of

SAMPLES = (256, 512, 1024)
"""Numbers of samples N, at D = DIMENSIONS[0]."""
DIMENSIONS = (64, 128, 256)
"""Numbers of dimensions D, at N = SAMPLES[1]. Each D is below N, so that whitening is defined."""
REPEATS = 5
QUEUE = 4096
"""Rows of the queue of `count_operations`."""
SMALL, LARGE = 64, (2**15, 2**16)
"""Sizes of `counted_exponents`: one of N and D is small, the other grows."""
PRODUCTS = {"mm": 0, "bmm": 0, "mv": 0, "dot": 0, "addmm": 1, "baddbmm": 1, "addmv": 1}
"""Operation of torch → position of its first factor."""
DECOMPOSITIONS = (
    "_linalg_eigh",
    "linalg_cholesky_ex",
    "cholesky_solve",
    "linalg_solve_triangular",
    "linalg_inv_ex",
    "_linalg_slogdet",
)
"""Operations of torch that are counted as one product with a square matrix of their size."""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Seconds and bytes of one objective, in float32, on one thread."""

    samples: tuple[tuple[int, float], ...]
    """(N, seconds), at the smallest D."""
    dimensions: tuple[tuple[int, float], ...]
    """(D, seconds), at the middle N."""
    saved_bytes: int
    """Bytes that autograd saves between forward and backward, at the largest N and the smallest D."""

    @property
    def exponents(self) -> tuple[float, float]:
        """Exponents a and b of time ∝ Nᵃ and time ∝ Dᵇ, by least squares on logarithms; overhead at small sizes makes
        both smaller.
        """
        return power_law_exponent(self.samples), power_law_exponent(self.dimensions)


def measure_cost(case: ObjectiveCase) -> Cost:
    """Measure the cost of an objective on one thread; each time is a median."""
    with _one_thread():
        return Cost(
            samples=tuple((N, measure_seconds(case, N=N, D=DIMENSIONS[0])) for N in SAMPLES),
            dimensions=tuple((D, measure_seconds(case, N=SAMPLES[1], D=D)) for D in DIMENSIONS),
            saved_bytes=measure_saved_bytes(case, N=SAMPLES[-1], D=DIMENSIONS[0]),
        )


def measure_seconds(case: ObjectiveCase, *, N: int, D: int) -> float:
    """Return the median time of loss and gradient in seconds, without the first call."""
    tensors = _tensors(case, N=N, D=D)
    times = []
    for _ in range(REPEATS + 1):
        start = time.perf_counter()
        torch.autograd.grad(loss_of(case, tensors), [tensors[name] for name in case.embedding_names])
        times.append(time.perf_counter() - start)
    return median(times[1:])


def measure_saved_bytes(case: ObjectiveCase, *, N: int, D: int) -> int:
    """Return the bytes of the tensors that the forward pass saves for the backward pass, without the arguments of the
    function.

    >>> from fullrank.testing.objective_case import objective_case
    >>> measure_saved_bytes(objective_case(lambda Z: {"energy": Z.exp().sum()}, name="energy"), N=8, D=4) == 3 * 8 * 4 * 4
    True
    """
    tensors = _tensors(case, N=N, D=D)
    arguments = {t.untyped_storage().data_ptr() for t in tensors.values()}
    storages: dict[int, int] = {}

    def pack(t: Tensor) -> Tensor:
        storage = t.untyped_storage()
        if storage.data_ptr() not in arguments:
            storages[storage.data_ptr()] = storage.nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        loss = loss_of(case, tensors)  # the graph stays alive until the end, so that no address is used twice
    del loss
    return sum(storages.values())


def power_law_exponent(points: Sequence[tuple[int, float | int]]) -> float:
    """Return the slope of log y on log x, by least squares.

    >>> round(power_law_exponent([(1, 3.0), (2, 12.0), (4, 48.0)]), 6)
    2.0
    """
    x, y = ([math.log(value) for value in values] for values in zip(*points, strict=True))
    mean = sum(x) / len(x)
    return sum((a - mean) * b for a, b in zip(x, y, strict=True)) / sum((a - mean) ** 2 for a in x)


class OperationCount(TorchDispatchMode):
    """Counts the multiplications of matrix products and decompositions, and the numbers that all other operations
    write.

    >>> A, B = torch.ones(2, 3), torch.ones(3, 5)
    >>> with OperationCount() as count:
    ...     _ = A @ B + 1
    >>> count.multiplications, count.written
    (30, 10)
    """

    multiplications = 0
    written = 0

    def total(self) -> int:
        """Return the number of all operations."""
        return self.multiplications + self.written

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        """Call the operation and count it."""
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__.removesuffix("_")
        if name in PRODUCTS:
            A, B = args[PRODUCTS[name] : PRODUCTS[name] + 2]
            self.multiplications += A.numel() * (B.shape[-1] if B.ndim > 1 else 1)
        elif name in DECOMPOSITIONS:
            A = next(t for t in args if isinstance(t, Tensor))
            rows = max(t.shape[-1] for t in args if isinstance(t, Tensor))
            self.multiplications += A.numel() * rows
        elif not func.is_view:
            self.written += sum(
                t.numel() for t in (out if isinstance(out, tuple | list) else (out,)) if isinstance(t, Tensor)
            )
        return out


def count_operations(case: ObjectiveCase, *, N: int, D: int) -> int:
    """Return the number of operations of loss and gradient for two views, counted from shapes (`OperationCount`)."""
    case = replace(case, views=2)
    with torch.device("meta"):
        X, T = torch.randn(2, 2, N, D)
        state = case.state.initial(V=2, D=D, K=D, size=QUEUE) if case.state else {}
    tensors = {
        name: t.detach().requires_grad_(name in case.embedding_names) for name, t in case.tensors(X, T, state).items()
    }
    with OperationCount() as count:
        torch.autograd.grad(loss_of(case, tensors), [tensors[name] for name in case.embedding_names])
    return count.total()


def counted_exponents(case_of: Callable[[int], ObjectiveCase]) -> tuple[float, float]:
    """Return the exponents a and b of operations ∝ Nᵃ for N ≫ D, and operations ∝ Dᵇ for D ≫ N.

    Args:
        case_of: D → the case of the objective, because a hyperparameter may depend on the number of dimensions.

    >>> from fullrank.testing.objective_case import objective_case
    >>> case = objective_case(lambda Z: {"loss": (Z[0].mT @ Z[1]).square().sum()}, name="products")
    >>> a, b = counted_exponents(lambda D: case)
    >>> round(a, 1), round(b, 1)
    (1.0, 2.0)
    """
    return (
        power_law_exponent([(N, count_operations(case_of(SMALL), N=N, D=SMALL)) for N in LARGE]),
        power_law_exponent([(D, count_operations(case_of(D), N=SMALL, D=D)) for D in LARGE]),
    )


def cost_results(cost: Cost, reference: Cost) -> list[CheckResult]:
    """Report the cost, and its ratio to FroSSL's at the same size."""
    (N, N_seconds), (D, D_seconds) = cost.samples[-1], cost.dimensions[-1]
    a, b = cost.exponents

    def compared(seconds: float, frossl_seconds: float) -> str:
        return f"{1e3 * seconds:.3g} ms, {seconds / frossl_seconds:.2g} times FroSSL's"

    saved = f"{cost.saved_bytes / 1e6:.3g} MB; FroSSL {reference.saved_bytes / 1e6:.3g} MB"
    return [
        info(
            f"time at N = {N}, D = {DIMENSIONS[0]}",
            f"{compared(N_seconds, reference.samples[-1][1])}; grows as N^{a:.1f}",
        ),
        info(
            f"time at N = {SAMPLES[1]}, D = {D}",
            f"{compared(D_seconds, reference.dimensions[-1][1])}; grows as D^{b:.1f}",
        ),
        info(f"saved for backward at N = {N}, D = {DIMENSIONS[0]}", saved),
    ]


def _tensors(case: ObjectiveCase, *, N: int, D: int) -> dict[str, Tensor]:
    tensors = case.random_tensors(torch.Generator().manual_seed(0), N=N, D=D)
    return {name: t.float().requires_grad_(name in case.embedding_names) for name, t in tensors.items()}


@contextmanager
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
