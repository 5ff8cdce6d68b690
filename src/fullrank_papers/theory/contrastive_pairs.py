"""The symmetric matrix C of a loss over pairs, and the unconstrained gradient flow under it, which collapses to one
dimension.

Shapes: n anchors with p positives and q negatives each, d inputs, z outputs. Time t is learning rate × step of the loss
exactly as given: C is a sum over n unless it is averaged, and every rate scales with C. Use float64.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from fullrank_papers.theory.checks import check_symmetric


def pair_matrix(
    X: Float[Tensor, "n d"],
    X_pos: Float[Tensor, "n *p d"],
    X_neg: Float[Tensor, "n *q d"] | None = None,
    *,
    average: bool = False,
) -> Float[Tensor, "d d"]:
    """Return C = (C̃ + C̃ᵀ)/2, C̃ = Σ_i x_i (Σ_j x_ij⁻ − Σ_j x_ij⁺)ᵀ, of the loss Σ_i u_iᵀ(Σ_j u_ij⁻ − Σ_j u_ij⁺) of u
    = Aᵀx.

    Independent negatives, and positives of mean x, give E[C] = n(q μμᵀ − p E[xxᵀ]). For p = q = 1 this is −n·Cov(x),
    negative semidefinite. With q > p and data that are not centred, the direction of μ can have a positive eigenvalue,
    and its output vanishes; centre the data, or average.

    Args:
        X: anchors.
        X_pos: their positives, one (n, d) or several (n, p, d).
        X_neg: their negatives, one or several; without them the non-contrastive C̃ = − Σ_i x_i (Σ_j x_ij⁺)ᵀ.
        average: mean over anchors, over positives and over negatives, rather than sums.

    Source: Esser et al. 2023, eq. 7 (corrected: the paper prints the non-contrastive C̃ with the sign +, under which
    all outputs vanish).

    >>> pair_matrix(torch.eye(2), torch.eye(2))
    tensor([[-1., -0.],
            [-0., -1.]])
    """

    def products(others: Float[Tensor, "n *p d"]) -> Float[Tensor, "d d"]:
        others = others.reshape(len(X), -1, X.shape[-1])
        return X.mT @ (others.mean(1) / len(X) if average else others.sum(1))

    C = -products(X_pos) if X_neg is None else products(X_neg) - products(X_pos)
    return (C + C.mT) / 2


def eigenbasis(C: Float[Tensor, "d d"]) -> tuple[Float[Tensor, " d"], Float[Tensor, "d d"]]:
    """Return the eigenvalues λ of C in ascending order, and the orthogonal V of C = VΛVᵀ.

    Raises:
        UserError: C is not symmetric.

    >>> eigenbasis(torch.tensor([[0.0, 1.0], [1.0, 0.0]]))[0]
    tensor([-1.,  1.])
    """
    check_symmetric(C, "C")
    return torch.linalg.eigh(C)


def unconstrained_weights(
    Theta0: Float[Tensor, "z d"], C: Float[Tensor, "d d"], t: Float[Tensor, "*T"]
) -> Float[Tensor, "*T z d"]:
    """Return Θ(t) = Θ₀ e^{−2Ct}, the solution of the flow Θ′ = −2ΘC of a one-layer network u = Θx under Tr(ΘCΘᵀ).

    Every row obeys the same linear equation. For finite t the rank is that of Θ₀, but all rows turn to the eigenvector
    of λ₁, and the singular values obey s₂/s₁ ~ e^{−2(λ₂−λ₁)t}: dimensional collapse. The rows diverge if λ₁ < 0, vanish
    if λ₁ > 0, and converge if λ₁ = 0.

    With X = −2C this is W(t) = W(0)e^{Xt}, the solution of Ẇ = WX for one layer under InfoNCE with a fixed driving
    matrix X. As many singular values decay as X has negative eigenvalues (for W(0) of full column rank), and the others
    diverge.

    Raises:
        UserError: C is not symmetric.

    Source: Esser et al. 2023, Proposition 1 (corrected: collinear rows of different sizes, not equal components; no
    common fixed point). Jing et al. 2022, Theorem 1 (corrected: no rank is lost at a finite t; positive X does not save
    the effective rank unless X ∝ I).

    >>> unconstrained_weights(torch.eye(2), torch.diag(torch.tensor([0.0, 0.5])), torch.tensor(1.0))
    tensor([[1.0000, 0.0000],
            [0.0000, 0.3679]])
    """
    eigenvalues, V = eigenbasis(C)
    return (Theta0 @ V) * torch.exp(-2 * eigenvalues * t[..., None, None]) @ V.mT
