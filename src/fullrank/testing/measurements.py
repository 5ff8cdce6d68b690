"""The cost of an objective and the spectrum that it reaches on free embeddings, compared with FroSSL's."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median

import torch
from jaxtyping import Float
from torch import Tensor

from fullrank.errors import UserError
from fullrank.spectrum import Spectrum
from fullrank.testing.case import ObjectiveCase, loss_of
from fullrank.testing.report import CheckResult, info, required

# (N, D) of the times; D is below N, so that whitening is defined.
SIZES = ((1024, 64), (512, 256))
REPEATS = 5
# Rank of the initial embeddings without noise, and standard deviation of the noise, which is independent for each view.
INITIAL_RANK, NOISE = 4, 0.1


def compare_costs(case: ObjectiveCase, reference: ObjectiveCase) -> list[CheckResult]:
    """Report the time of loss and gradient in float32 on one thread, and the memory saved for the backward pass."""
    results = []
    with one_thread():
        for N, D in SIZES:
            seconds, frossl = (measure_seconds(each, N=N, D=D) for each in (case, reference))
            results.append(
                info(f"time at N = {N}, D = {D}", f"{1e3 * seconds:.3g} ms, {seconds / frossl:.2g} times FroSSL's")
            )
    N, D = SIZES[0]
    saved, frossl = (measure_saved_bytes(each, N=N, D=D) / 1e6 for each in (case, reference))
    return [*results, info(f"saved for backward at N = {N}, D = {D}", f"{saved:.3g} MB; FroSSL {frossl:.3g} MB")]


def measure_seconds(case: ObjectiveCase, *, N: int, D: int) -> float:
    """Return the median time of loss and gradient in seconds, without the first call."""
    tensors, times = _tensors(case, N=N, D=D), []
    for _ in range(REPEATS + 1):
        start = time.perf_counter()
        torch.autograd.grad(loss_of(case, tensors), [tensors[name] for name in case.embedding_names])
        times.append(time.perf_counter() - start)
    return median(times[1:])


def measure_saved_bytes(case: ObjectiveCase, *, N: int, D: int) -> int:
    """Return the bytes of the tensors that the forward pass saves for the backward pass, without the arguments of the
    function.

    >>> from fullrank.testing import objective_case
    >>> energy = objective_case(lambda Z: {"energy": Z.exp().sum()}, name="energy")
    >>> measure_saved_bytes(energy, N=8, D=4) == 3 * 8 * 4 * 4
    True
    """
    tensors = _tensors(case, N=N, D=D)
    storages: dict[int, int] = {}

    def pack(t: Tensor) -> Tensor:
        storages[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        loss = loss_of(case, tensors)  # the graph stays alive until the end, so that no address is used twice
    del loss
    arguments = {t.untyped_storage().data_ptr() for t in tensors.values()}
    return sum(size for address, size in storages.items() if address not in arguments)


def _tensors(case: ObjectiveCase, *, N: int, D: int) -> dict[str, Tensor]:
    tensors = case.random_tensors(torch.Generator().manual_seed(0), N=N, D=D)
    return {name: t.float().requires_grad_(name in case.embedding_names) for name, t in tensors.items()}


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@dataclass(frozen=True, kw_only=True)
class FreeEmbeddings:
    """Spectra of the first view's embeddings before and after the optimisation.

    Attributes:
        after: None if an embedding is not finite.
    """

    before: Spectrum
    after: Spectrum | None


def initial_embeddings(V: int, N: int, D: int, *, seed: int = 0) -> Float[Tensor, "V N D"]:
    """Return embeddings near a subspace of 4 dimensions, the same for all views, with noise of standard deviation 0.1.

    >>> Spectrum.from_embeddings(initial_embeddings(2, 256, 32)[0]).participation_ratio() < 4
    True
    """
    rng = torch.Generator().manual_seed(seed)
    directions = torch.randn(N, INITIAL_RANK, generator=rng), torch.randn(INITIAL_RANK, D, generator=rng)
    return directions[0] @ directions[1] / INITIAL_RANK**0.5 + NOISE * torch.randn(V, N, D, generator=rng)


def optimize_free_embeddings(
    case: ObjectiveCase, *, N: int = 256, D: int = 32, steps: int = 300, learning_rate: float = 0.02, seed: int = 0
) -> FreeEmbeddings:
    """Minimise the objective over V·N·D free parameters with Adam. The targets are the embeddings themselves, without
    gradient.

    >>> from fullrank.objectives import frossl
    >>> from fullrank.testing import objective_case
    >>> spectra = optimize_free_embeddings(objective_case(frossl), N=64, D=8, steps=200)
    >>> spectra.before.effective_rank() < 6, spectra.after.effective_rank() > 7
    (True, True)
    """
    X = initial_embeddings(case.views, N, D, seed=seed).requires_grad_()
    before = Spectrum.from_embeddings(X[0].detach())
    state = case.initial_state(D=D, size=N, seed=1)
    optimizer = torch.optim.Adam([X], lr=learning_rate)
    for step in range(steps):
        tensors = case.tensors(X, X.detach(), state)
        optimizer.zero_grad()
        loss_of(case, tensors, seed=step).backward()
        optimizer.step()
        with torch.no_grad():
            state = case.next_state(tensors)
    try:
        return FreeEmbeddings(before=before, after=Spectrum.from_embeddings(X[0].detach()))
    except UserError:
        return FreeEmbeddings(before=before, after=None)


def compare_free_embeddings(case: ObjectiveCase, reference: ObjectiveCase) -> list[CheckResult]:
    """Report the effective rank of free embeddings; only embeddings that are not finite are a failure."""
    found, frossl = optimize_free_embeddings(case), optimize_free_embeddings(reference)
    ranks = [f"{spectrum.effective_rank():.1f}" for spectrum in (found.before, found.after, frossl.after) if spectrum]
    finite = found.after is not None
    measured = f"effective rank {' → '.join(ranks[:2])} of 32; FroSSL {ranks[-1]}" if finite else "not finite"
    return [required("free embeddings", finite, measured)]
