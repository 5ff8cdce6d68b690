"""An objective alone: embeddings that no network makes are optimised themselves, and their spectrum shows what it wants."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from fullrank.conformance.finding import CheckResult, required
from fullrank.conformance.loss import loss_of
from fullrank.conformance.subject import ObjectiveCase
from fullrank.errors import UserError
from fullrank.objectives.algebra import unit
from fullrank.objectives.corinfomax import corinfomax_moments
from fullrank.objectives.dino import dino_center
from fullrank.objectives.moco import moco_queue
from fullrank.objectives.signature import in_step, tensor_names
from fullrank.objectives.tico import tico_covariance
from fullrank.spectrum import Spectrum

UPDATES: dict[tuple[str, ...], Callable[..., Any]] = {
    ("queue",): moco_queue,
    ("c",): dino_center,
    ("C",): tico_covariance,
    ("R", "mu"): corinfomax_moments,
}
"""Names of a state → the function that moves it on."""

RANK, NOISE = 4, 0.1
"""The embeddings start in this many dimensions, but for noise, which differs from view to view."""


@dataclass(frozen=True, kw_only=True)
class Free:
    """The first view's embeddings before and after."""

    before: Spectrum
    after: Spectrum | None
    """None: they became infinite or NaN."""


def start(V: int, N: int, D: int, *, seed: int = 0) -> Float[Tensor, "V N D"]:
    """Embeddings near a subspace of 4 dimensions, the same for all views, with a tenth of noise.

    >>> Spectrum.from_embeddings(start(2, 256, 32)[0]).participation_ratio() < 4
    True
    """
    rng = torch.Generator().manual_seed(seed)
    samples = torch.randn(N, RANK, generator=rng) @ torch.randn(RANK, D, generator=rng) / RANK**0.5
    return samples + NOISE * torch.randn(V, N, D, generator=rng)


def free(subject: ObjectiveCase, *, N: int = 256, D: int = 32, steps: int = 300, learning_rate: float = 0.02, seed: int = 0) -> Free:
    """Minimise the objective by Adam over V·N·D free numbers. Targets are the embeddings themselves, without gradient.

    >>> from fullrank.conformance.subject import objective_case
    >>> from fullrank.objectives import frossl
    >>> found = free(objective_case(frossl), N=64, D=8, steps=200)
    >>> found.before.effective_rank() < 6, found.after.effective_rank() > 7
    (True, True)
    """
    X = start(subject.views, N, D, seed=seed).requires_grad_()
    before = Spectrum.from_embeddings(X[0].detach())
    state = _initial(subject, N=N, D=D)
    optimizer = torch.optim.Adam([X], lr=learning_rate)
    for _ in range(steps):
        tensors = subject.supply(X, X.detach(), state)
        optimizer.zero_grad()
        loss_of(subject, tensors).backward()
        optimizer.step()
        with torch.no_grad():
            state = _moved(subject, tensors)
    try:
        return Free(before=before, after=Spectrum.from_embeddings(X[0].detach()))
    except UserError:
        return Free(before=before, after=None)


def _initial(subject: ObjectiveCase, *, N: int, D: int) -> dict[str, Tensor]:
    """The state of a run that begins."""
    rng = torch.Generator().manual_seed(1)
    first = {
        "queue": unit(torch.randn(N, D, generator=rng), dim=-1),
        "c": torch.zeros(D),
        "C": torch.zeros(D, D),
        "R": torch.eye(D).repeat(subject.views, 1, 1),
        "mu": torch.zeros(subject.views, D),
    }
    return {name: first[name] for name in subject.state}


def _moved(subject: ObjectiveCase, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state after a step, by the updates of the library's objectives, with the objective's own numbers where they share a name."""
    samples = tensors[subject.embeddings[0]]
    moved = {name: tensors[name] for name in subject.state}
    for names, update in UPDATES.items():
        if set(names) <= set(subject.state):
            new = in_step(update, subject.objective)(**{name: tensors.get(name, samples) for name in tensor_names(update)})
            moved |= zip(names, new if isinstance(new, tuple) else (new,), strict=True)
    return moved


def findings(own: Free, reference: Free) -> list[CheckResult]:
    """Say which effective rank it reaches, beside FroSSL; only embeddings that become infinite are a failure."""
    assert reference.after is not None
    before, theirs = own.before.effective_rank(), reference.after.effective_rank()
    reached = "they are not finite" if own.after is None else f"effective rank {before:.1f} → {own.after.effective_rank():.1f}"
    finding = required(
        "free embeddings",
        own.after is not None,
        measured=f"{reached} of {own.before.D}; FroSSL reaches {theirs:.1f}",
        expected="finite embeddings",
        remedy="bound the loss below: normalise the embeddings, or weigh the term that spreads them less",
    )
    return [finding]
