"""LiDAR: the effective rank of the variance between images, relative to the variance between views of one image."""

import torch
from jaxtyping import Float
from torch import Tensor

from fullrank.errors import UserError
from fullrank.spectrum import functional
from fullrank.spectrum.moments import to_float64


def lidar(X: Float[Tensor, "..."], *, delta: float = 1e-4) -> float:
    """Return LiDAR = exp H(λ/Σλ), where λ are the eigenvalues of S_w^{−½} S_b S_w^{−½}, of n images with q views each.

        S_b = Σ_i (m_i − m)(m_i − m)ᵀ / (n − 1)        m_i the mean of the q views of image i, m the mean of the m_i
        S_w = Σ_ij (x_ij − m_i)(x_ij − m_i)ᵀ / (n (q − 1)) + δ I

    The value is between 1 and D, and 0 if all images have the same mean. Unlike other ranks, LiDAR does not
    count directions that vary only between the views of an image. δ is absolute: if the variance between views is not well above δ, LiDAR
    ignores this variance. Rotation and shift of the embeddings do not change LiDAR, but their scale does.

    Args:
        X: embeddings (n, q, D), grouped by image; never flatten them into (n·q, D).
        delta: the constant δ.

    Raises:
        UserError: X does not have three axes, has fewer than two views per image, has n ≤ D images (S_b has rank at most n − 1), or has
            values that are not finite; or δ ≤ 0.

    Source: Thilak et al. 2024, LiDAR: Sensing Linear Probing Performance in Joint Embedding SSL Architectures.

    >>> X = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
    >>> round(lidar(torch.stack([X, X], 1)), 6)
    2.0
    """
    if X.ndim != 3:
        raise UserError(f"X has shape {tuple(X.shape)}, but LiDAR needs (n, q, D): n images with q views; reshape X")
    n, q, D = X.shape
    if q < 2:
        raise UserError(f"X has {q} view per image, but LiDAR needs at least 2; embed more views of fewer images")
    if n <= D:
        raise UserError(f"X has {n} images, but LiDAR needs more than D = {D}; embed more images")
    if delta <= 0:
        raise UserError(f"delta is {delta:g}, expected a positive number, which makes S_w invertible")
    X = to_float64(X)
    if not X.isfinite().all():
        raise UserError("X has NaN or infinite values, expected finite embeddings; if training diverged, lower the learning rate")
    means = X.mean(1)
    between, within = means - means.mean(0), (X - means[:, None]).flatten(0, 1)
    # L⁻¹ S_b L⁻ᵀ, with S_w = L Lᵀ, has the eigenvalues of S_w^{−½} S_b S_w^{−½}.
    L = torch.linalg.cholesky(within.mT @ within / (n * (q - 1)) + delta * torch.eye(D, dtype=X.dtype, device=X.device))
    B = torch.linalg.solve_triangular(L, between.mT, upper=False)  # (D, n)
    eigenvalues = torch.linalg.eigvalsh(B @ B.mT / (n - 1)).flip(0)
    rounding = n * torch.finfo(X.dtype).eps * eigenvalues[0] + (8 * torch.finfo(X.dtype).eps) ** 2 * means.square().sum() / (n * delta)
    nonzero = torch.where(eigenvalues > rounding, eigenvalues, 0)
    return functional.entropy(nonzero).exp().item() if nonzero[0] > 0 else 0.0
