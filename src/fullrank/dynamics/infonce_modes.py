"""Singular values and vectors of linear layers in motion, and their closed forms where the driving matrix X is held fixed.

Time is learning rate × step of gradient descent on the loss of `infonce`, a sum over the samples.
Source of all: Jing et al. 2022, Understanding Dimensional Collapse in Contrastive Self-supervised Learning.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from fullrank.dynamics.symmetric import check_symmetric
from fullrank.errors import UserError


class Svd(NamedTuple):
    """W = U diag(S) Vᵀ with singular vectors in columns, or the velocities of the three.

    Where singular vectors go together (alignment, velocities), the factors are passed on rather than W, since their signs are free.
    """

    U: Float[Tensor, "h k"]
    S: Float[Tensor, " k"]
    V: Float[Tensor, "m k"]


def single_layer(W: Float[Tensor, "D m"], X: Float[Tensor, "m m"], t: Float[Tensor, "*T"]) -> Float[Tensor, "*T D m"]:
    """W(t) = W(0)e^{Xt}, the solution of Ẇ = WX for a fixed X.

    Singular values decay exponentially along X's negative eigenvalues, as many as there are (W of full column rank), and diverge along its
    positive ones; W keeps its rank at every finite t. Positive X does not save the effective rank: it goes to 1 unless X ∝ I.

    Args:
        W: the weights at t = 0.
        X: the driving matrix, symmetric.
        t: times, learning rate × step.

    Returns:
        The weights at each time.

    Raises:
        UserError: X is not symmetric.

    Source: Theorem 1 (Appendix B.3), its conclusion about the rank corrected. X fixed is not InfoNCE, whose α moves with W.

    >>> single_layer(torch.eye(1), torch.tensor([[-1.0]]), torch.tensor([0.0, 1.0])).flatten()
    tensor([1.0000, 0.3679])
    """
    check_symmetric(X, "X", "take `driving_matrix(x, alpha)`, or (X + Xᵀ)/2")
    rates, Q = torch.linalg.eigh(X)
    return (W @ Q * (rates * t[..., None]).exp()[..., None, :]) @ Q.mT


def svd(W: Float[Tensor, "h m"]) -> Svd:
    """W = U diag(S) Vᵀ, k = min(h, m) singular values in descending order.

    >>> svd(torch.diag(torch.tensor([1.0, 3.0]))).S
    tensor([3., 1.])
    """
    U, S, Vh = torch.linalg.svd(W, full_matrices=False)
    return Svd(U, S, Vh.mT)


def svd_velocity(factors: Svd, W_dot: Float[Tensor, "h m"]) -> Svd:
    """How the singular values and vectors of W move when W moves by Ẇ:

        σ̇_k = u_kᵀẆv_k
        U̇ = U(H ⊙ (UᵀẆVS + SVᵀẆᵀU)) + (I − UUᵀ)ẆVS⁻¹,    V̇ = V(H ⊙ (VᵀẆᵀUS + SUᵀẆV)) + (I − VVᵀ)ẆᵀUS⁻¹
        H_kk′ = 1/(σ_k′² − σ_k²), 0 on the diagonal

    The last terms turn the vectors out of their span, and are there only for as many dimensions as W has more than singular values.

    Args:
        factors: `svd` of W.
        W_dot: the velocity of W.

    Returns:
        U̇, Ṡ, V̇.

    Raises:
        UserError: two singular values coincide, so that their vectors are not unique, or one that the last terms divide by is zero.

    Source: Lemmas 4 and 5, eq. 12-15, corrected: H is printed with the opposite sign, which turns U̇ and V̇ around.

    >>> W = torch.diag(torch.tensor([2.0, 1.0]))
    >>> svd_velocity(svd(W), W).S
    tensor([2., 1.])
    """
    U, S, V = factors
    squares = S.square()
    gaps = squares[None, :] - squares[:, None]
    eye = torch.eye(len(S), dtype=torch.bool, device=S.device)
    rounding = 8 * torch.finfo(S.dtype).eps * squares.max()
    if (gaps.abs() <= rounding).logical_and(~eye).any():
        raise UserError("two singular values coincide, so their vectors have no velocity; look at the subspace that they span together")
    if len(U) != len(V) and S.min().square() <= rounding:
        raise UserError(f"W of shape ({len(U)}, {len(V)}) has a singular value 0, whose vectors are not unique; drop it from the factors")
    H = (1 / gaps.masked_fill(eye, 1)).masked_fill(eye, 0)
    inner = U.mT @ W_dot @ V
    return Svd(_turn(U, S, H, inner, W_dot @ V), inner.diagonal(), _turn(V, S, H, inner.mT, W_dot.mT @ U))


def _turn(
    U: Float[Tensor, "h k"], S: Float[Tensor, " k"], H: Float[Tensor, "k k"], inner: Float[Tensor, "k k"], moved: Float[Tensor, "h k"]
) -> Float[Tensor, "h k"]:
    """U(H ⊙ (MS + SMᵀ)) + (B − UM)S⁻¹, one side's velocity from M = UᵀẆV (`inner`) and B = ẆV (`moved`); a square U has no outside."""
    scaled = inner * S
    within = U @ (H * (scaled + scaled.mT))
    return within if U.shape[0] == U.shape[1] else within + (moved - U @ inner) / S


def aligned_vector_field(
    s1: Float[Tensor, "*T k"], s2: Float[Tensor, "*T k"], a: Float[Tensor, "*T k"]
) -> tuple[Float[Tensor, "*T k"], Float[Tensor, "*T k"]]:
    """σ̇₁ = σ₁σ₂²a and σ̇₂ = σ₂σ₁²a with a = v₁ᵀXv₁, for each pair of aligned singular values of two layers.

    σ₁² − σ₂² = C is conserved: σ̇₁ = aσ₁(σ₁² − C).

    Args:
        s1: singular values of W₁.
        s2: singular values of W₂.
        a: v₁ᵀXv₁ of each mode.

    Returns:
        σ̇₁ and σ̇₂.

    Source: Theorem 3, eq. 10-11, where aligned means V₂ = U₁ (printed V₂ = U₁ᵀ); corrected: σ₁² − C stands as σ₁² + C below it.

    >>> aligned_flow(torch.tensor([2.0]), torch.tensor([1.0]), torch.tensor([1.0]))
    (tensor([2.]), tensor([4.]))
    """
    return a * s1 * s2.square(), a * s2 * s1.square()


def aligned_singular_values(
    s1: Float[Tensor, " k"], s2: Float[Tensor, " k"], a: Float[Tensor, " k"], t: Float[Tensor, "*T"]
) -> tuple[Float[Tensor, "*T k"], Float[Tensor, "*T k"]]:
    """The solution of `aligned_flow` for a fixed a (v₁ an eigenvector of a fixed X), with C = σ₁(0)² − σ₂(0)²:

        σ₁(t)² = C/(1 − (1 − C/σ₁(0)²)e^{2aCt}),  or σ₁(0)²/(1 − 2aσ₁(0)²t) where C = 0,    σ₂(t)² = σ₁(t)² − C

    For a > 0 both are infinite from `blow_up_time` on; for a < 0 the smaller goes to 0, the other to √|C|. It is evaluated as
    y/(1 − wE), E = (e^{2aCt} − 1)/C, y and w the own square and the other, which loses no digits for small C.

    Args:
        s1: singular values of W₁ at t = 0.
        s2: singular values of W₂ at t = 0.
        a: v₁ᵀXv₁ of each mode.
        t: times, learning rate × step.

    Returns:
        σ₁(t) and σ₂(t).

    Source: solves eq. 10-11; not in the paper.

    >>> aligned_singular_values(torch.ones(1), torch.ones(1), torch.ones(1), torch.tensor([0.0, 0.375, 1.0]))[0].flatten()
    tensor([1., 2., inf])
    """
    return _one_of_two(s1, s2, a, t), _one_of_two(s2, s1, a, t)


def _one_of_two(
    own: Float[Tensor, " k"], other: Float[Tensor, " k"], a: Float[Tensor, " k"], t: Float[Tensor, "*T"]
) -> Float[Tensor, "*T k"]:
    """σ(t) of one layer: the solution is the same for both, with C of opposite sign."""
    C = (own - other) * (own + other)
    t = t[..., None]
    growth = torch.where(C == 0, 2 * a * t, (2 * a * C * t).expm1() / C.masked_fill(C == 0, 1))
    rest = 1 - torch.where(other == 0, 0, other.square() * growth)  # of the way to infinity
    return own * torch.where(rest > 0, rest, 0).rsqrt().masked_fill(own == 0, 0)


def blow_up_time(s1: Float[Tensor, " k"], s2: Float[Tensor, " k"], a: Float[Tensor, " k"]) -> Float[Tensor, " k"]:
    """t* = ln(σ₁²/σ₂²)/(2a(σ₁² − σ₂²)), or 1/(2aσ²) for equal ones: when the aligned singular values of a fixed X become infinite.

    Args:
        s1: singular values of W₁ at t = 0.
        s2: singular values of W₂ at t = 0.
        a: v₁ᵀXv₁ of each mode.

    Returns:
        Time, learning rate × step; infinite where a ≤ 0 or a singular value is 0.

    Source: the pole of `aligned_singular_values`; not in the paper.

    >>> blow_up_time(torch.tensor([1.0, 2.0, 1.0]), torch.tensor([1.0, 1.0, 1.0]), torch.tensor([1.0, 1.0, -1.0]))
    tensor([0.5000, 0.2310,    inf])
    """
    low, high = torch.minimum(s1, s2), torch.maximum(s1, s2)
    C = (high - low) * (high + low)
    span = torch.where(C == 0, 1 / low.square(), (C / low.square()).log1p() / C.masked_fill(C == 0, 1))
    return torch.where((a > 0) & (low > 0), span / (2 * a), torch.inf)
