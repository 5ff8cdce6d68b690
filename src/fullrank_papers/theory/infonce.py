"""Linear (and ReLU) networks under InfoNCE: the matrix X that drives every layer, the vector fields, and training step
by step.

The loss is `fullrank.objectives.infonce_squared`, a sum over the N samples; time is learning rate × step of gradient
descent on that sum. x (2, N, m) are the inputs of two branches (N anchors, and x′ their positives), z = W_L…W₁x, and Z
(2, N, D) the embeddings. Weights are given from the first layer up, each (outputs, inputs).
Source of all: Jing et al. 2022, Understanding Dimensional Collapse in Contrastive Self-supervised Learning.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, pairwise

import torch
from jaxtyping import Float
from torch import Tensor

from fullrank_papers.theory.flow import record


def softmax_weights(Z: Float[Tensor, "2 N D"]) -> Float[Tensor, "N N"]:
    """Return α_ij = exp(−½‖z_i − z_j‖²)/Z_i for j ≠ i, α_ii = exp(−½‖z_i − z′_i‖²)/Z_i; each row sums to one.

    The diagonal belongs to the positives.

    Source: below eq. 4.

    >>> softmax_weights(torch.zeros(2, 4, 3)).unique()
    tensor([0.2500])
    """
    anchors, positives = Z
    distances = torch.cdist(anchors, anchors, compute_mode="donot_use_mm_for_euclid_dist")
    return distances.diagonal_scatter((anchors - positives).norm(dim=-1)).square().div(-2).softmax(-1)


def embedding_vector_field(Z: Float[Tensor, "2 N D"]) -> Float[Tensor, "2 N D"]:
    """Return the velocity of free embeddings, (−g_z, −g_z′), minus the gradient of the loss:

        g_zᵢ = Σ_{j≠i} α_ij(z_j − z′_i) + Σ_{j≠i} α_ji(z_j − z_i),    g_z′ᵢ = (1 − α_ii)(z′_i − z_i)

    Source: eq. 4.

    >>> embedding_vector_field(torch.tensor([[[0.0], [1.0]], [[0.0], [1.0]]])).sum()
    tensor(0.)
    """
    anchors, positives = Z
    alpha = softmax_weights(Z)
    beta = alpha.diagonal_scatter(torch.zeros_like(alpha[0]))  # the weights of the negatives alone
    row_sums, column_sums = beta.sum(1)[:, None], beta.sum(0)[:, None]
    return torch.stack(
        [row_sums * positives + column_sums * anchors - (beta + beta.mT) @ anchors, row_sums * (anchors - positives)]
    )


def weighted_covariances(
    x: Float[Tensor, "2 N m"], alpha: Float[Tensor, "N N"]
) -> tuple[Float[Tensor, "m m"], Float[Tensor, "m m"]]:
    """Return Σ̂₀ = Σ_ij α_ij(x_i − x_j)(x_i − x_j)ᵀ of the data and Σ̂₁ = Σ_i (1 − α_ii)(x′_i − x_i)(x′_i − x_i)ᵀ of
    the augmentation.

    Both are positive semidefinite. They are sums, not covariances: for uniform α = 1/N, Σ̂₀ is 2N times the covariance
    of the data (so X ≈ N(2 Cov − Cov_augmentation)). α are the `softmax_weights` of the embeddings.

    Source: Lemma 2, eq. 7.

    >>> views = torch.tensor([[[0.0], [1.0]], [[0.0], [1.5]]])
    >>> data, augmentation = weighted_covariances(views, torch.full((2, 2), 0.5))
    >>> data, augmentation
    (tensor([[1.]]), tensor([[0.1250]]))
    """
    anchors, positives = x - x[0].mean(0)  # only differences matter; centring keeps their digits
    laplacian = torch.diag(alpha.sum(0) + alpha.sum(1)) - alpha - alpha.mT
    shifts = positives - anchors
    return anchors.mT @ laplacian @ anchors, shifts.mT @ ((1 - alpha.diagonal())[:, None] * shifts)


def driving_matrix(x: Float[Tensor, "2 N m"], alpha: Float[Tensor, "N N"]) -> Float[Tensor, "m m"]:
    """Return X = Σ̂₀ − Σ̂₁, symmetric: negative along directions that the augmentation changes more than the data.
    −∂ℒ/∂W = WX.

    It depends on the weights only through α, the `softmax_weights` of the embeddings.

    Source: eq. 5-7; eq. 6 and Lemma 2 give the same matrix.

    >>> driving_matrix(torch.tensor([[[0.0], [1.0]], [[0.0], [1.5]]]), torch.full((2, 2), 0.5))
    tensor([[0.8750]])
    """
    data, augmentation = weighted_covariances(x, alpha)
    return data - augmentation


def driven_vector_field(weights: Sequence[Float[Tensor, "_ _"]], X: Float[Tensor, "m m"]) -> list[Tensor]:
    """Return Ẇ_l = (W_L…W_{l+1})ᵀ W X (W_{l−1}…W₁)ᵀ with W = W_L…W₁, for any number of linear layers and any X.

    One layer: Ẇ = WX. Two: Ẇ₁ = W₂ᵀW₂W₁X, Ẇ₂ = W₂W₁XW₁ᵀ.

    Source: eq. 3, 5 (one layer), 8, 9 (two); Lemma 3.

    >>> driven_vector_field([torch.eye(2), 2 * torch.eye(2)], torch.eye(2))
    [tensor([[4., 0.],
            [0., 4.]]), tensor([[2., 0.],
            [0., 2.]])]
    """
    *below, W = accumulate(weights, lambda low, up: up @ low, initial=torch.eye(len(X), dtype=X.dtype, device=X.device))
    backward = W @ X  # −G
    velocities = []
    for layer, lower in zip(reversed(weights), reversed(below), strict=True):
        velocities.append(backward @ lower.mT)
        backward = layer.mT @ backward
    return velocities[::-1]


def linear_vector_field(weights: Sequence[Float[Tensor, "_ _"]], x: Float[Tensor, "2 N m"]) -> list[Tensor]:
    """Return Ẇ_l = −∂ℒ/∂W_l of linear layers under InfoNCE: `driven_vector_field` with the X of these weights.

    Source: Lemmas 1-3, eq. 3-9.

    >>> linear_vector_field([torch.eye(1)], torch.tensor([[[0.0], [2.0]], [[0.0], [2.0]]]))
    [tensor([[0.9536]])]
    """
    *_, W = accumulate(weights, lambda lower, upper: upper @ lower)
    return driven_vector_field(weights, driving_matrix(x, softmax_weights(x @ W.mT)))


def relu_vector_field(weights: Sequence[Float[Tensor, "_ _"]], x: Float[Tensor, "2 N m"]) -> list[Tensor]:
    """Return Ẇ_l = −∂ℒ/∂W_l of layers with a ReLU after each but the last, z = W_L relu(… relu(W₁x)).

    It is the backward pass of `embedding_vector_field`; only the samples that activate a unit change its weights. There
    is no X.

    Source: Appendix C, by the chain rule from eq. 4.

    >>> relu_vector_field([torch.eye(1), torch.eye(1)], torch.tensor([[[0.0], [2.0]], [[0.0], [2.0]]]))
    [tensor([[0.9536]]), tensor([[0.9536]])]
    """
    inputs = list(accumulate(weights[:-1], lambda h, W: (h @ W.mT).relu(), initial=x))
    backward = embedding_vector_field(inputs[-1] @ weights[-1].mT)
    velocities = []
    for W, h in zip(reversed(weights), reversed(inputs), strict=True):
        velocities.append(torch.einsum("vno,vni->oi", backward, h))
        backward = (backward @ W) * (h > 0)
    return velocities[::-1]


def imbalances(weights: Sequence[Float[Tensor, "_ _"]]) -> list[Tensor]:
    """Return W_lW_lᵀ − W_{l+1}ᵀW_{l+1} of neighbouring layers, which every linear flow conserves (finite steps change
    it by O(lr)).

    If it is zero at the start, it stays zero, and the layers are fully aligned. With ReLU only the diagonal is
    conserved.

    Source: Theorem 2's proof (Appendix B.5), here for any depth.

    >>> imbalances([torch.eye(1), 2 * torch.eye(1)])
    [tensor([[-3.]])]
    """
    return [lower @ lower.mT - upper.mT @ upper for lower, upper in pairwise(weights)]


def train_infonce(
    weights: Sequence[Float[Tensor, "_ _"]],
    batches: Iterable[Float[Tensor, "2 _ m"]],
    *,
    learning_rate: float,
    steps: Sequence[int],
    vector_field: Callable[[Sequence[Tensor], Tensor], list[Tensor]] = linear_vector_field,
) -> list[Tensor]:
    """Run gradient descent W_l ← W_l + η Ẇ_l on one batch after the other, and return the weights at the chosen steps.

    It is `flow.gradient_descent` on the loss itself, but with the gradient in closed form, which is faster than
    autograd.

    Args:
        weights: W₁, …, W_L at step 0, each (outputs, inputs).
        batches: inputs of anchors and positives for each step; `itertools.repeat(x)` is full-batch gradient descent.
        learning_rate: η, of the loss as a sum over the samples of a batch.
        steps: ascending numbers ≥ 0 of the steps to record; step k is at time t = ηk.
        vector_field: `linear_vector_field` or `relu_vector_field`.

    Returns:
        W₁, …, W_L at those steps, each with a first dimension of len(steps).

    Raises:
        UserError: an error of `flow.record`.

    Source: Sections 4 and 5 and Appendix C (stochastic gradient descent without momentum or weight decay).

    >>> from itertools import repeat
    >>> x = torch.tensor([[[0.0], [2.0]], [[0.0], [2.0]]])
    >>> train_infonce([torch.eye(1)], repeat(x), learning_rate=0.1, steps=[0, 1])[0].flatten()
    tensor([1.0000, 1.0954])
    """

    def take_step(weights: list[Tensor], x: Tensor) -> list[Tensor]:
        return [W + learning_rate * W_dot for W, W_dot in zip(weights, vector_field(weights, x), strict=True)]

    return record(accumulate(batches, take_step, initial=list(weights)), steps)
