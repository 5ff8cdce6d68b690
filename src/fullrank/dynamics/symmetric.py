"""What several theories ask of a matrix: that it is symmetric."""

from torch import Tensor

from fullrank.errors import UserError


def check_symmetric(A: Tensor, name: str, remedy: str) -> None:
    """Check that A is square and equal to its transpose, up to rounding.

    Args:
        A: the matrix.
        name: how an error calls it.
        remedy: how the error ends.

    Raises:
        UserError: it is not, or not finite.

    >>> import torch
    >>> check_symmetric(torch.eye(2), "C", "give (C + Cᵀ)/2")
    """
    if A.ndim != 2 or A.shape[0] != A.shape[1]:
        raise UserError(f"{name} of shape {tuple(A.shape)} is not symmetric; give a square one")
    if not A.isfinite().all():
        raise UserError(f"{name} holds NaN or infinite entries, expected finite ones; look at the data that it was made of")
    gap = (A - A.mT).abs().max()
    if gap > 1e-6 * A.abs().max():
        raise UserError(f"{name} is not symmetric: entries differ by up to {gap:.3g} from those across the diagonal; {remedy}")
