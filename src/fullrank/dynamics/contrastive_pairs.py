"""The symmetric matrix C of a loss over pairs, and the free gradient flow under it, which collapses to one dimension.

Shapes: n anchors with p positives and q negatives each, d inputs, z outputs. Time is learning rate × step of the loss as it stands: C is
a sum over n unless it is averaged, and every rate scales with it. Use float64.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from fullrank.dynamics.symmetric import check_symmetric
from fullrank.errors import UserError


def pairing(n: int, p: int, q: int, *, average: bool = False) -> Float[Tensor, "m m"]:
    """The symmetric S of Σ_i u_iᵀ(Σ_j u_ij⁻ − Σ_j u_ij⁺) = Tr(UᵀSU), for any embeddings U of m = n(1 + p + q) points.

    Args:
        n: number of anchors, the first n points.
        p: positives of each anchor; they follow, those of the first anchor first.
        q: negatives of each anchor; they come last, in the same order. 0 is the non-contrastive loss − Σ_i u_iᵀu_i⁺.
        average: mean over anchors, over positives and over negatives, rather than sums.

    Returns:
        S in float64.

    Source: Esser et al. 2023, Representation Learning Dynamics of Self-Supervised Models, eq. 1, 2 and 7 (corrected: the sign of the
    non-contrastive loss, and positives and negatives that belong to an anchor).

    >>> pairing(1, 1, 1)
    tensor([[ 0.0000, -0.5000,  0.5000],
            [-0.5000,  0.0000,  0.0000],
            [ 0.5000,  0.0000,  0.0000]], dtype=torch.float64)
    """
    one = torch.eye(n, dtype=torch.float64) / (n if average else 1)
    positives = -one.repeat_interleave(p, 1) / (p if average else 1)
    negatives = one.repeat_interleave(q, 1) / (q if average and q else 1)
    S = torch.zeros(n * (1 + p + q), n * (1 + p + q), dtype=torch.float64)
    S[:n, n:] = torch.cat([positives, negatives], 1)
    return (S + S.mT) / 2


def pair_matrix(
    X: Float[Tensor, "n d"], X_pos: Float[Tensor, "n *p d"], X_neg: Float[Tensor, "n *q d"] | None = None, *, average: bool = False
) -> Float[Tensor, "d d"]:
    """The matrix C = (C̃ + C̃ᵀ)/2, C̃ = Σ_i x_i (Σ_j x_ij⁻ − Σ_j x_ij⁺)ᵀ, of the loss Σ_i u_iᵀ(Σ_j u_ij⁻ − Σ_j u_ij⁺) of u = Aᵀx.

    Independent negatives and positives of mean x give E[C] = n(q μμᵀ − p E[xxᵀ]): −n·Cov(x) for p = q = 1, negative semidefinite. With
    q > p and data that are not centred, the direction of μ can get a positive eigenvalue, and dies; centre the data, or average.

    Args:
        X: anchors.
        X_pos: their positives, one (n, d) or several (n, p, d).
        X_neg: their negatives, one or several; without them the non-contrastive C̃ = − Σ_i x_i (Σ_j x_ij⁺)ᵀ.
        average: mean over anchors, over positives and over negatives, rather than sums.

    Raises:
        UserError: positives or negatives that do not fit the anchors.

    Source: Esser et al. 2023, eq. 7 (corrected: the paper prints the non-contrastive C̃ with the sign +, under which all outputs vanish).

    >>> pair_matrix(torch.eye(2), torch.eye(2))
    tensor([[-1., -0.],
            [-0., -1.]])
    """
    C = -_pair_products(X, X_pos, average)
    if X_neg is not None:
        C = C + _pair_products(X, X_neg, average)
    return (C + C.mT) / 2


def _pair_products(X: Float[Tensor, "n d"], others: Float[Tensor, "n *p d"], average: bool) -> Float[Tensor, "d d"]:
    """Σ_i x_i (Σ_j x_ij)ᵀ, or the mean."""
    if (len(others), others.shape[-1]) != X.shape or others.ndim not in (2, 3):
        raise UserError(f"anchors {tuple(X.shape)} and pairs {tuple(others.shape)} do not fit; give pairs of shape (n, d) or (n, pairs, d)")
    others = others.reshape(len(X), -1, X.shape[-1])
    return X.mT @ (others.mean(1) / len(X) if average else others.sum(1))


def eigenbasis(C: Float[Tensor, "d d"]) -> tuple[Float[Tensor, " d"], Float[Tensor, "d d"]]:
    """Eigenvalues λ of C, ascending, and the orthogonal V of C = VΛVᵀ.

    Raises:
        UserError: C is not symmetric.

    >>> eigenbasis(torch.tensor([[0.0, 1.0], [1.0, 0.0]]))[0]
    tensor([-1.,  1.])
    """
    check_symmetric(C, "C", "give (C + Cᵀ)/2, which has the same loss")
    return torch.linalg.eigh(C)


def unconstrained_weights(Theta0: Float[Tensor, "z d"], C: Float[Tensor, "d d"], t: Float[Tensor, "*T"]) -> Float[Tensor, "*T z d"]:
    """The free flow Θ′ = −2ΘC of the one-layer network u = Θx under Tr(ΘCΘᵀ), solved: Θ(t) = Θ₀ e^{−2Ct}.

    Every row obeys the same linear equation. For finite t the rank is that of Θ₀, but all rows turn to the eigenvector of λ₁, the singular
    values as s₂/s₁ ~ e^{−2(λ₂−λ₁)t}: dimensional collapse. Their size diverges if λ₁ < 0, vanishes if λ₁ > 0, and has a limit if λ₁ = 0.

    Args:
        Theta0: weights at t = 0.
        C: symmetric matrix of the loss.
        t: times, learning rate × step, with C as it stands (a sum over n unless it was averaged).

    Raises:
        UserError: C is not symmetric.

    Source: Esser et al. 2023, Proposition 1 (corrected: collinear rows of different sizes, not equal components; no common fixed point).

    >>> unconstrained(torch.eye(2), torch.diag(torch.tensor([0.0, 0.5])), torch.tensor(1.0))
    tensor([[1.0000, 0.0000],
            [0.0000, 0.3679]])
    """
    eigenvalues, V = eigenbasis(C)
    return (Theta0 @ V) * torch.exp(-2 * eigenvalues * t[..., None, None]) @ V.mT


def unconstrained_kernel(
    U0: Float[Tensor, "m z"], K: Float[Tensor, "m m"], S: Float[Tensor, "m m"], t: Float[Tensor, "*T"]
) -> Float[Tensor, "*T m z"]:
    """The free flow of a kernel model under Tr(UᵀSU), U′ = −2KSU, solved: U(t) = e^{−2KSt} U₀. K = XXᵀ is the linear network.

    Points that are in no pair (rows of zeros in S) are carried along: this is how new points are embedded.

    Args:
        U0: embeddings of m points at t = 0.
        K: kernel of the points.
        S: symmetric matrix of the pairs, as `pairing` makes it.
        t: times, learning rate × step, with S as it stands (sums over pairs unless averaged).

    Raises:
        UserError: K or S is not symmetric.

    Source: Esser et al. 2023, Proposition 1 with k(x, x′) in the place of xᵀx′.

    >>> unconstrained_kernel(torch.eye(2), torch.eye(2), torch.diag(torch.tensor([0.0, 0.5])), torch.tensor(1.0))
    tensor([[1.0000, 0.0000],
            [0.0000, 0.3679]])
    """
    check_symmetric(K, "K", "give (K + Kᵀ)/2")
    check_symmetric(S, "S", "give (S + Sᵀ)/2, which has the same loss")
    return torch.linalg.matrix_exp(-2 * t[..., None, None] * (K @ S)) @ U0
