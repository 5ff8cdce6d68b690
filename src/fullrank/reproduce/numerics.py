"""Random numbers and statistics that several figures share."""

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from fullrank.spectrum.functional import effective_rank


def normal(*shape: int, rng: torch.Generator) -> Tensor:
    """Return float64 standard normal numbers."""
    return torch.randn(*shape, generator=rng, dtype=torch.float64)


def uncentered_rank(Z: Float[Tensor, "*T n D"]) -> Float[Tensor, "*T"]:
    """Return the effective rank of ZᵀZ, which is not centred.

    >>> uncentered_rank(torch.eye(3))
    tensor(3.)
    """
    return effective_rank(torch.linalg.svdvals(Z).square())


def ratios(a: Iterable[float | int], b: Iterable[float | int]) -> list[float]:
    """Return a/b for each pair."""
    return [x / y for x, y in zip(a, b, strict=True)]


def log_slope(x: Sequence[float | int], y: Sequence[float | int]) -> float:
    """Return the exponent a of numbers y that scale as xᵃ.

    >>> round(log_slope([1, 2, 4], [3, 12, 48]), 6)
    2.0
    """
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])
