"""The cost of an objective and the spectrum that it reaches on free embeddings, compared with FroSSL's."""

import timeit
from collections.abc import Iterator
from dataclasses import replace
from statistics import median
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from fullrank.errors import UserError
from fullrank.objectives import frossl
from fullrank.spectrum import Spectrum
from fullrank.testing.case import ObjectiveCase, loss_of, objective_case
from fullrank.testing.report import CheckResult

# (N, D) of the times; D is below N, so that whitening is defined.
SIZES = ((1024, 64), (512, 256))
# Rank of the initial embeddings without noise, and standard deviation of the noise, which is independent for each view.
INITIAL_RANK, NOISE = 4, 0.1


def compare_costs(case: ObjectiveCase) -> Iterator[CheckResult]:
    """Report the time of loss and gradient in float32 on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for N, D in SIZES:
            seconds, usual = (measure_seconds(each, N=N, D=D) for each in (case, frossl_case(case.views)))
            measured = f"{1e3 * seconds:.3g} ms, {seconds / usual:.2g} times FroSSL's"
            yield CheckResult(f"time at N = {N}, D = {D}", None, measured)
    finally:
        torch.set_num_threads(threads)


def frossl_case(views: int) -> ObjectiveCase:
    """Return the test case of FroSSL, with which an objective is compared."""
    return replace(objective_case(frossl), views=views)


def measure_seconds(case: ObjectiveCase, *, N: int, D: int) -> float:
    """Return the median time of loss and gradient in seconds, without the first call."""
    tensors = case.random_tensors(N=N, D=D)
    tensors = {name: t.float().requires_grad_(name in case.embedding_names) for name, t in tensors.items()}
    points = [tensors[name] for name in case.embedding_names]
    return median(timeit.repeat(lambda: torch.autograd.grad(loss_of(case, tensors), points), repeat=6, number=1)[1:])


class FreeEmbeddings(NamedTuple):
    """Spectra of the first view's embeddings before and after the optimisation."""

    before: Spectrum
    after: Spectrum


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

    Raises:
        UserError: an embedding is not finite at the end.

    >>> from fullrank.objectives import frossl
    >>> from fullrank.testing import objective_case
    >>> spectra = optimize_free_embeddings(objective_case(frossl), N=64, D=8, steps=200)
    >>> spectra.before.effective_rank() < 6, spectra.after.effective_rank() > 7
    (True, True)
    """
    X = initial_embeddings(case.views, N, D, seed=seed).requires_grad_()
    before, state = Spectrum.from_embeddings(X[0].detach()), case.initial_state(D=D, size=N, seed=1)
    optimizer = torch.optim.Adam([X], lr=learning_rate)
    for step in range(steps):
        tensors = case.tensors(X, X.detach(), state)
        optimizer.zero_grad()
        loss_of(case, tensors, seed=step).backward()
        optimizer.step()
        with torch.no_grad():
            state = case.next_state(tensors)
    return FreeEmbeddings(before, Spectrum.from_embeddings(X[0].detach()))


def compare_free_embeddings(case: ObjectiveCase) -> Iterator[CheckResult]:
    """Report the effective rank of free embeddings; only embeddings that are not finite are a failure."""
    remedy = "expected finite embeddings; give the loss a lower bound: normalise the embeddings"
    try:
        spectra, usual = (optimize_free_embeddings(each) for each in (case, frossl_case(case.views)))
    except UserError as error:  # of the spectrum
        yield CheckResult("free embeddings", False, str(error), remedy)
        return
    start, end, frossl = (f"{spectrum.effective_rank():.1f}" for spectrum in (*spectra, usual.after))
    yield CheckResult("free embeddings", True, f"effective rank {start} → {end} of 32; FroSSL {frossl}", remedy)
