"""An objective as a number: the sum of its terms, and the gradient of that."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from fullrank.conformance.subject import ObjectiveCase
from fullrank.objectives import Terms, total


class Taken(NamedTuple):
    """What an objective gives on some tensors."""

    value: Tensor
    """The loss."""
    scale: float
    """Σ |terms|, by which differences of the value are measured: the terms of a loss near zero may cancel. 1 where all are zero."""
    gradients: dict[str, Tensor]
    """By the name of the tensor; zeros where it gets none."""


def terms_of(subject: ObjectiveCase, tensors: Mapping[str, Tensor]) -> Terms:
    """Call it as a method does, by names. A bare tensor, which the check of the terms complains of, is a single term."""
    terms = subject.objective(**tensors)
    return {"loss": terms} if isinstance(terms, Tensor) else terms


def loss_of(subject: ObjectiveCase, tensors: Mapping[str, Tensor]) -> Tensor:
    """Return the sum of its terms.

    >>> from fullrank.conformance.subject import objective_case
    >>> from fullrank.objectives import vicreg
    >>> loss_of(objective_case(vicreg), {"Z": torch.zeros(2, 4, 3)})
    tensor(24.7500)
    """
    return total(terms_of(subject, tensors))


def take(subject: ObjectiveCase, tensors: Mapping[str, Tensor], *, dtype: torch.dtype = torch.float64) -> Taken:
    """Return value and gradients at copies of `tensors`."""
    copies = {name: t.detach().to(dtype, copy=True).requires_grad_() for name, t in tensors.items()}
    terms = torch.stack(list(terms_of(subject, copies).values()))
    gradients = torch.autograd.grad(terms.sum(), list(copies.values()), materialize_grads=True)
    scale = terms.detach().abs().sum().item() or 1.0
    return Taken(terms.detach().sum(), scale, dict(zip(copies, gradients, strict=True)))


def largest(tensors: Iterable[Tensor]) -> float:
    """Return the largest absolute number of all; NaN if there is one.

    >>> largest([torch.ones(2), torch.tensor([-3.0])])
    3.0
    """
    return torch.cat([t.detach().flatten() for t in tensors]).abs().max().item()
