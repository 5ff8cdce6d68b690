"""A projector A that is not trained: embeddings u = Ar of the representation r = Θx, or of r = (I + W₂)W₁x with a residual block.

X is the symmetric matrix that drives the layers: X = −2C for the losses of `pairs`, the `driving_matrix` of `infonce` for InfoNCE, which
moves with the weights. Time is learning rate × step of the loss as it stands, a sum over the samples unless C is averaged. Use float64.

Where u loses dimensions, r need not: the part of r that A maps to zero does not move in training.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from fullrank.dynamics.infonce import driven_vector_field
from fullrank.dynamics.symmetric import check_symmetric
from fullrank.errors import UserError


def projected_flow(Theta: Float[Tensor, "h d"], A: Float[Tensor, "k h"], X: Float[Tensor, "d d"]) -> Float[Tensor, "h d"]:
    """Θ̇ = AᵀAΘX, the flow under any loss of u = AΘx that X drives. It moves Θ within the range of Aᵀ alone.

    Args:
        Theta: weights of the representation r = Θx.
        A: the projector, which stays as it is.
        X: the driving matrix.

    Raises:
        UserError: shapes that do not fit.

    Source: Jing et al. 2022, eq. 9, with W₂ = A held; Esser et al. 2023, Remark 3, which leaves AᵀA out.

    >>> projected_flow(torch.ones(2, 1), torch.tensor([[1.0, 0.0]]), torch.tensor([[3.0]]))
    tensor([[3.],
            [0.]])
    """
    return driven_vector_field([Theta, A], X)[0]


def frozen_weights(Theta: Float[Tensor, "h d"], A: Float[Tensor, "k h"]) -> Float[Tensor, "h d"]:
    """(I − A⁺A)Θ, what no loss of u = AΘx ever moves, since Θ's gradient is in the range of Aᵀ.

    Args:
        Theta: weights of the representation r = Θx.
        A: the projector.

    Source: not in the papers.

    >>> frozen(torch.ones(2, 1), torch.tensor([[1.0, 0.0]]))
    tensor([[0.],
            [1.]])
    """
    return Theta - torch.linalg.pinv(A) @ (A @ Theta)


def projected_weights(
    Theta0: Float[Tensor, "h d"], A: Float[Tensor, "k h"], X: Float[Tensor, "d d"], t: Float[Tensor, "*T"]
) -> Float[Tensor, "*T h d"]:
    """Θ(t) = Q (QᵀΘ₀V ∘ e^{a_i ξ_j t}) Vᵀ with AᵀA = Q diag(a) Qᵀ and X = V diag(ξ) Vᵀ: `projected_flow` solved, for a fixed X.

    Args:
        Theta0: weights at t = 0.
        A: the projector.
        X: the driving matrix, held fixed: −2C.
        t: times, learning rate × step.

    Raises:
        UserError: X is not symmetric.

    Source: not in the papers. Θ₀ e^{Xt}, which Remark 3 of Esser et al. 2023 implies, is the case of AᵀA = I.

    >>> projected_weights(torch.ones(2, 1), torch.tensor([[1.0, 0.0]]), torch.tensor([[3.0]]), torch.tensor(1.0))
    tensor([[20.0855],
            [ 1.0000]])
    """
    check_symmetric(X, "X", "give −2C with a symmetric C")
    _, roots, Qh = torch.linalg.svd(A)  # not of AᵀA, which would let rounding move what is frozen
    a = torch.zeros(A.shape[1], dtype=A.dtype, device=A.device)
    a[: len(roots)] = torch.where(roots > 1e-14 * roots[0], roots, 0).square()
    xi, V = torch.linalg.eigh(X)
    return Qh.mT @ (Qh @ Theta0 @ V * torch.exp(t[..., None, None] * torch.outer(a, xi))) @ V.mT


def growth_rates(a: Float[Tensor, " h"], xi: Float[Tensor, " d"]) -> Float[Tensor, " m"]:
    """The rates r₁ ≥ r₂ ≥ … of Θ's singular values, σ_k(t) ~ e^{r_k t}, from a generic start: m = min(h, d) of them.

    The sum of the first k rates is the largest that a minor of (e^{a_i ξ_j t}) has, a matching of k of the a with k of the ξ. The p
    positive ξ go to the largest a in order, r_k = a_k ξ_k; then, for each k beyond p, the least negative ξ to the smallest a, in opposite
    order. With a projector of rank q, h − q of the a are 0: at most q singular values grow, and up to h − q neither grow nor decay.

    Args:
        a: eigenvalues of AᵀA for Θ; those of AAᵀ for AΘ, the embedding.
        xi: eigenvalues of X: −2λ for C's.

    Returns:
        The rates, descending. u collapses to one dimension at the rate r₁ − r₂.

    Raises:
        UserError: an a below 0, which no AᵀA has.

    Source: not in the papers.

    >>> growth_rates(torch.tensor([1.0, 0.0]), torch.tensor([3.0, 2.0])), growth_rates(torch.ones(2), torch.tensor([3.0, 2.0]))
    (tensor([3., 0.]), tensor([3., 2.]))
    """
    if bool((a < 0).any()):
        raise UserError(f"AᵀA cannot have the eigenvalue {a.min():.3g}; give the squares of A's singular values")
    a, xi, m = a.sort(descending=True).values, xi.sort(descending=True).values, min(len(a), len(xi))
    p = min(int((xi > 0).sum()), m)
    least, smallest = xi[p:m], a.flip(0)[: m - p]
    totals = [(least[:k] * smallest[:k].flip(0)).sum() for k in range(m - p + 1)]
    return torch.cat([a[:p] * xi[:p], torch.stack(totals).diff()])


def collapsed_weights(Theta0: Float[Tensor, "h d"], A: Float[Tensor, "k h"], X: Float[Tensor, "d d"]) -> Float[Tensor, "h d"]:
    """Where Θ ends under Tr(WCWᵀ)/‖W‖_F² of W = AΘ, the trace loss with its scale taken out, for AAᵀ = I and X = −2C:

        Θ(∞) = (I − AᵀA)Θ₀ + ‖W₀‖_F Aᵀ (W₀v/‖W₀v‖) vᵀ,    v the eigenvector of X's largest eigenvalue

    for W₀ = AΘ₀ with W₀v ≠ 0. The flow is `projected_flow` with its growth removed: W moves along W₀e^{Xs}, in a time s of its own, and
    keeps its norm. So u ends with one dimension, and r with one more than is frozen, min(h − k, d) + 1 (d at most).

    Args:
        Theta0: weights at t = 0.
        A: the projector, orthonormal rows.
        X: the driving matrix, held fixed.

    Raises:
        UserError: X is not symmetric, its largest eigenvalue is not simple, or A's rows are not orthonormal.

    Source: not in the papers.

    >>> collapsed(torch.eye(3), torch.eye(2, 3), torch.diag(torch.tensor([2.0, 1.0, 0.0])))
    tensor([[1.4142, 0.0000, 0.0000],
            [0.0000, 0.0000, 0.0000],
            [0.0000, 0.0000, 1.0000]])
    """
    check_symmetric(X, "X", "give −2C with a symmetric C")
    if not torch.allclose(A @ A.mT, torch.eye(len(A), dtype=A.dtype, device=A.device), atol=1e-6):
        raise UserError("the rows of A are not orthonormal, so that W does not keep its norm; integrate the flow instead")
    xi, V = torch.linalg.eigh(X)
    if len(xi) > 1 and xi[-1] - xi[-2] <= 1e-9 * xi.abs().max():
        raise UserError("X's largest eigenvalue is not simple, so that more than one dimension is left; integrate the flow instead")
    W, v = A @ Theta0, V[:, -1]
    end = W.norm() * torch.outer(W @ v / (W @ v).norm(), v)
    return Theta0 + A.mT @ (end - W)


def residual_projector(W2: Float[Tensor, "h h"], A: Float[Tensor, "k h"]) -> Float[Tensor, "k h"]:
    """M = A(I + W₂), what a fixed A and the residual block before it amount to: u = A(I + W₂)W₁x = MW₁x, and M is trained.

    Args:
        W2: weights of the block, r = W₁x + W₂W₁x.
        A: the fixed projector.

    Source: not in the papers; the block is that of Jing et al. 2022, Fig. 10, without its nonlinearity.

    >>> residual_projector(torch.zeros(2, 2), torch.tensor([[1.0, 0.0]]))
    tensor([[1., 0.]])
    """
    return A + A @ W2


def residual_flow(
    W1: Float[Tensor, "h d"], W2: Float[Tensor, "h h"], A: Float[Tensor, "k h"], X: Float[Tensor, "d d"]
) -> list[Float[Tensor, "h _"]]:
    """Ẇ₁ = MᵀMW₁X and Ẇ₂ = AᵀMW₁XW₁ᵀ with M = A(I + W₂): the flow of r = (I + W₂)W₁x under any loss of u = Ar that X drives.

    For AAᵀ = I it is, exactly, the flow of two layers W₁ and M: the network has a *trained* projector of k rows, and conserves
    W₁W₁ᵀ − MᵀM. (I − AᵀA)W₂ is frozen. Ẇ₁ has rank k at most, at every time.

    Args:
        W1: weights of the hidden layer.
        W2: weights of the block.
        A: the fixed projector.
        X: the driving matrix.

    Returns:
        Ẇ₁ and Ẇ₂.

    Raises:
        UserError: shapes that do not fit.

    Source: not in the papers.

    >>> residual_flow(torch.ones(2, 1), torch.zeros(2, 2), torch.tensor([[1.0, 0.0]]), torch.tensor([[3.0]]))
    [tensor([[3.],
            [0.]]), tensor([[3., 3.],
            [0., 0.]])]
    """
    hidden, projector = driven_vector_field([W1, residual_projector(W2, A)], X)
    return [hidden, A.mT @ projector]
