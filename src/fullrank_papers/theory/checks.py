"""Checks of arguments that several theories share: what would otherwise give wrong numbers without an error."""

import torch
from torch import Tensor

from fullrank.errors import UserError


def check_symmetric(A: Tensor, name: str) -> None:
    """Check that A is square and equal to its transpose, up to rounding.

    Raises:
        UserError: A is not symmetric, or has NaN entries.

    >>> check_symmetric(torch.eye(2), "C")
    """
    if A.ndim != 2 or A.shape[0] != A.shape[1] or not (A - A.mT).abs().max() <= 1e-6 * A.abs().max():
        raise UserError(
            f"{name} of shape {tuple(A.shape)} is not symmetric, or has NaN entries; give ({name} + {name}ᵀ)/2"
        )


def rounding_tolerance(dtype: torch.dtype) -> float:
    """Return how far from 1 the length of an output can be by rounding alone.

    >>> rounding_tolerance(torch.float64)
    1e-12
    """
    return 1e-12 if dtype == torch.float64 else 1e-6


def check_output_length(q: Tensor, tolerance: float = 1e-9) -> None:
    """Check that q = VᵀW1ᵀW2 can come from orthonormal weights: its spectral norm is at most 1.

    Raises:
        UserError: the norm is above 1, or an output is not finite.
    """
    length = torch.linalg.matrix_norm(q, 2).item() if q.isfinite().all() else torch.nan
    if not length <= 1 + max(tolerance, rounding_tolerance(q.dtype)):
        raise UserError(f"outputs have length {length:g}, at most 1 with orthonormal weights; compute q0 = VᵀW1ᵀW2")
