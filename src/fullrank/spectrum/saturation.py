"""Eigenvalues over training: when each has reached its final size, and how many have."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fullrank.errors import UserError


def saturation(curves: Float[Tensor, "T ..."], *, share: float = 0.95) -> Int[Tensor, "..."]:
    """Index of the first record from which a curve stays at or above `share` of its final value.

    min {t : c(t′) ≥ share · c(T) for all t′ ≥ t}. A curve that overshoots and comes back has saturated when it last rose above the
    threshold. It always has a value: one that still grows at the end saturates late, and one that ends at zero at 0, so that a collapse
    looks early. Look at the final value too.

    Args:
        curves: eigenvalues ≥ 0 over training, a record in each row.
        share: of the final value, between 0 and 1.

    Returns:
        An index into the records for each curve; `steps[saturation(curves)]` is the step.

    Raises:
        UserError: no records, or a share that is not between 0 and 1.

    Source: a definition of ours; Skean et al. 2024 (Fig. 3) draw the saturation of the 14th eigenvalue without defining it.

    >>> saturation(torch.tensor([[0.0, 1.0], [0.96, 2.0], [0.5, 1.0], [0.97, 1.0], [1.0, 1.0]]))
    tensor([3, 0])
    """
    if not 0 < share <= 1:
        raise UserError(f"saturation at {share:g} of the final value, expected a share above 0 and at most 1")
    if not len(curves):
        raise UserError("received no record of a curve, expected at least one; measure spectra during training first")
    below = curves < share * curves[-1]
    after = torch.arange(1, len(curves) + 1, device=curves.device).reshape(-1, *(1,) * (curves.ndim - 1))
    return torch.where(below, after, 0).amax(0)


def learned(curves: Float[Tensor, "T K"], *, share: float = 0.5) -> Int[Tensor, " T"]:
    """How many curves have reached `share` of their final value for good, at each record: the count of learning's steps.

    In stepwise learning eigenvalues rise one after the other, and this count climbs one by one from 0 to K. When each step happens
    is what `fullrank.dynamics.stepwise.crossing_times` interpolates. Curves that end at zero are never counted.

    Args:
        curves: eigenvalues ≥ 0 over training, a record in each row.
        share: of the final value; a half is the middle of a step.

    Raises:
        UserError: as `saturation`.

    Source: stepwise learning is that of Simon et al. 2023; the count is ours.

    >>> learned(torch.tensor([[0.1, 0.0, 0.0], [0.9, 0.1, 0.0], [1.0, 0.8, 0.0], [1.0, 1.0, 0.0]]))
    tensor([0, 1, 2, 2])
    """
    reached = saturation(curves, share=share)
    records = torch.arange(len(curves), device=curves.device)[:, None]
    return ((records >= reached) & (curves[-1] > 0)).sum(1)
