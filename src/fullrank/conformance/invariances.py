"""Which changes of the embeddings an objective does not see."""

from collections.abc import Callable, Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from fullrank.conformance.finding import CheckResult, noted
from fullrank.conformance.loss import loss_of, take
from fullrank.conformance.subject import ObjectiveCase

Tensors = Mapping[str, Tensor]
Change = Callable[[ObjectiveCase, Tensors, torch.Generator], Tensors]
"""Of all tensors of an objective, given at float64."""

HOLDS = 1e-9
"""Change of the value by Σ|terms| up to which it is rounding."""


def invariances(subject: ObjectiveCase) -> list[CheckResult]:
    """Say of each change whether the value stays; no objective has to ignore any of them."""
    found = []
    for name, change in measured(subject).items():
        found.append(noted(f"invariant under {name}", "holds" if change <= HOLDS else f"does not: value changes by {change:.2g}"))
    return found


def measured(subject: ObjectiveCase) -> dict[str, float]:
    """Return how much the value changes, by Σ|terms|, under each change of the embeddings.

    >>> from fullrank.conformance.subject import objective_case
    >>> from fullrank.objectives import simclr
    >>> [name for name, change in measured(objective_case(simclr)).items() if change > HOLDS]
    ['scale of each dimension', 'shift of each dimension']
    """
    tensors = subject.draw(torch.Generator().manual_seed(0))
    before = take(subject, tensors)
    after = {name: loss_of(subject, change(subject, tensors, torch.Generator().manual_seed(1))) for name, change in CHANGES.items()}
    return {name: ((value - before.value).abs() / before.scale).item() for name, value in after.items()}


def _of_samples(subject: ObjectiveCase, tensors: Tensors, change: Callable[[Tensor], Tensor]) -> Tensors:
    samples = subject.embeddings + subject.targets
    return {name: change(t) if name in samples else t for name, t in tensors.items()}


def _of_space(subject: ObjectiveCase, tensors: Tensors, A: Float[Tensor, "D D"]) -> Tensors:
    """The embedding space turned by an orthogonal A, with the state that lives in it."""
    covariances = {"C", "R"} & set(subject.state)
    return {name: A.mT @ t @ A if name in covariances else t @ A for name, t in tensors.items()}


def _size(tensors: Tensors) -> torch.Size:
    """(V, N, D) of the first tensor, or (N, D)."""
    return next(iter(tensors.values())).shape


def _rotation(subject: ObjectiveCase, tensors: Tensors, rng: torch.Generator) -> Tensors:
    D = _size(tensors)[-1]
    return _of_space(subject, tensors, torch.linalg.qr(torch.randn(D, D, generator=rng, dtype=torch.float64)).Q)


def _order_of_dimensions(subject: ObjectiveCase, tensors: Tensors, rng: torch.Generator) -> Tensors:
    D = _size(tensors)[-1]
    return _of_space(subject, tensors, torch.eye(D, dtype=torch.float64)[torch.randperm(D, generator=rng)])


def _order_of_samples(subject: ObjectiveCase, tensors: Tensors, rng: torch.Generator) -> Tensors:
    order = torch.randperm(_size(tensors)[-2], generator=rng)
    return _of_samples(subject, tensors, lambda t: t[..., order, :])


def _order_of_views(subject: ObjectiveCase, tensors: Tensors, rng: torch.Generator) -> Tensors:
    """The views turned round, with the state that each has of its own."""
    of_views = {name for name, t in tensors.items() if name in ("R", "mu") or (t.ndim == 3 and name not in subject.state)}
    return {name: t.flip(0) if name in of_views else t for name, t in tensors.items()}


def _scale(subject: ObjectiveCase, tensors: Tensors, rng: torch.Generator) -> Tensors:
    return _of_samples(subject, tensors, lambda t: 1.7 * t)


def _scales(subject: ObjectiveCase, tensors: Tensors, rng: torch.Generator) -> Tensors:
    by = torch.rand(_size(tensors)[-1], generator=rng, dtype=torch.float64) + 0.5
    return _of_samples(subject, tensors, lambda t: by * t)


def _shifts(subject: ObjectiveCase, tensors: Tensors, rng: torch.Generator) -> Tensors:
    by = torch.randn(_size(tensors)[-1], generator=rng, dtype=torch.float64)
    return _of_samples(subject, tensors, lambda t: t + by)


def _rows(subject: ObjectiveCase, tensors: Tensors, rng: torch.Generator) -> Tensors:
    by = torch.rand(*_size(tensors)[:-1], 1, generator=rng, dtype=torch.float64) + 0.5
    return _of_samples(subject, tensors, lambda t: by * t)


CHANGES: dict[str, Change] = {
    "order of samples": _order_of_samples,
    "order of dimensions": _order_of_dimensions,
    "order of views": _order_of_views,
    "rotation": _rotation,
    "scale": _scale,
    "scale of each dimension": _scales,
    "shift of each dimension": _shifts,
    "scale of each row": _rows,
}
