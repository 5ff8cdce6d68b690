"""VICReg: align two views (invariance), keep the variance of each feature (variance), and decorrelate features
(covariance).
"""

import torch
from jaxtyping import Float
from torch import Tensor

from fullrank.distributed import sample_mean
from fullrank.objectives.algebra import off_diagonal_norm2
from fullrank.objectives.faster import fast
from fullrank.objectives.signature import checks_shapes
from fullrank.objectives.terms import Terms

# Added to each variance under the root, so that a constant feature has a finite gradient (paper, eq. 1: ε; value of the
# released code).
EPSILON = 1e-4


@checks_shapes
@fast("columns:vicreg")
def vicreg(
    Z: Float[Tensor, "2 N D"], *, invariance: float = 25.0, variance: float = 25.0, covariance: float = 1.0
) -> Terms:
    """Return the terms of VICReg, on the scale of its authors' code. With C_v the unbiased covariance (divided by N −
    1) of view v,

        ℒ = invariance · mean_{n,d} (z¹ − z²)²
          + variance   · ½ Σ_v mean_d max(0, 1 − √((C_v)_dd + 10⁻⁴))
          + covariance · Σ_v (1/D) Σ_{i≠j} (C_v)_ij²

    The paper divides the first term by N only and does not halve the second: for its loss, multiply `invariance` by D
    and `variance` by 2.

    The cost is N·D·min(N, D): for N < D, Σ_{i≠j} C_ij² comes from the Gram matrix (N, N), with a rounding error
    relative to Σ_ij C_ij².

    Args:
        Z: embeddings of exactly two views of N ≥ 2 samples.
        invariance: weight of the distance between views.
        variance: weight of the hinge on each feature's standard deviation.
        covariance: weight of the covariances between features.

    Returns:
        The terms "invariance", "variance" and "covariance".

    Source: Bardes et al. 2022, VICReg: Variance-Invariance-Covariance Regularization for Self-Supervised Learning, eq.
    1 to 6.

    Two equal views with uncorrelated features of standard deviation above 1 have loss zero:

    >>> import torch
    >>> Z = torch.tensor([[1.0, 1], [1, -1], [-1, 1], [-1, -1]])
    >>> vicreg(torch.stack([Z, Z]))
    {'invariance': tensor(0.), 'variance': tensor(0.), 'covariance': tensor(0.)}
    """
    _, N, D = Z.shape
    A = Z - sample_mean(Z)
    std = (A.square().sum(1) / (N - 1) + EPSILON).sqrt()  # (2, D)
    return {
        "invariance": invariance * (Z[0] - Z[1]).square().mean(),
        "variance": variance * torch.relu(1 - std).mean(-1).sum() / 2,
        "covariance": covariance * off_diagonal_norm2(A, A).sum() / ((N - 1) ** 2 * D),
    }
