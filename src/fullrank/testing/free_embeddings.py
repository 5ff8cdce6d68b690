"""Optimisation of free embeddings, without a network, and the spectrum that an objective reaches."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from fullrank.errors import UserError
from fullrank.spectrum import Spectrum
from fullrank.testing.check_result import CheckResult, required
from fullrank.testing.objective_case import ObjectiveCase, loss_of

INITIAL_RANK, NOISE = 4, 0.1
"""Rank of the initial embeddings without noise, and standard deviation of the noise, which is independent for each
view."""


@dataclass(frozen=True, kw_only=True)
class FreeEmbeddings:
    """Spectra of the first view's embeddings before and after the optimisation."""

    before: Spectrum
    after: Spectrum | None
    """None if an embedding is not finite."""


def initial_embeddings(V: int, N: int, D: int, *, seed: int = 0) -> Float[Tensor, "V N D"]:
    """Return embeddings near a subspace of 4 dimensions, the same for all views, with noise of standard deviation 0.1.

    >>> Spectrum.from_embeddings(initial_embeddings(2, 256, 32)[0]).participation_ratio() < 4
    True
    """
    rng = torch.Generator().manual_seed(seed)
    samples = (
        torch.randn(N, INITIAL_RANK, generator=rng) @ torch.randn(INITIAL_RANK, D, generator=rng) / INITIAL_RANK**0.5
    )
    return samples + NOISE * torch.randn(V, N, D, generator=rng)


def optimize_free_embeddings(
    case: ObjectiveCase, *, N: int = 256, D: int = 32, steps: int = 300, learning_rate: float = 0.02, seed: int = 0
) -> FreeEmbeddings:
    """Minimise the objective over V·N·D free parameters with Adam. The targets are the embeddings themselves, without
    gradient.

    >>> from fullrank.testing.objective_case import objective_case
    >>> from fullrank.objectives import frossl
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


def free_embeddings_result(spectra: FreeEmbeddings, reference: FreeEmbeddings) -> CheckResult:
    """Report the effective rank and FroSSL's; only embeddings that are not finite are a failure."""
    assert reference.after is not None
    before, frossl_rank = spectra.before.effective_rank(), reference.after.effective_rank()
    after = (
        "they are not finite"
        if spectra.after is None
        else f"effective rank {before:.1f} → {spectra.after.effective_rank():.1f}"
    )
    return required(
        "free embeddings",
        spectra.after is not None,
        measured=f"{after} of {spectra.before.D}; FroSSL {frossl_rank:.1f}",
        expected="finite embeddings",
        remedy="give the loss a lower bound: normalise the embeddings, or reduce the weight of the variance term",
    )
