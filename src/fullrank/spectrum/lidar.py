"""LiDAR: the effective rank of the variance between images, relative to the variance between views of one image."""

import math

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
    count directions that vary only between the views of an image. δ is absolute: if the variance between views is not
    well above δ, LiDAR ignores this variance. Rotation and shift of the embeddings do not change LiDAR, but their scale
    does, unless δ changes by its square.

    Args:
        X: embeddings (n, q, D), grouped by image; never flatten them into (n·q, D).
        delta: the constant δ.

    Raises:
        UserError: X does not have three axes, has fewer than two views per image, has n ≤ D images (S_b has rank at
            most n − 1), or has values that are not finite; or δ is not positive and finite.

    Source: Thilak et al. 2024, LiDAR: Sensing Linear Probing Performance in Joint Embedding SSL Architectures.

    >>> X = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
    >>> round(lidar(torch.stack([X, X], 1)), 6)
    2.0
    """
    functional.check_floats(X, "X", "tensor (n, q, D): n images with q views", lambda X: X.ndim == 3)
    n, q, D = X.shape
    if q < 2 or n <= D:
        needs = f"at least 2 views per image, and more than D = {D} images"
        raise UserError(f"X has {n} images with {q} views, but LiDAR needs {needs}; embed more")
    if not 0 < delta < math.inf:
        raise UserError(f"delta is {delta:g}, expected a positive number, which makes S_w invertible")
    functional.check_finite(X, "X")
    X = to_float64(X)
    scale = X.abs().max().clamp_min(torch.finfo(X.dtype).tiny)
    X = X / scale  # so that no square overflows
    means = X.mean(1)
    between, within = means - means.mean(0), (X - means[:, None]).flatten(0, 1)
    _, roots, Vh = torch.linalg.svd(within, full_matrices=False)  # of S_w without δ; q ≥ 2 and n > D, so V is (D, D)
    roots = torch.where(roots > len(within) * torch.finfo(X.dtype).eps * roots[0], roots, 0) / (n * (q - 1)) ** 0.5
    floor = (torch.tensor(delta, dtype=X.dtype).sqrt() / scale.cpu()).clamp_min(torch.finfo(X.dtype).tiny).to(X.device)
    B = between @ Vh.mT  # in the eigenvectors of S_w
    # What rounding causes in a direction, before its weight.
    noise = 8 * torch.finfo(X.dtype).eps * means.square().sum(1).mean().sqrt()
    B = torch.where(B.square().mean(0).sqrt() > noise, B, 0) / torch.hypot(roots, floor)
    eigenvalues = torch.linalg.svdvals(B / B.abs().max().clamp_min(torch.finfo(X.dtype).tiny)).square()
    nonzero = torch.where(eigenvalues > n * torch.finfo(X.dtype).eps * eigenvalues[0], eigenvalues, 0)
    return functional.entropy(nonzero).exp().item() if nonzero[0] > 0 else 0.0
