"""A fixed projector A, which is not trained: embeddings u = Ar of the representation r = Θx.

X is the symmetric matrix that drives the layers, Θ̇ = AᵀAΘX: X = −2C for the losses of `contrastive_pairs`, the
`driving_matrix` of `infonce` for InfoNCE, which changes with the weights; closed forms are for a constant X and start
at Theta0. Time t is learning rate × step of the loss exactly as given, a sum over the samples unless C is averaged. Use
float64.

Even if u loses dimensions, r can keep them: training does not change the part of r that A maps to zero.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from fullrank.errors import UserError
from fullrank_papers.theory.checks import check_symmetric


def frozen_weights(Theta: Float[Tensor, "h d"], A: Float[Tensor, "k h"]) -> Float[Tensor, "h d"]:
    """Return (I − A⁺A)Θ, the part of Θ that no loss of u = AΘx changes, since the gradient of Θ is in the range of Aᵀ.

    Source: not in the papers.

    >>> frozen_weights(torch.ones(2, 1), torch.tensor([[1.0, 0.0]]))
    tensor([[0.],
            [1.]])
    """
    return Theta - torch.linalg.pinv(A) @ (A @ Theta)


def projected_weights(
    Theta0: Float[Tensor, "h d"], A: Float[Tensor, "k h"], X: Float[Tensor, "d d"], t: Float[Tensor, "*T"]
) -> Float[Tensor, "*T h d"]:
    """Return Θ(t) = Q (QᵀΘ₀V ∘ e^{a_i ξ_j t}) Vᵀ, the solution of Θ̇ = AᵀAΘX for a fixed X.

    Here AᵀA = Q diag(a) Qᵀ and X = V diag(ξ) Vᵀ.

    Raises:
        UserError: X is not symmetric.

    Source: not in the papers. The flow is that of Jing et al. 2022, eq. 9, with W₂ = A fixed. Θ₀ e^{Xt}, which Remark 3
    of Esser et al. 2023 implies, is the case of AᵀA = I.

    >>> projected_weights(torch.ones(2, 1), torch.tensor([[1.0, 0.0]]), torch.tensor([[3.0]]), torch.tensor(1.0))
    tensor([[20.0855],
            [ 1.0000]])
    """
    check_symmetric(X, "X")
    _, roots, Qh = torch.linalg.svd(A)  # not eigh(AᵀA): its rounding would move the frozen part
    a = torch.zeros(A.shape[1], dtype=A.dtype, device=A.device)
    a[: len(roots)] = torch.where(roots > 1e-14 * roots[0], roots, 0).square()
    xi, V = torch.linalg.eigh(X)
    return Qh.mT @ (Qh @ Theta0 @ V * torch.exp(t[..., None, None] * torch.outer(a, xi))) @ V.mT


def growth_rates(a: Float[Tensor, " h"], xi: Float[Tensor, " d"]) -> Float[Tensor, " m"]:
    """Return the rates r₁ ≥ r₂ ≥ … of Θ's m = min(h, d) singular values, σ_k(t) ~ e^{r_k t} from a generic start.

    The sum of the first k rates is the largest rate of a minor of (e^{a_i ξ_j t}): a matching of k of the a with k of
    the ξ. The p positive ξ are matched with the largest a in order, r_k = a_k ξ_k. For each k beyond p, the least
    negative ξ are matched with the smallest a in opposite order. With a projector of rank q, h − q of the a are 0: at
    most q singular values grow, and up to h − q neither grow nor decay.

    Args:
        a: eigenvalues of AᵀA for Θ; those of AAᵀ for AΘ, the embedding.
        xi: eigenvalues of X: −2λ for C's.

    Returns:
        The rates, descending. u collapses to one dimension at the rate r₁ − r₂.

    Source: not in the papers.

    >>> eigenvalues = torch.tensor([3.0, 2.0])
    >>> growth_rates(torch.tensor([1.0, 0.0]), eigenvalues), growth_rates(torch.ones(2), eigenvalues)
    (tensor([3., 0.]), tensor([3., 2.]))
    """
    a, xi, m = a.sort(descending=True).values, xi.sort(descending=True).values, min(len(a), len(xi))
    p = min(int((xi > 0).sum()), m)
    least, smallest = xi[p:m], a.flip(0)[: m - p]
    totals = [(least[:k] * smallest[:k].flip(0)).sum() for k in range(m - p + 1)]
    return torch.cat([a[:p] * xi[:p], torch.stack(totals).diff()])


def collapsed_weights(
    Theta0: Float[Tensor, "h d"], A: Float[Tensor, "k h"], X: Float[Tensor, "d d"]
) -> Float[Tensor, "h d"]:
    """Return the limit of Θ under Tr(WCWᵀ)/‖W‖_F² of W = AΘ, the trace loss without its scale, for AAᵀ = I and X = −2C:

        Θ(∞) = (I − AᵀA)Θ₀ + ‖W₀‖_F Aᵀ (W₀v/‖W₀v‖) vᵀ,    v the eigenvector of X's largest eigenvalue

    for W₀ = AΘ₀ with W₀v ≠ 0. The flow is that of `projected_weights` without the growth: W moves along W₀e^{Xs}, where
    s is a rescaled time, and keeps its norm. So u ends with one dimension, and r with one more than is frozen, min(h −
    k, d) + 1 (d at most).

    Raises:
        UserError: X is not symmetric, its largest eigenvalue is not simple, or A's rows are not orthonormal.

    Source: not in the papers.

    >>> collapsed_weights(torch.eye(3), torch.eye(2, 3), torch.diag(torch.tensor([2.0, 1.0, 0.0])))
    tensor([[1.4142, 0.0000, 0.0000],
            [0.0000, 0.0000, 0.0000],
            [0.0000, 0.0000, 1.0000]])
    """
    check_symmetric(X, "X")
    xi, V = torch.linalg.eigh(X)
    multiple = len(xi) > 1 and xi[-1] - xi[-2] <= 1e-9 * xi.abs().max()
    if multiple or not torch.allclose(A @ A.mT, torch.eye(len(A)).to(A), atol=1e-6):
        raise UserError("A's rows are not orthonormal, or X's largest eigenvalue is multiple; integrate the flow")
    W, v = A @ Theta0, V[:, -1]
    end = W.norm() * torch.outer(W @ v / (W @ v).norm(), v)
    return Theta0 + A.mT @ (end - W)
