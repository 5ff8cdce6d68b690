"""Stepwise learning of a kernel machine, which is a linear network on the features of its kernel: K̃^{½}, one row a training point.

With Γ = `contrastive_kernel(K)` and W = `kernel_weights(Z, K)`, all of `stepwise` holds of it; a wide network is one with its tangent
kernel.

Source: Simon et al. 2023, On the Stepwise Nature of Self-Supervised Learning (arXiv 2303.15438).
"""

import torch
from jaxtyping import Float
from torch import Tensor

from fullrank.dynamics.symmetric import check_symmetric
from fullrank.errors import UserError


def contrastive_kernel(K: Float[Tensor, "M M"]) -> Float[Tensor, "M M"]:
    """K_Γ = (1/2n) K̃^{½} P K̃^{½}, P swapping the two views of each pair: Γ of a kernel machine, with Γ's nonzero eigenvalues.

    With Γ = K_Γ and W = `kernel_weights(Z, K)`, everything in `stepwise` holds of the embeddings of a kernel machine that is trained by
    gradient flow on its weights in feature space, as of a wide network with its tangent kernel.

    Args:
        K: K̃, the kernel of M = 2n points: all first views, then all second views, in the same order.

    Raises:
        UserError: K̃ is not symmetric and positive semidefinite, or M is odd.

    Source: Simon et al. 2023, the kernelised solution.

    >>> contrastive_kernel(torch.eye(2))  # two orthogonal points: their sum is learned, their difference is not
    tensor([[0.0000, 0.5000],
            [0.5000, 0.0000]])
    """
    if len(K) % 2:
        raise UserError(f"the kernel has {len(K)} points, expected two views of each; stack all first views, then all second views")
    root = _power(K, 0.5)
    return root @ root.roll(len(K) // 2, 0) / len(K)


def kernel_weights(Z: Float[Tensor, "2 N D"], K: Float[Tensor, "M M"]) -> Float[Tensor, "D M"]:
    """W = Zᵀ K̃^{−½}, the least weights on the features K̃^{½} that give the training points the embeddings Z.

    Args:
        Z: embeddings of N pairs of views, in the range of K̃.
        K: K̃, the kernel of the same M = 2N points.

    Raises:
        UserError: K̃ is not symmetric and positive semidefinite.

    >>> kernel_weights(torch.ones(2, 1, 1), 4 * torch.eye(2))
    tensor([[0.5000, 0.5000]])
    """
    return kernel_features(Z.flatten(0, 1).mT, K)


def kernel_features(k: Float[Tensor, "B M"], K: Float[Tensor, "M M"]) -> Float[Tensor, "B M"]:
    """k K̃^{−½}, the features of any points as a kernel machine sees them: their embeddings are `kernel_features(k, K) @ W.mT`.

    Args:
        k: kernel of B points with the M training points; K̃ itself for these.
        K: K̃. Its null space is left out.

    Raises:
        UserError: K̃ is not symmetric and positive semidefinite.

    >>> kernel_features(torch.tensor([[2.0, 6.0]]), 4 * torch.eye(2))
    tensor([[1., 3.]])
    """
    return k @ _power(K, -0.5)


def _power(K: Float[Tensor, "M M"], exponent: float) -> Float[Tensor, "M M"]:
    """K^exponent on the range of K, where an eigenvalue within rounding of zero is zero."""
    check_symmetric(K, "the kernel", "take (K + Kᵀ)/2")
    values, B = torch.linalg.eigh(K)
    noise = len(K) * torch.finfo(K.dtype).eps * values[-1].abs()
    if values[0] < -100 * noise:
        raise UserError(
            f"the kernel has an eigenvalue {values[0]:.3g}, expected all ≥ 0; it must come from a positive semidefinite function"
        )
    return torch.where(values > noise, B * values.clamp(min=noise) ** exponent, 0) @ B.mT
