"""VIbCReg: VICReg with correlations instead of covariances."""

import torch
from jaxtyping import Float
from torch import Tensor

from fullrank.objectives.algebra import centered, off_diagonal_norm2, unit
from fullrank.objectives.signature import checks_shapes
from fullrank.objectives.terms import Terms
from fullrank.objectives.vicreg import EPSILON


@checks_shapes
def vibcreg(
    Z: Float[Tensor, "2 N D"], *, invariance: float = 25.0, variance: float = 50.0, covariance: float = 200.0
) -> Terms:
    """Return the terms of VIbCReg. With σ_vd² the unbiased variance (divided by N − 1) and M_v (D, D) the correlations
    of the features of view v,

        ℒ = invariance · mean_{n,d} (z¹ − z²)²
          + variance   · ½ Σ_v mean_d max(0, 1 − √(σ_vd² + 10⁻⁴))
          + covariance · Σ_v (1/D²) Σ_{i≠j} (M_v)_ij²

    Unlike VICReg's covariances, the correlations do not shrink with the scale of the features. The authors also whiten
    the projector's output by iterative normalisation, which is a part of the network (`fullrank.nn.IterNorm`,
    projector.output_iternorm) and not of this function. The cost is N·D·min(N, D).

    Args:
        Z: embeddings of exactly two views of N ≥ 2 samples.
        invariance: weight of the distance between views.
        variance: weight of the hinge on each feature's standard deviation; 50 is the published 25, which counts both
            views.
        covariance: weight of the correlations between features.

    Returns:
        The terms "invariance", "variance" and "covariance".

    Source: Lee and Aune 2021, VIbCReg: Variance-Invariance-better-Covariance Regularization for Self-Supervised
    Learning on Time Series; the weights are those of solo-learn.

    Two equal views with uncorrelated features of standard deviation above 1 have loss zero:

    >>> Z = torch.tensor([[1.0, 1], [1, -1], [-1, 1], [-1, -1]])
    >>> vibcreg(torch.stack([Z, Z]))
    {'invariance': tensor(0.), 'variance': tensor(0.), 'covariance': tensor(0.)}
    """
    _, N, D = Z.shape
    A = centered(Z)
    std = (A.square().sum(1) / (N - 1) + EPSILON).sqrt()  # (2, D)
    U = unit(A, dim=-2)
    return {
        "invariance": invariance * (Z[0] - Z[1]).square().mean(),
        "variance": variance * torch.relu(1 - std).mean(-1).sum() / 2,
        "covariance": covariance * off_diagonal_norm2(U, U).sum() / D**2,
    }
