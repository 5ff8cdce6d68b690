"""What an objective costs: the time of value and gradient, how it grows with N and D, and what is kept for the backward pass."""

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor

from fullrank.conformance.finding import CheckResult, noted
from fullrank.conformance.loss import loss_of
from fullrank.conformance.subject import ObjectiveCase

SAMPLES = (256, 512, 1024)
"""N, at D = DIMENSIONS[0]."""
DIMENSIONS = (64, 128, 256)
"""D, at N = SAMPLES[1]: below it, so that whitening is defined."""
REPEATS = 5


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Seconds and bytes of one objective, in float32, on one thread."""

    samples: tuple[tuple[int, float], ...]
    """(N, seconds), at the smallest D."""
    dimensions: tuple[tuple[int, float], ...]
    """(D, seconds), at the middle N."""
    kept: int
    """Bytes that autograd keeps between forward and backward, at the largest N and the smallest D."""

    @property
    def exponents(self) -> tuple[float, float]:
        """a and b of time ∝ Nᵃ and ∝ Dᵇ, by least squares on logarithms; smaller than in the limit, since small sizes cost overhead."""
        return slope(self.samples), slope(self.dimensions)


def cost(subject: ObjectiveCase) -> Cost:
    """Measure an objective: medians, on one thread, whatever torch is set to."""
    with _one_thread():
        return Cost(
            samples=tuple((N, seconds(subject, N=N, D=DIMENSIONS[0])) for N in SAMPLES),
            dimensions=tuple((D, seconds(subject, N=SAMPLES[1], D=D)) for D in DIMENSIONS),
            kept=kept(subject, N=SAMPLES[-1], D=DIMENSIONS[0]),
        )


def seconds(subject: ObjectiveCase, *, N: int, D: int) -> float:
    """Return the median time of value and gradient, after a first call that is not counted."""
    tensors = _tensors(subject, N=N, D=D)
    times = []
    for _ in range(REPEATS + 1):
        start = time.perf_counter()
        torch.autograd.grad(loss_of(subject, tensors), [tensors[name] for name in subject.embeddings])
        times.append(time.perf_counter() - start)
    return median(times[1:])


def kept(subject: ObjectiveCase, *, N: int, D: int) -> int:
    """Return the bytes of the tensors that the forward pass leaves for the backward pass, those of its arguments left out.

    >>> from fullrank.conformance.subject import objective_case
    >>> kept(objective_case(lambda Z: {"energy": Z.exp().sum()}, name="energy"), N=8, D=4) == 3 * 8 * 4 * 4
    True
    """
    tensors = _tensors(subject, N=N, D=D)
    given = {t.untyped_storage().data_ptr() for t in tensors.values()}
    storages: dict[int, int] = {}

    def pack(t: Tensor) -> Tensor:
        storage = t.untyped_storage()
        if storage.data_ptr() not in given:
            storages[storage.data_ptr()] = storage.nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        loss = loss_of(subject, tensors)  # held until the end, so that no storage is used twice
    del loss
    return sum(storages.values())


def slope(points: Sequence[tuple[int, float]]) -> float:
    """Return the slope of log y on log x, by least squares.

    >>> round(slope([(1, 3.0), (2, 12.0), (4, 48.0)]), 6)
    2.0
    """
    x, y = ([math.log(value) for value in values] for values in zip(*points, strict=True))
    mean = sum(x) / len(x)
    return sum((a - mean) * b for a, b in zip(x, y, strict=True)) / sum((a - mean) ** 2 for a in x)


def findings(own: Cost, reference: Cost) -> list[CheckResult]:
    """Say what it costs, beside FroSSL at the same size, measured in the same minute."""
    (N, of_samples), (D, of_dimensions) = own.samples[-1], own.dimensions[-1]
    a, b = own.exponents

    def beside(mine: float, theirs: float) -> str:
        return f"{1e3 * mine:.3g} ms, {mine / theirs:.2g} times FroSSL's"

    return [
        noted(f"time at N = {N}, D = {DIMENSIONS[0]}", f"{beside(of_samples, reference.samples[-1][1])}; grows as N^{a:.1f}"),
        noted(f"time at N = {SAMPLES[1]}, D = {D}", f"{beside(of_dimensions, reference.dimensions[-1][1])}; grows as D^{b:.1f}"),
        noted(f"kept for backward at N = {N}, D = {DIMENSIONS[0]}", f"{own.kept / 1e6:.3g} MB; FroSSL {reference.kept / 1e6:.3g} MB"),
    ]


def _tensors(subject: ObjectiveCase, *, N: int, D: int) -> dict[str, Tensor]:
    tensors = subject.draw(torch.Generator().manual_seed(0), N=N, D=D)
    return {name: t.float().requires_grad_(name in subject.embeddings) for name, t in tensors.items()}


@contextmanager
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
