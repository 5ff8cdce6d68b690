"""When each eigenvalue saturates during training."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fullrank.errors import UserError
from fullrank.spectrum.functional import check_finite, check_floats


def saturation(curves: Float[Tensor, "T ..."], *, share: float = 0.95) -> Int[Tensor, "..."]:
    """Return the first index from which each curve stays at or above `share` of its final value.

    min {t : c(t′) ≥ share · c(T) for all t′ ≥ t}. A curve that falls below the threshold again saturates when it rises
    above it for the last time. Every curve saturates: a curve that still grows at the end saturates late. A curve
    that ends at zero has index 0, so a collapsed eigenvalue seems to saturate early; check the final value too.

    Args:
        curves: eigenvalues ≥ 0 during training, one evaluation per row.
        share: fraction of the final value, above 0 and at most 1.

    Returns:
        An index into the rows for each curve; `steps[saturation(curves)]` is the step.

    Raises:
        UserError: `curves` has no rows, or is not a finite floating-point tensor; or `share` is not above 0 and at most
            1.

    Source: our definition; Skean et al. 2024 (Fig. 3) draw the saturation of the 14th eigenvalue without defining it.

    >>> saturation(torch.tensor([[0.0, 1.0], [0.96, 2.0], [0.5, 1.0], [0.97, 1.0], [1.0, 1.0]]))
    tensor([3, 0])
    """
    check_floats(curves, "curves", "tensor with one evaluation per row")
    if not 0 < share <= 1:
        raise UserError(f"share is {share:g}, expected more than 0 and at most 1")
    if not len(curves):
        raise UserError("curves has no rows, expected at least one evaluation; measure spectra during training first")
    check_finite(curves, "curves")
    below = curves < share * curves[-1]
    after = torch.arange(1, len(curves) + 1, device=curves.device).reshape(-1, *(1,) * (curves.ndim - 1))
    return torch.where(below, after, 0).amax(0)
