"""Barlow Twins: make the cross-correlation matrix of two views equal to the identity."""

from jaxtyping import Float
from torch import Tensor

from fullrank.objectives.algebra import centered, off_diagonal_norm2, unit
from fullrank.objectives.faster import fast
from fullrank.objectives.signature import checks_shapes
from fullrank.objectives.terms import Terms


@checks_shapes
@fast("columns:barlow_twins")
def barlow_twins(Z: Float[Tensor, "2 N D"], *, redundancy: float = 5e-3, scale: float = 1.0) -> Terms:
    """Return the terms of Barlow Twins. With M (D, D) the correlation over the batch of each feature of view 1 with
    each feature of view 2,

        ℒ = scale · (Σ_i (1 − M_ii)² + redundancy · Σ_{i≠j} M_ij²)

    A constant feature has correlation 0 with every other. The loss does not depend on scale and shift of each feature
    of each view.

    The cost is N·D·min(N, D): for N < D, ‖M‖_F² is the inner product of the Gram matrices (N, N) of the two views.

    Args:
        Z: embeddings of exactly two views of N samples.
        redundancy: weight of the correlations between different features, the paper's λ.
        scale: factor of the whole loss, which most public configurations set. It scales the steps of SGD, and those of
            LARS for biases, norms and weights at the clip; elsewhere LARS, and AdamW, undo it. The weight decay of SGD,
            LARS and Adam weighs 1/scale more.

    Returns:
        The terms "invariance" and "redundancy".

    Source: Zbontar et al. 2021, Barlow Twins: Self-Supervised Learning via Redundancy Reduction, eq. 1 and 2.

    Two equal views with uncorrelated features have loss zero:

    >>> import torch
    >>> Z = torch.tensor([[1.0, 1], [1, -1], [-1, 1], [-1, -1]])
    >>> barlow_twins(torch.stack([Z, 3 * Z + 1]))
    {'invariance': tensor(0.), 'redundancy': tensor(0.)}
    """
    Z1, Z2 = unit(centered(Z), dim=-2)
    correlations = (Z1 * Z2).sum(0)  # M_ii
    return {
        "invariance": scale * (1 - correlations).square().sum(),
        "redundancy": scale * redundancy * off_diagonal_norm2(Z1, Z2),
    }
