"""Checks of arguments that several theories share."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from fullrank.errors import UserError


def check_symmetric(A: Tensor, name: str, remedy: str) -> None:
    """Check that A is square and equal to its transpose, up to rounding; `name` and `remedy` are parts of the error message.

    Raises:
        UserError: A is not symmetric or not finite.

    >>> check_symmetric(torch.eye(2), "C", "give (C + Cᵀ)/2")
    """
    if A.ndim != 2 or A.shape[0] != A.shape[1]:
        raise UserError(f"{name} of shape {tuple(A.shape)} is not symmetric; give a square matrix")
    if not A.isfinite().all():
        raise UserError(f"{name} has NaN or infinite entries, expected finite entries; check the data that it was computed from")
    gap = (A - A.mT).abs().max()
    if gap > 1e-6 * A.abs().max():
        raise UserError(f"{name} is not symmetric: entries differ by up to {gap:.3g} from those across the diagonal; {remedy}")


def check_steps(steps: Sequence[int]) -> None:
    """Check the steps to record: at least one, ascending, from 0 on.

    Raises:
        UserError: the steps are empty or do not ascend from 0 on.
    """
    if not steps or steps[0] < 0 or any(b <= a for a, b in pairwise(steps)):
        raise UserError(f"steps must ascend from 0 or later, received {list(steps)}; sort them and remove duplicates")


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
    if not q.isfinite().all():
        raise UserError("q0 has NaN or infinite entries, expected outputs of at most length 1; compute q0 = VᵀW1ᵀW2")
    length = torch.linalg.matrix_norm(q, 2).item()
    if length > 1 + max(tolerance, rounding_tolerance(q.dtype)):
        raise UserError(f"q0 has length {length:g}, but outputs of orthonormal weights have at most 1; compute q0 = VᵀW1ᵀW2")
