"""Sharpness: the largest curvature of a loss, which limits the learning rate of gradient descent."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from scipy.sparse.linalg import LinearOperator, eigsh
from torch import Tensor


def sharpness(loss: Tensor, weights: Sequence[Tensor], *, tolerance: float = 1e-2) -> float:
    """Return λ_max, the largest eigenvalue of the Hessian of a loss, NaN if that is not finite. Gradient descent on a
    quadratic function converges at learning rates below 2/λ_max.

    Args:
        loss: scalar, a function of the weights that is differentiable twice.
        weights: the tensors that are trained.
        tolerance: relative error of λ_max. The Lanczos method needs about 20 products of the Hessian and a vector.

    Source: Cohen et al. 2021, Gradient Descent on Neural Networks Typically Occurs at the Edge of Stability.

    >>> w = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    >>> round(sharpness((torch.tensor([1.0, 2.0, 4.0]) * w.square()).sum(), [w]), 3)
    8.0
    """
    gradients = torch.autograd.grad(loss, weights, create_graph=True)
    sizes = [w.numel() for w in weights]

    def product(vector: np.ndarray) -> np.ndarray:
        parts = torch.from_numpy(vector.ravel()).to(loss).split(sizes)
        along = [part.view_as(w) for part, w in zip(parts, weights, strict=True)]
        found = torch.autograd.grad(gradients, weights, along, retain_graph=True)
        return torch.cat([each.flatten() for each in found]).cpu().numpy().astype(vector.dtype)

    start = np.random.default_rng(0).standard_normal(sum(sizes))
    hessian: Any = LinearOperator((len(start), len(start)), matvec=product, dtype=start.dtype)  # pyright: ignore
    if not (first := product(start)).any() or not np.isfinite(first).all():
        return 0.0 if np.isfinite(first).all() else np.nan
    found: Any = eigsh(hessian, k=1, which="LA", tol=tolerance, v0=start, return_eigenvectors=False)  # pyright: ignore
    return float(found[0])
