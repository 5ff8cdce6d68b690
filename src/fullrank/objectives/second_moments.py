"""Second moments of the columns of embeddings, from which FroSSL, Barlow Twins and VICReg are built, with their gradient in closed form.

The closed form exists because autograd passes over (V, N, D) numbers at each operation and keeps most results, which costs as much time as
the matrix products themselves. The closed form works in blocks that stay in the cache, and saves no tensor of the size of the embeddings.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd import forward_ad

from fullrank.objectives.algebra import CONSTANT_BELOW, centered, off_diagonal, unit


class SecondMoments(NamedTuple):
    """Sums over the samples, of the columns a_vd of A (V, N, D): the embeddings after centring and scaling."""

    mean: Float[Tensor, "V D"]
    """Means of the embeddings, zero if they are not centred."""
    diagonal: Float[Tensor, "V D"]
    """‖a_vd‖²."""
    off_diagonal: Float[Tensor, "*V"]
    """Σ_{i≠j} (a_vi · a_vj)² for each view, or Σ_{i≠j} (a_1i · a_2j)² between two views."""
    distance: Float[Tensor, " D"]
    """Σ_{v<w} ‖a_vd − a_wd‖²."""


def second_moments(Z: Float[Tensor, "V N D"], *, center: bool = True, scale: bool = True, between: bool = False) -> SecondMoments:
    """Return the second moments of the columns of embeddings.

    The matrix behind `off_diagonal` is the covariance (D, D) or the Gram matrix (N, N), whichever is cheaper. By the Gram matrix
    K_v = A_v A_vᵀ it is Σ_{i≠j} (a_i · a_j)² = ‖K‖_F² − Σ_d ‖a_d‖⁴, exact up to the rounding error of Σ_d ‖a_d‖⁴; so it can be slightly
    negative. No tensor is quadratic in the larger of N and D.

    Values and gradients come from the closed form. Derivatives of the gradient, forward-mode derivatives, `torch.func` and
    `torch.compile` use the same formulas under autograd.

    Args:
        Z: embeddings of V views of N samples.
        center: subtract the mean over the samples; a column that is constant up to rounding becomes zero.
        scale: scale each column to unit norm; zeros stay zero.
        between: take the products between the columns of two views, instead of the columns of one view.

    Returns:
        The mean, the diagonal, the squared sum off the diagonal, and the squared distance of the views.

    >>> second_moments(torch.tensor([[[0.0, 2], [2, 0]], [[1.0, 1], [1, 3]]])).off_diagonal
    tensor([1., 0.])
    """
    if not _closed_form_applies(Z):
        return _second_moments(Z, center, scale, between)
    return SecondMoments(*_SecondMoments.apply(Z, center, scale, between)[:4])


def correlations(m: SecondMoments) -> Float[Tensor, " D"]:
    """Return the inner products a_1d · a_2d of two views, from ‖a_1‖² + ‖a_2‖² − ‖a_1 − a_2‖².

    >>> correlations(second_moments(torch.tensor([[[0.0, 2], [2, 0]], [[1.0, 1], [5, 3]]])))
    tensor([ 1., -1.])
    """
    return (m.diagonal.sum(0) - m.distance) / 2


def _second_moments(Z: Tensor, center: bool, scale: bool, between: bool) -> SecondMoments:
    """Compute the moments by operations that autograd, `torch.func` and `torch.compile` differentiate and transform."""
    V, N, D = Z.shape
    mean = Z.mean(1) if center else Z.new_zeros(V, D)
    A = unit(centered(Z) if center else Z, dim=-2) if scale else Z - mean[:, None]
    X, Y = A if between else (A, A)
    if _prefers_gram(N, D, between):
        squares = (X * Y).sum(-2).square().sum(-1)
        off = ((X @ X.mT) * (Y @ Y.mT)).sum((-2, -1)) - squares
    else:
        off = off_diagonal(X.mT @ Y).square().sum((-2, -1))
    distance = V * (A - A.mean(0)).square().sum((0, 1))  # Σ_{v<w} ‖a_v − a_w‖² = V Σ_v ‖a_v − mean‖²
    return SecondMoments(mean, A.square().sum(1), off, distance)


def _prefers_gram(N: int, D: int, between: bool) -> bool:
    """Compare the multiplications of both passes: between two views, N D² for one matrix and 2 N D², or 2 D N² and 2 D N²."""
    return 4 * N < 3 * D if between else N < D


def _closed_form_applies(Z: Tensor) -> bool:
    return (
        Z.dtype in (torch.float32, torch.float64)
        and not torch.compiler.is_compiling()
        and not torch._C._are_functorch_transforms_active()
        and forward_ad.unpack_dual(Z).tangent is None
    )


def _is_differentiated_or_batched(grads: tuple[Tensor, ...]) -> bool:
    """Return whether the backward pass is itself differentiated, or computes several gradients by `vmap`."""
    batched = torch._C._functorch.is_legacy_batchedtensor  # of `is_grads_batched` and `vectorize`
    return torch.is_grad_enabled() or torch._C._are_functorch_transforms_active() or any(map(batched, grads))


class _SecondMoments(torch.autograd.Function):
    """The moments, followed by what the backward pass needs: scale, deviation (V, 1, D), and the matrices of products.

    With A = (Z − mean) · scale, Δ_v = A_v − mean over the views, and G the gradient with respect to A,

        K = A Aᵀ, C = AᵀA without its diagonal:   off_diagonal = ‖K‖² − Σ diagonal² = ‖C‖²,   G = 4 (K A − A · diagonal) = 4 A C
        distance = V Σ_v ‖Δ_v‖²,                  G = 2 V Δ
        a → a / ‖a‖:                              G → (G − a (a · G)) / ‖a‖, the part along each column vanishes

    The columns of K A, A C and Δ have mean zero if those of A have, so that centring leaves the gradient as it is.
    """

    @staticmethod
    def forward(Z: Tensor, center: bool, scale: bool, between: bool) -> tuple[Tensor, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        V, N, D = Z.shape
        gram = _prefers_gram(N, D, between)
        mean, squares, deviation = Z.new_zeros(3, V, 1, D)
        scales = Z.new_ones(V, 1, D)
        if gram:
            products = Z.new_zeros(V, N, N)
            for block in _blocks(D, N, Z):
                z = Z[..., block]
                if center:
                    mean[..., block] = z.mean(1, keepdim=True)
                A = z - mean[..., block]
                work = A.square()
                squares[..., block] = work.sum(1, keepdim=True)
                if scale:
                    scales[..., block] = _scale(squares[..., block], mean[..., block], N)
                    A *= scales[..., block]
                _add_gram(products, A)
                deviation[..., block] = _deviation(A, work)
        else:
            if center:
                mean = Z.mean(1, keepdim=True)
            for block in _blocks(N, D, Z):
                squares += (Z[:, block] - mean).square_().sum(1, keepdim=True)
            if scale:
                scales = _scale(squares, mean, N)
            products = Z.new_zeros(1 if between else V, D, D)
            for block in _blocks(N, D, Z):
                A = (Z[:, block] - mean).mul_(scales)
                if between:
                    products.baddbmm_(A[:1].mT, A[1:])
                else:
                    _add_gram(products, A.mT)
                deviation += _deviation(A, torch.empty_like(A))
        if gram or not between:
            _mirror(products)
        if not gram:
            products.diagonal(dim1=1, dim2=2).zero_()
        diagonal = (squares * scales.square()).masked_fill(squares.isinf() & (scales == 0), 0).squeeze(1)
        distance = V * deviation.sum((0, 1))
        if not gram:
            off = products.square().sum((1, 2))
        elif between:
            off = (products[:1] * products[1:]).sum((1, 2)) - ((diagonal.sum(0) - distance) / 2).square().sum()
        else:
            off = products.square().sum((1, 2)) - diagonal.square().sum(1)
        return mean.squeeze(1), diagonal, off.squeeze(0) if between else off, distance, scales, deviation, products

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        Z, ctx.center, ctx.scale, ctx.between = inputs
        mean, diagonal, _, distance, *rest = output
        ctx.mark_non_differentiable(*rest)
        ctx.save_for_backward(Z, mean, diagonal, distance, *rest)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        Z, *saved = ctx.saved_tensors
        if _is_differentiated_or_batched(grads):
            with torch.enable_grad():
                moments = _second_moments(Z, ctx.center, ctx.scale, ctx.between)
                pairs = [(m, g) for m, g in zip(moments, grads[:4], strict=True) if m.requires_grad]  # not the mean that is always zero
                (gradient,) = torch.autograd.grad([m for m, _ in pairs], Z, [g for _, g in pairs], create_graph=True)
            return gradient, None, None, None
        return _gradient(Z, *saved, *grads[:4], center=ctx.center, scale=ctx.scale, between=ctx.between), None, None, None


def _gradient(
    Z: Tensor,
    mean: Tensor,
    diagonal: Tensor,
    distance: Tensor,
    scales: Tensor,
    deviation: Tensor,
    products: Tensor,
    grad_mean: Tensor,
    grad_diagonal: Tensor,
    grad_off: Tensor,
    grad_distance: Tensor,
    *,
    center: bool,
    scale: bool,
    between: bool,
) -> Tensor:
    """Return the gradient with respect to Z: G = (products of the views) + Δ · b + A · a, pulled back through scale and centring."""
    V, N, D = Z.shape
    gram = _prefers_gram(N, D, between)
    mean = mean[:, None]
    if gram and between:  # off_diagonal = (K_1, K_2) − Σ r², r = (diagonal_1 + diagonal_2 − distance) / 2
        correlation = (diagonal.sum(0) - distance) / 2
        grad_diagonal, grad_distance = grad_diagonal - grad_off * correlation, grad_distance + grad_off * correlation
    elif gram:
        grad_diagonal = grad_diagonal - 2 * grad_off[:, None] * diagonal
    a, b = 2 * grad_diagonal[:, None], 2 * V * grad_distance
    bias = grad_mean[:, None] / N if center else torch.zeros_like(mean)
    G = torch.empty_like(Z, memory_format=torch.contiguous_format)
    if gram:
        K = 2 * grad_off * products.flip(0) if between else 4 * grad_off[:, None, None] * products
        for block in _blocks(D, N, Z):
            A = (Z[..., block] - mean[..., block]).mul_(scales[..., block])
            work = torch.empty_like(A)
            g = _deviations(A, b[block])
            if not scale:
                g.addcmul_(A, a[..., block])
            g.baddbmm_(K, A)
            if scale:
                torch.mul(A, g, out=work)
                g.addcmul_(A, work.sum(1, keepdim=True), value=-1)
            torch.addcmul(bias[..., block], g, scales[..., block], out=G[..., block])
        return G
    if between:
        C = 2 * grad_off * torch.cat([products.mT, products])  # G_1 = A_2 Cᵀ, G_2 = A_1 C
        along = torch.cat([(C[:1].mT * products).sum(2), (C[1:] * products).sum(1)])
    else:
        C = 4 * grad_off[:, None, None] * products
        along = (C * products).sum(1)
    if scale:  # a · (A C) and a · Δ = (‖a‖² − ‖mean‖² + ‖Δ‖²) / 2 are known, so that one pass is enough
        own = (diagonal - diagonal.mean(0) + deviation.squeeze(1) + deviation.squeeze(1).mean(0)) / 2
        a, b = -(along + b * own)[:, None] * scales, b * scales
        C *= scales
    for block in _blocks(N, D, Z):
        A = (Z[:, block] - mean).mul_(scales)
        g = torch.addcmul(_deviations(A, b), A, a, out=G[:, block])
        g.add_(bias).baddbmm_(A.flip(0) if between else A, C)
    return G


def _scale(square: Tensor, mean: Tensor, N: int) -> Tensor:
    """Return 1/‖a‖; 0 for a column that is zero or constant up to rounding; NaN stays NaN."""
    rounding = N * (CONSTANT_BELOW * torch.finfo(mean.dtype).eps) ** 2
    alive = square > rounding * mean.square()  # ‖z‖² = ‖a‖² + N mean²
    return torch.where(alive, square.rsqrt(), 0 * square)


def _deviations(A: Tensor, factor: Tensor) -> Tensor:
    """Return (A_v − mean over the views) · factor; for two views, the difference keeps the digits in which nearly equal views differ."""
    if len(A) != 2:
        return (A - A.mean(0)).mul_(factor)
    deviations = (A[0] - A[1]) * (factor / 2).expand(2, 1, -1)
    deviations[1].neg_()
    return deviations


def _deviation(A: Tensor, work: Tensor) -> Tensor:
    """Return Σ_n (A_v − mean over the views)², (V, 1, D), or (1, D) if it is equal for all views; `work` is overwritten."""
    if len(A) != 2:
        return torch.sub(A, A.mean(0), out=work).square_().sum(1, keepdim=True)
    return torch.sub(A[0], A[1], out=work[0]).square_().sum(0, keepdim=True) / 4


def _add_gram(K: Tensor, A: Tensor) -> None:
    """Add A Aᵀ to the upper triangle of K, in strips of rows that leave out most of the lower triangle."""
    for start, stop in _strips(K.shape[1]):
        K[:, start:stop, start:].baddbmm_(A[:, start:stop], A[:, start:].mT)


def _mirror(K: Tensor) -> None:
    """Copy the strips of `_add_gram` to the lower triangle of K."""
    for start, stop in _strips(K.shape[1]):
        K[:, stop:, start:stop] = K[:, start:stop, stop:].mT


def _strips(N: int) -> Iterator[tuple[int, int]]:
    step = max(128, N // 8)
    return ((start, start + step) for start in range(0, N, step))


def _blocks(length: int, side: int, Z: Tensor) -> Iterator[slice]:
    """Divide the larger axis into blocks, where `side` is the smaller one.

    On a CPU a block stays in the cache, but is not so small that adding its product to a matrix (side, side) costs more than the product.
    An accelerator gets few large blocks, so that it does not wait for calls.
    """
    step = max(2**16 // max(side, 1), side // 2, 1)
    if Z.device.type != "cpu":
        step = max(step, 2**26 // max(side * len(Z), 1))
    return (slice(start, start + step) for start in range(0, length, step))
