"""When each eigenvalue saturates during training."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fullrank.errors import UserError
from fullrank.spectrum.functional import check_finite, check_floats


def saturation(curves: Float[Tensor, "T ..."], *, tolerance: float = 0.05) -> Int[Tensor, "..."]:
    """Return the first index at which each curve is near its end: the mean m of its last fifth.

    min {t : |c(t) − m| ≤ tolerance · m}, or the last index if there is none. Noise late in a run does not move it, as
    it moves the index from which a curve stays near its last value. A curve that still grows at the end saturates late,
    and one that overshoots may pass near m on its way. A collapsed eigenvalue also has an index; check its final value.

    Args:
        curves: eigenvalues ≥ 0 during training, one evaluation per row.
        tolerance: largest relative distance, not negative.

    Returns:
        An index into the rows for each curve; `steps[saturation(curves)]` is the step.

    Raises:
        UserError: `curves` has no rows, or is not a finite floating-point tensor; or `tolerance` is negative.

    Source: our definition; Skean et al. 2023 (Fig. 3) draw the saturation of the 14th eigenvalue without defining it.

    >>> saturation(torch.tensor([[0.0, 1.0], [0.96, 2.0], [0.5, 1.0], [0.97, 1.0], [1.0, 1.0]]))
    tensor([1, 0])
    """
    check_floats(curves, "curves", "tensor with one evaluation per row")
    if not tolerance >= 0:
        raise UserError(f"tolerance is {tolerance:g}, expected at least 0")
    if not len(curves):
        raise UserError("curves has no rows, expected at least one evaluation; measure spectra during training first")
    check_finite(curves, "curves")
    last = curves[-max(1, len(curves) // 5) :].mean(0)
    near = (curves - last).abs() <= tolerance * last
    return torch.where(near.any(0), near.int().argmax(0), len(curves) - 1)
