"""Linear (and ReLU) networks under InfoNCE: the matrix X that drives every layer, and the flows.

The loss is `fullrank.objectives.infonce_squared`, a sum over the N samples; time is learning rate × step of gradient descent on that sum.
x are the inputs of two branches (x₁ the anchors, x₂ = x′ their positives), z = W_L…W₁x, and weights are given from the first layer up.
Source of all: Jing et al. 2022, Understanding Dimensional Collapse in Contrastive Self-supervised Learning.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise

import torch
from jaxtyping import Float
from torch import Tensor

from fullrank.errors import UserError


def softmax_weights(Z: Float[Tensor, "2 N D"]) -> Float[Tensor, "N N"]:
    """α_ij = exp(−½‖z_i − z_j‖²)/Z_i for j ≠ i, α_ii = exp(−½‖z_i − z′_i‖²)/Z_i; each row sums to one.

    Args:
        Z: embeddings of N anchors and of their positives.

    Returns:
        α; the diagonal belongs to the positives.

    Source: below eq. 4.

    >>> softmax_weights(torch.zeros(2, 4, 3)).unique()
    tensor([0.2500])
    """
    anchors, positives = Z
    distances = torch.cdist(anchors, anchors, compute_mode="donot_use_mm_for_euclid_dist")
    return distances.diagonal_scatter((anchors - positives).norm(dim=-1)).square().div(-2).softmax(-1)


def embedding_vector_field(Z: Float[Tensor, "2 N D"]) -> Float[Tensor, "2 N D"]:
    """What each embedding is pulled by, (−g_z, −g_z′), the loss's negative gradient:

        g_zᵢ = Σ_{j≠i} α_ij(z_j − z′_i) + Σ_{j≠i} α_ji(z_j − z_i),    g_z′ᵢ = (1 − α_ii)(z′_i − z_i)

    Args:
        Z: embeddings of N anchors and of their positives.

    Returns:
        The velocity of free embeddings.

    Source: eq. 4.

    >>> embedding_flow(torch.tensor([[[0.0], [1.0]], [[0.0], [1.0]]])).sum()
    tensor(0.)
    """
    anchors, positives = Z
    alpha = softmax_weights(Z)
    beta = alpha.diagonal_scatter(torch.zeros_like(alpha[0]))  # the negatives' weights alone
    apart, drawn = beta.sum(1)[:, None], beta.sum(0)[:, None]
    return torch.stack([apart * positives + drawn * anchors - (beta + beta.mT) @ anchors, apart * (anchors - positives)])


def weighted_covariances(x: Float[Tensor, "2 N m"], alpha: Float[Tensor, "N N"]) -> tuple[Float[Tensor, "m m"], Float[Tensor, "m m"]]:
    """Σ̂₀ = Σ_ij α_ij(x_i − x_j)(x_i − x_j)ᵀ of the data and Σ̂₁ = Σ_i (1 − α_ii)(x′_i − x_i)(x′_i − x_i)ᵀ of the augmentation.

    They are sums, no covariances: for uniform α = 1/N, Σ̂₀ is 2N times the covariance of the data (so X ≈ N(2 Cov − Cov_augmentation)).

    Args:
        x: inputs of N anchors and of their positives.
        alpha: `softmax_weights` of their embeddings.

    Returns:
        Σ̂₀ and Σ̂₁, both positive semidefinite.

    Source: Lemma 2, eq. 7.

    >>> data, augmentation = weighted_covariances(torch.tensor([[[0.0], [1.0]], [[0.0], [1.5]]]), torch.full((2, 2), 0.5))
    >>> data, augmentation
    (tensor([[1.]]), tensor([[0.1250]]))
    """
    anchors, positives = x - x[0].mean(0)  # differences alone count: centred, they lose no digits
    laplacian = torch.diag(alpha.sum(0) + alpha.sum(1)) - alpha - alpha.mT
    shifts = positives - anchors
    return anchors.mT @ laplacian @ anchors, shifts.mT @ ((1 - alpha.diagonal())[:, None] * shifts)


def driving_matrix(x: Float[Tensor, "2 N m"], alpha: Float[Tensor, "N N"]) -> Float[Tensor, "m m"]:
    """X = Σ̂₀ − Σ̂₁, symmetric: negative along directions that the augmentation moves more than the data. −∂ℒ/∂W = WX.

    Args:
        x: inputs of N anchors and of their positives.
        alpha: `softmax_weights` of their embeddings.

    Returns:
        X, a function of the weights through α alone.

    Source: eq. 5-7; eq. 6 and Lemma 2 give the same matrix.

    >>> driving_matrix(torch.tensor([[[0.0], [1.0]], [[0.0], [1.5]]]), torch.full((2, 2), 0.5))
    tensor([[0.8750]])
    """
    data, augmentation = weighted_covariances(x, alpha)
    return data - augmentation


def driven_vector_field(weights: Sequence[Float[Tensor, "_ _"]], X: Float[Tensor, "m m"]) -> list[Tensor]:
    """Ẇ_l = (W_L…W_{l+1})ᵀ W X (W_{l−1}…W₁)ᵀ with W = W_L…W₁, for any number of linear layers and any X.

    One layer: Ẇ = WX. Two: Ẇ₁ = W₂ᵀW₂W₁X, Ẇ₂ = W₂W₁XW₁ᵀ.

    Args:
        weights: W₁, …, W_L, each (outputs, inputs).
        X: the driving matrix.

    Returns:
        Ẇ₁, …, Ẇ_L.

    Raises:
        UserError: shapes that do not fit.

    Source: eq. 3, 5 (one layer), 8, 9 (two); Lemma 3.

    >>> layers_flow([torch.eye(2), 2 * torch.eye(2)], torch.eye(2))
    [tensor([[4., 0.],
            [0., 4.]]), tensor([[2., 0.],
            [0., 2.]])]
    """
    _check_layer_shapes(weights, inputs=len(X))
    *below, W = accumulate(weights, lambda lower, upper: upper @ lower, initial=torch.eye(len(X), dtype=X.dtype, device=X.device))
    pull = W @ X  # −G
    flow = []
    for layer, lower in zip(reversed(weights), reversed(below), strict=True):
        flow.append(pull @ lower.mT)
        pull = layer.mT @ pull
    return flow[::-1]


def linear_vector_field(weights: Sequence[Float[Tensor, "_ _"]], x: Float[Tensor, "2 N m"]) -> list[Tensor]:
    """The gradient flow of linear layers under InfoNCE itself: `layers_flow` with the X of these weights, Ẇ_l = −∂ℒ/∂W_l.

    Args:
        weights: W₁, …, W_L, each (outputs, inputs).
        x: inputs of N anchors and of their positives.

    Returns:
        Ẇ₁, …, Ẇ_L.

    Raises:
        UserError: shapes that do not fit.

    Source: Lemmas 1-3, eq. 3-9.

    >>> linear_flow([torch.eye(1)], torch.tensor([[[0.0], [2.0]], [[0.0], [2.0]]]))
    [tensor([[0.9536]])]
    """
    _check_layer_shapes(weights, inputs=x.shape[-1])
    *_, W = accumulate(weights, lambda lower, upper: upper @ lower)
    return driven_vector_field(weights, driving_matrix(x, softmax_weights(x @ W.mT)))


def relu_vector_field(weights: Sequence[Float[Tensor, "_ _"]], x: Float[Tensor, "2 N m"]) -> list[Tensor]:
    """Ẇ_l = −∂ℒ/∂W_l of layers with a ReLU after each but the last, z = W_L relu(… relu(W₁x)).

    No X drives it; the backward pass of `embedding_flow` does, a unit's weights moving only by the samples for which it is on.

    Takes, returns and raises what `linear_flow` does.

    Source: Appendix C, by the chain rule from eq. 4.

    >>> relu_flow([torch.eye(1), torch.eye(1)], torch.tensor([[[0.0], [2.0]], [[0.0], [2.0]]]))
    [tensor([[0.9536]]), tensor([[0.9536]])]
    """
    _check_layer_shapes(weights, inputs=x.shape[-1])
    inputs = list(accumulate(weights[:-1], lambda h, W: (h @ W.mT).relu(), initial=x))
    pull = embedding_vector_field(inputs[-1] @ weights[-1].mT)
    flow = []
    for W, h in zip(reversed(weights), reversed(inputs), strict=True):
        flow.append(torch.einsum("vno,vni->oi", pull, h))
        pull = (pull @ W) * (h > 0)
    return flow[::-1]


def imbalances(weights: Sequence[Float[Tensor, "_ _"]]) -> list[Tensor]:
    """W_lW_lᵀ − W_{l+1}ᵀW_{l+1} of neighbouring layers, conserved by every linear flow (not by steps of finite size: they drift O(lr)).

    Zero at the start means zero for good, and with it full alignment. With ReLU between the layers only the diagonal is conserved.

    Args:
        weights: W₁, …, W_L, each (outputs, inputs).

    Returns:
        L − 1 symmetric matrices.

    Raises:
        UserError: shapes that do not fit.

    Source: Theorem 2's proof (Appendix B.5), here for any depth.

    >>> imbalances([torch.eye(1), 2 * torch.eye(1)])
    [tensor([[-3.]])]
    """
    _check_layer_shapes(weights, inputs=weights[0].shape[1])
    return [lower @ lower.mT - upper.mT @ upper for lower, upper in pairwise(weights)]


def _check_layer_shapes(weights: Sequence[Float[Tensor, "_ _"]], *, inputs: int) -> None:
    """Refuse layers that cannot follow one another from `inputs` dimensions."""
    for layer, W in enumerate(weights, start=1):
        if W.shape[1] != inputs:
            raise UserError(f"W{layer} has shape {tuple(W.shape)}, but {inputs} dimensions enter it; give it the shape (outputs, {inputs})")
        inputs = W.shape[0]
