"""The tangent kernel of a network, and the power of its embeddings in the modes that the kernel learns.

While the weights move little, a network that is trained by gradient flow is the kernel machine of its tangent kernel at
the start. `stepwise` has the modes of a kernel machine, and when each is learned.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from fullrank_papers.theory.stepwise import contrastive_kernel, eigenmodes, kernel_root


def tangent_kernel(
    Z: Float[Tensor, "M D"], weights: Sequence[Tensor], directions: Float[Tensor, "m D"]
) -> Float[Tensor, "M M"]:
    """Return K_ab = mean_k ⟨∂(z_a·v_k)/∂w, ∂(z_b·v_k)/∂w⟩ of embeddings Z that are a function of the weights: one
    kernel for all dimensions, which is exact in the limit of wide layers.

    Args:
        Z: embeddings with a graph. BatchNorm may couple the points.
        weights: the tensors that are trained.
        directions: unit vectors v_k; a few suffice.

    Source: Jacot et al. 2018, Neural Tangent Kernel; Simon et al. 2023 for joint embedding.

    >>> W = torch.eye(2, requires_grad=True)
    >>> tangent_kernel(torch.tensor([[1.0, 0.0], [1.0, 2.0]]) @ W.mT, [W], torch.eye(2))
    tensor([[1., 1.],
            [1., 5.]])
    """
    K = Z.new_zeros(len(Z), len(Z))
    for v in directions:
        outputs = (Z @ v).unbind()
        gradients = [torch.autograd.grad(output, weights, retain_graph=True) for output in outputs]
        J = torch.stack([torch.cat([part.flatten() for part in each]) for each in gradients])
        K += J @ J.mT / len(directions)
    return K


def center_views(K: Float[Tensor, "M M"]) -> Float[Tensor, "M M"]:
    """Return the kernel of features that are centred over the points of each view, as most objectives centre Z."""
    for _ in range(2):
        K = (K.unflatten(0, (2, -1)) - K.unflatten(0, (2, -1)).mean(1, keepdim=True)).flatten(0, 1).mT
    return (K + K.mT) / 2


def kernel_modes(K: Float[Tensor, "M M"], count: int) -> tuple[Float[Tensor, " R"], Float[Tensor, "M R"]]:
    """Return the γ_j of the first modes that a kernel machine learns, and vectors φ_j on the points, with which the
    eigenvalue of embeddings Z (M, D) in mode j is λ_j = γ_j ‖Zᵀφ_j‖².

    With W = ZᵀK̃^{−½} and K_Γ v_j = γ_j v_j, λ_j = γ_j ‖Wv_j‖², and K̃^{−½}v_j = φ_j = PK̃^{½}v_j/(2nγ_j), without an
    inverse of K̃.

    Source: derived from Simon et al. 2023, the kernelised solution.
    """
    gamma, V = eigenmodes(contrastive_kernel(K))
    gamma, V = gamma[:count], V[:, :count]
    return gamma, (kernel_root(K) @ V).roll(len(K) // 2, 0) / (len(K) * gamma)


def mode_powers(
    Z: Float[Tensor, "*T M D"], gamma: Float[Tensor, " R"], modes: Float[Tensor, "M R"]
) -> Float[Tensor, "*T R"]:
    """Return λ_j = γ_j ‖Zᵀφ_j‖² of the embeddings in modes that `kernel_modes` returns."""
    return gamma * (Z.mT @ modes).square().sum(-2)
