"""W-MSE: align the directions of the views of a sample after whitening the features of each view."""

from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from fullrank.errors import UserError
from fullrank.objectives.algebra import centered, pair_cosines
from fullrank.objectives.signature import checks_shapes
from fullrank.objectives.terms import Terms


@checks_shapes
def wmse(
    Z: Float[Tensor, "V N D"],
    *,
    slice_size: int | None = None,
    epsilon: float = 0.0,
    whitening: Literal["cholesky", "zca"] = "cholesky",
) -> Terms:
    """Return the term of W-MSE, for any number of views. Each slice of n samples of each view is centred and whitened
    separately. With C its unbiased covariance, and A = L⁻¹, the inverse Cholesky factor of S = (1 − ε) C + ε I, or A =
    S^(−1/2) (ZCA),

        w_vi = A_v (z_vi − mean)        ℒ = mean_{v<w} mean_i ( 2 − 2 cos(w_vi, w_wi) )

    The cost is V·N·D² + D³ for each slice and view, and the memory D²: whitening needs the whole covariance.

    Every view gets a gradient. A feature that is constant, or a linear combination of the previous features, is set to
    zero after whitening and gets no gradient; with ZCA, a direction with less variance than D times the machine epsilon
    times the largest. Without ε, the Cholesky form does not depend on scale and shift of each feature of each view.
    ZCA, which changes the embeddings least, does not depend on a joint rotation of all views.

    Args:
        Z: embeddings of V ≥ 2 views of N samples.
        slice_size: n, the number of samples that are whitened together; None uses the whole batch. Slices are
            consecutive, since the order of a batch is already random.
        epsilon: weight ε of the identity in the covariance.
        whitening: "cholesky" or "zca".

    Returns:
        The term "invariance".

    Raises:
        UserError: N is not a multiple of `slice_size`, or a slice has too few samples for a regular covariance.

    Source: Ermolov et al. 2021, Whitening for Self-Supervised Representation Learning, for any number of positives;
    Weng et al. 2022, An Investigation into Whitening Loss for Self-Supervised Learning, for ZCA.

    Two views that differ only in scale and shift of their features are equal after whitening:

    >>> Z = torch.tensor([[1.0, 2], [2, -1], [-3, 1], [-1, -1]])
    >>> wmse(torch.stack([Z, Z * torch.tensor([3.0, 0.5]) + 1]))["invariance"].abs() < 1e-6
    tensor(True)
    """
    _, N, D = Z.shape
    n = N if slice_size is None else slice_size
    if n < 2 or N % n or (n <= D and epsilon == 0):
        least = 2 if epsilon else D + 1
        works = " or ".join([str(size) for size in range(least, N + 1) if N % size == 0][:3])
        fewer = f"more than {D} samples, fewer than {N} dimensions, or hyper.epsilon = 0.01 with the whole batch"
        remedy = f"hyper.slice_size = {works}" if works else fewer
        regular = " of at least 2" if epsilon else f" of more than {D}, for a regular covariance,"
        expected = f"expected slices{regular} that divide the {N}"
        raise UserError(f"wmse: slices of {n} of {N} samples in {D} dimensions; {expected}; give {remedy}")
    W = whitened(Z.unflatten(1, (-1, n)), epsilon=epsilon, whitening=whitening).flatten(1, 2)
    return {"invariance": 2 - 2 * pair_cosines(W, W).mean()}


def whitened(Z: Float[Tensor, "*V n D"], *, epsilon: float, whitening: str) -> Float[Tensor, "*V n D"]:
    """Return (Z − mean) L⁻ᵀ with L Lᵀ = S = (1 − ε) C + ε I and C the unbiased covariance, or (Z − mean)
    S^(−1/2) with "zca"; linearly dependent features, or directions of less variance than D·eps times the largest,
    become zero.

    >>> whitened(torch.tensor([[1.0, 1.0], [-1.0, 1.0], [0.0, 1.0]]), epsilon=0.0, whitening="cholesky")
    tensor([[ 1.,  0.],
            [-1.,  0.],
            [ 0.,  0.]])
    """
    A = centered(Z)
    identity = torch.eye(Z.shape[-1], dtype=Z.dtype, device=Z.device)
    C = (1 - epsilon) / (Z.shape[-2] - 1) * A.mT @ A + epsilon * identity
    if whitening == "zca":
        return A @ inverse_root(C)
    independent = linearly_independent(C.detach())
    C = torch.where(independent[..., :, None] & independent[..., None, :], C, identity)
    factor = torch.linalg.cholesky_ex(C).L
    return torch.linalg.solve_triangular(factor, (A * independent[..., None, :]).mT, upper=False).mT


def inverse_root(C: Float[Tensor, "*V D D"]) -> Float[Tensor, "*V D D"]:
    """Return C^(−1/2) of symmetric positive semidefinite matrices. An eigenvalue that is zero up to rounding stays
    zero, without gradient.

    The gradient of an eigendecomposition divides by differences of eigenvalues. So the root is computed without
    gradient, and k steps of Newton's method for X C X = I, with the derivative at this root, keep it and have its first
    k derivatives. In the eigenbasis of C, this derivative multiplies X_ij by √λ_i + √λ_j.

    >>> C = (4 * torch.eye(2)).requires_grad_()
    >>> inverse_root(C)[0, 0], torch.autograd.grad(inverse_root(C)[0, 0], C)[0][0, 0]  # λ^(−1/2), − ½ λ^(−3/2)
    (tensor(0.5000, grad_fn=<SelectBackward0>), tensor(-0.0625))
    """
    eigenvalues, V = torch.linalg.eigh(C.detach().nan_to_num())  # eigh raises at NaN, which the steps keep
    smallest = C.shape[-1] * torch.finfo(C.dtype).eps * eigenvalues[..., -1:].clamp_min(torch.finfo(C.dtype).tiny)
    roots, positive = eigenvalues.clamp_min(smallest).sqrt(), eigenvalues > smallest
    X = V * (positive / roots)[..., None, :] @ V.mT
    for _ in range(2):
        rest = V.mT @ X @ C @ X @ V - torch.diag_embed(positive.to(C))
        X = X - V @ (rest / (roots[..., :, None] + roots[..., None, :])) @ V.mT
    return X


def linearly_independent(C: Float[Tensor, "*V D D"]) -> Bool[Tensor, "*V D"]:
    """Return a mask of the features that are, up to rounding, not a linear combination of the previous features.

    A ridge ρ of the size of rounding errors makes the correlations K positive definite, L Lᵀ = K + ρ I. In the unit
    variance of feature j after whitening by L, the share of the ridge is ρ ‖(L⁻¹)_j‖²: 1 for a linear combination with
    any coefficients, and near 0 otherwise.

    >>> linearly_independent(torch.tensor([[1.0, 2.0, 0.0], [2.0, 4.0, 0.0], [0.0, 0.0, 1.0]]))
    tensor([ True, False,  True])
    """
    D = C.shape[-1]
    std = C.diagonal(dim1=-2, dim2=-1).sqrt()
    std = std.masked_fill(std == 0, 1)
    identity = torch.eye(D, dtype=C.dtype, device=C.device)
    ridge = 2 * D * torch.finfo(C.dtype).eps
    factor = torch.linalg.cholesky_ex(C / (std[..., :, None] * std[..., None, :]) + ridge * identity).L
    inverse = torch.linalg.solve_triangular(factor, identity.expand_as(C), upper=False)
    return ~(ridge * inverse.square().sum(-1) > 0.5)  # NaN counts as independent, so that it stays NaN
