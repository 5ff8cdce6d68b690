"""Random matrices, integration, comparisons and orders of convergence for the tests of all theories."""

from functools import partial

import numpy as np
import torch
from torch import Tensor

from fullrank_papers.theory.flow import solve_ode


def randn(rng: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=rng, dtype=torch.float64)


def seeded_randn(*shape: int, seed: int = 0) -> Tensor:
    return randn(torch.Generator().manual_seed(seed), *shape)


def vector(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def orthogonal(rng: torch.Generator, size: int) -> Tensor:
    return torch.linalg.qr(randn(rng, size, size)).Q


def symmetric(rng: torch.Generator, size: int) -> Tensor:
    A = randn(rng, size, size)
    return (A + A.mT) / 2


def view_pairs(rng: torch.Generator, n: int = 8, m: int = 5) -> Tensor:
    """n anchors and their positives."""
    x = randn(rng, n, m)
    return torch.stack([x, x + 0.5 * randn(rng, n, m)])


def moments_from_blocks(G1: Tensor, C: Tensor, G2: Tensor) -> Tensor:
    """G of `two_view` from G₁ = X₁ᵀX₁, C = X₁ᵀX₂ and G₂ = X₂ᵀX₂."""
    return torch.stack([torch.stack([G1, C]), torch.stack([C.mT, G2])])


def basis(size: int) -> Tensor:
    """The eigenvectors of `aligned_moments`."""
    return orthogonal(torch.Generator().manual_seed(3), size)


def aligned_moments(lam: Tensor, kappa: Tensor) -> Tensor:
    """Moments with λ = γ and κ in a common basis, neither the standard one nor that of the weights."""
    V = basis(len(lam))
    G, C = ((V * spectrum) @ V.mT for spectrum in (lam, kappa))
    return moments_from_blocks((G + G.mT) / 2, (C + C.mT) / 2, (G + G.mT) / 2)


def close(actual, expected, tolerance: float = 1e-12) -> None:
    """Equal up to the tolerance, relative or absolute."""
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


def close_absolute(actual, expected, tolerance: float) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance)


def relative_error(actual, expected) -> float:
    """‖actual − expected‖/‖expected‖ of tensors or of sequences of tensors."""
    actual, expected = (
        x.flatten() if isinstance(x, Tensor) else torch.cat([part.flatten() for part in x]) for x in (actual, expected)
    )
    return ((actual - expected).norm() / expected.norm()).item()


def convergence_order(errors, steps) -> float:
    """The slope of log error over log step."""
    return np.polyfit(np.log(steps), np.log(errors), 1)[0]


integrate = partial(solve_ode, rtol=1e-12, atol=1e-14)
