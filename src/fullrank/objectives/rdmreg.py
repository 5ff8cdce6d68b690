"""Rectified LpJEPA: align the views of a sample, and make the rectified embeddings a sparse distribution (RDMReg)."""

import math
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from fullrank.errors import pick
from fullrank.objectives.algebra import random_directions
from fullrank.objectives.signature import checks_shapes
from fullrank.objectives.terms import Terms


@checks_shapes
def rdmreg(
    Z: Float[Tensor, "V N D"],
    *,
    invariance: float = 25.0,
    distribution: float = 125.0,
    shift: float = 0.0,
    p: Literal[1, 2] = 1,
    slices: int = 8192,
    generator: torch.Generator | None = None,
) -> Terms:
    """Return the terms of Rectified LpJEPA, for any number of views. With Y = ReLU(Z), random unit directions a_k, and
    targets t_vi of independent features ReLU(shift + s), where s has unit variance and a Laplace (p = 1) or a
    normal distribution (p = 2),

        ℒ = invariance · 2V/(V − 1) mean_{v,i,d} (y_vid − mean_w y_wid)²
          + distribution · mean_{v,k,i} (sort_i(y_vi · a_k) − sort_i(t_vi · a_k))²

    The first term is the mean of (y_vid − y_wid)² over pairs of views. The second one, the sliced Wasserstein distance
    of two samples, sets about half of the features to zero (shift = 0), or more with a negative shift. The cost is
    V·N·slices·(2D + log N), and the memory 2V·N·slices. A feature that is negative for all samples gets no gradient.

    Args:
        Z: embeddings of V ≥ 2 views of N samples, before the ReLU, which the authors' projector ends with.
        invariance: weight of the distance between views.
        distribution: weight of the distance to the target distribution; the authors take 125 for ImageNet-100 and 250
            for CIFAR-100.
        shift: location of the target before the ReLU, the paper's μ.
        p: exponent of the target's density, exp(−|s|ᵖ/(p σᵖ)).
        slices: number of directions.
        generator: of directions and targets; None: torch's.

    Returns:
        The terms "invariance" and "distribution".

    Source: Kuang et al. 2026, Rectified LpJEPA: Joint-Embedding Predictive Architectures with Sparse and
    Maximum-Entropy Representations, Section 4, and the authors' code, with σ of unit variance (σ_GN).

    >>> Z = torch.full((2, 4, 3), -1.0)  # all features are zero
    >>> rdmreg(Z, generator=torch.Generator().manual_seed(0))["invariance"]
    tensor(0.)
    """
    V, _, D = Z.shape
    Y = Z.relu()
    directions = random_directions(D, slices, generator)
    noise = pick(str(p), {"1": laplace, "2": normal}, "p")(*Z.shape, generator=generator)
    targets = (shift + noise).relu().to(Z) @ directions.to(Z)
    distances = ((Y @ directions.to(Z)).sort(1).values - targets.sort(1).values).square()
    return {
        "invariance": invariance * 2 * V / (V - 1) * (Y - Y.mean(0)).square().mean(),
        "distribution": distribution * distances.mean(),
    }


def normal(*shape: int, generator: torch.Generator | None) -> Tensor:
    """Return standard normal numbers."""
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def laplace(*shape: int, generator: torch.Generator | None) -> Tensor:
    """Return numbers of a Laplace distribution with unit variance."""
    u = torch.rand(*shape, generator=generator, dtype=torch.float64) * 2 - 1
    return -u.sign() * torch.log1p(-u.abs()) / math.sqrt(2)
