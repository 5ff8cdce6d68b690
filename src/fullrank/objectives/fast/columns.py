"""FroSSL, VICReg and Barlow Twins: functions of the columns of embeddings, through the smaller of AᵀA and AAᵀ.

Under autograd, the passes over (V, N, D) numbers and their temporaries take longer than the matrix products. Here A,
the columns after centring and scaling, is made once and saved, and the gradient is written in place.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.linalg import vecdot, vector_norm

from fullrank.objectives.algebra import CONSTANT_BELOW, gram
from fullrank.objectives.terms import Terms
from fullrank.objectives.vicreg import EPSILON

Saved = Sequence[Tensor]


class frossl:
    """FroSSL with columns of unit norm. ∂‖AᵀA‖_F²/∂A = 4 A AᵀA, and ∂ Σ_{v<w} ‖A_v − A_w‖_F²/∂A = 2 V (A − mean)."""

    @staticmethod
    def applies(*, normalize: str, **_: Any) -> bool:
        return normalize == "columns"

    @staticmethod
    def forward(
        Z: Tensor, *, invariance: float, variance: float, log: bool, center: bool, **_: Any
    ) -> tuple[Terms, Saved]:
        A, factor = unit_columns(Z, center=center)
        K = gram(A)
        norm2 = vector_norm(K, dim=-1).square().sum(-1)
        spread = norm2.clamp_min(1).log() if log else norm2
        distance = len(Z) * vector_norm(A - A.mean(0), dim=1).square().sum()
        terms = {"variance": variance * spread.sum(), "invariance": invariance * distance / Z.shape[1]}
        return terms, (A, factor, K, norm2)

    @staticmethod
    def backward(
        tensors: Saved, saved: Saved, gradients: Saved, *, invariance: float, variance: float, log: bool, **_: Any
    ) -> tuple[Tensor]:
        (A, factor, K, norm2), (of_variance, of_invariance) = saved, gradients
        weight = 4 * variance * of_variance * ((norm2 >= 1) / norm2.clamp_min(1) if log else torch.ones_like(norm2))
        G = (A - A.mean(0)).mul_(2 * len(A) * invariance * of_invariance / A.shape[1])
        return (through_unit_columns(add_gram_product(G, weight[:, None, None] * K, A), A, factor),)


class vicreg:
    """VICReg. With S = Σ_{i≠j} (a_i · a_j)² of the centred columns a, ∂S/∂A = 4 A (AᵀA − diagonal)."""

    @staticmethod
    def forward(Z: Tensor, *, invariance: float, variance: float, covariance: float) -> tuple[Terms, Saved]:
        _, N, D = Z.shape
        A = Z - Z.mean(1, keepdim=True)
        squares = vector_norm(A, dim=1).square()  # (2, D)
        K = gram(A)
        if D <= N:
            K.diagonal(dim1=1, dim2=2).zero_()
        off = vector_norm(K, dim=-1).square().sum(-1) - (0 if D <= N else squares.square().sum(-1))
        std = (squares / (N - 1) + EPSILON).sqrt()
        terms = {
            "invariance": invariance * vector_norm(Z[0] - Z[1], dim=0).square().sum() / (N * D),
            "variance": variance * torch.relu(1 - std).mean(-1).sum() / 2,
            "covariance": covariance * off.sum() / ((N - 1) ** 2 * D),
        }
        return terms, (A, K, squares, std)

    @staticmethod
    def backward(
        tensors: Saved, saved: Saved, gradients: Saved, *, invariance: float, variance: float, covariance: float
    ) -> tuple[Tensor]:
        (Z,), (A, K, squares, std), (of_invariance, of_variance, of_covariance) = tensors, saved, gradients
        _, N, D = Z.shape
        weight = 4 * covariance * of_covariance / ((N - 1) ** 2 * D)
        along = -variance * of_variance / (2 * D * (N - 1)) * (std < 1) / std
        G = A * (along if D <= N else along - weight * squares)[:, None]
        add_gram_product(G, weight * K, A)
        difference = (Z[0] - Z[1]).mul_(2 * invariance * of_invariance / (N * D))
        G[0] += difference
        G[1] -= difference
        return (G,)


class barlow_twins:
    """Barlow Twins. With S = Σ_{i≠j} (a_i · b_j)², ∂S/∂A = 2 B (BᵀA − diagonal)."""

    @staticmethod
    def forward(Z: Tensor, *, redundancy: float, scale: float) -> tuple[Terms, Saved]:
        _, N, D = Z.shape
        A, factor = unit_columns(Z, center=True)
        correlations = vecdot(A[0], A[1], dim=0)
        if D <= N:
            K = A[0].mT @ A[1]
            K.diagonal().zero_()
            off = vector_norm(K, dim=-1).square().sum()
        else:
            K = A @ A.mT
            off = vecdot(K[0], K[1]).sum() - correlations.square().sum()
        terms = {"invariance": scale * (1 - correlations).square().sum(), "redundancy": scale * redundancy * off}
        return terms, (A, factor, K, correlations)

    @staticmethod
    def backward(tensors: Saved, saved: Saved, gradients: Saved, *, redundancy: float, scale: float) -> tuple[Tensor]:
        (A, factor, K, correlations), (of_invariance, of_redundancy) = saved, gradients
        _, N, D = A.shape
        weight = 2 * scale * redundancy * of_redundancy
        of_correlations = -2 * scale * of_invariance * (1 - correlations)
        G = A.flip(0).mul_(of_correlations if D <= N else of_correlations - weight * correlations)
        if D <= N:
            K = weight * K
            G[0].addmm_(A[1], K.mT)
            G[1].addmm_(A[0], K)
        else:
            G.baddbmm_(weight * K.flip(0), A)
        return (through_unit_columns(G, A, factor),)


def unit_columns(Z: Tensor, *, center: bool) -> tuple[Tensor, Tensor]:
    """Return A = (Z − mean) · factor with columns of unit norm, and the factor; a constant column becomes zero."""
    A = Z - Z.mean(1, keepdim=True) if center else Z.clone()
    norm = vector_norm(A, dim=1, keepdim=True)
    factor = 1 / norm.masked_fill(norm == 0, 1)
    if center:
        factor *= norm > CONSTANT_BELOW * torch.finfo(Z.dtype).eps * vector_norm(Z, dim=1, keepdim=True)
    return A.mul_(factor), factor


def through_unit_columns(G: Tensor, A: Tensor, factor: Tensor) -> Tensor:
    """Return the gradient of Z from G, that of A: (G − a (a · G)) · factor. If the columns of A have mean zero, those
    of G have it too, so that centring leaves them as they are.
    """
    along = torch.stack([vecdot(a, g, dim=0) for a, g in zip(A, G, strict=True)])
    return G.addcmul_(A, along[:, None], value=-1).mul_(factor)


def add_gram_product(G: Tensor, K: Tensor, A: Tensor) -> Tensor:
    """Add A K to G for K (V, D, D), or K A for K (V, N, N)."""
    return G.baddbmm_(A, K) if A.shape[-1] <= A.shape[-2] else G.baddbmm_(K, A)
