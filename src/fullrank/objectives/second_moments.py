"""Second moments of the columns of embeddings, from which FroSSL, Barlow Twins and VICReg are built, with their gradient in closed form.

The closed form exists because autograd passes over (V, N, D) numbers at each operation and keeps most results, which costs as much time as
the matrix products themselves. The closed form works in blocks that stay in the cache. It saves the scaled columns where the Gram matrix is
used, and no tensor of the size of the embeddings elsewhere.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from fullrank.objectives.algebra import CONSTANT_BELOW, centered, off_diagonal, unit
from fullrank.objectives.closed_form import closed_form


class SecondMoments(NamedTuple):
    """Sums over the samples, of the columns a_vd of A (V, N, D): the embeddings after centring and scaling."""

    diagonal: Float[Tensor, "V D"]
    """‖a_vd‖²."""
    off_diagonal: Float[Tensor, "*V"]
    """Σ_{i≠j} (a_vi · a_vj)² of each view, or Σ_{i≠j} (a_1i · a_2j)² between two views."""
    distance: Float[Tensor, " D"]
    """Σ_{v<w} ‖a_vd − a_wd‖² of scaled columns; of columns that are not scaled, the distance before centring, Σ_{v<w} ‖z_vd − z_wd‖²."""


def _forward(Z: Tensor, *, center: bool, scale: bool, between: bool) -> tuple[tuple[Tensor, ...], Sequence[Tensor]]:
    """Return the moments and what `_backward` needs.

    With A = (Z − mean) · factor, off_diagonal is one of
    ‖A Aᵀ‖² − Σ_d ‖a_d‖⁴ for each view,   (A_1 A_1ᵀ) · (A_2 A_2ᵀ) − Σ_d (a_1d · a_2d)²,   ‖AᵀA without its diagonal‖²
    """
    V, N, D = Z.shape
    gram = _prefers_gram(N, D, between)
    mean, square, deviation = Z.new_zeros(3, V, 1, D)
    if center:
        mean = Z.mean(1, keepdim=True)
    factor = Z.new_ones(V, 1, D)
    if gram:
        A = torch.empty_like(Z, memory_format=torch.contiguous_format)
        for block in _blocks(D, N, Z):
            torch.sub(Z[..., block], mean[..., block], out=A[..., block])
            torch.sum(A[..., block].square(), 1, keepdim=True, out=square[..., block])
        if scale:
            factor = _inverse_norm(square, mean, N)
        products = Z.new_zeros(V, N, N)
        for block in _blocks(D, N, Z, accumulates=True):
            if scale:
                A[..., block] *= factor[..., block]
            _add_gram(products, A[..., block])
            deviation[..., block] = _squared_deviations(A[..., block])
    else:
        for block in _blocks(N, D, Z):
            square += (Z[:, block] - mean).square_().sum(1, keepdim=True)
        if scale:
            factor = _inverse_norm(square, mean, N)
        products = Z.new_zeros(1 if between else V, D, D)
        for block in _blocks(N, D, Z, accumulates=True):
            rows = (Z[:, block] - mean).mul_(factor)
            if between:
                products.baddbmm_(rows[:1].mT, rows[1:])
            else:
                _add_gram(products, rows.mT)
            deviation += _squared_deviations(rows)
        A = Z  # made again in blocks: the products take longer than the passes
    if gram or not between:
        _mirror(products)
    if not gram:
        products.diagonal(dim1=1, dim2=2).zero_()
    diagonal = (square * factor.square()).masked_fill(square.isinf() & (factor == 0), 0).squeeze(1)
    distance = V * deviation.sum((0, 1))
    if not gram:
        off = products.square().sum((1, 2))
    elif between:
        off = (products[:1] * products[1:]).sum((1, 2)) - ((diagonal.sum(0) - distance) / 2).square().sum()
    else:
        off = products.square().sum((1, 2)) - diagonal.square().sum(1)
    if not scale:
        distance = distance + N * V * (mean - mean.mean(0)).square().sum((0, 1))
    return (diagonal, off.squeeze(0) if between else off, distance), (A, mean, factor, diagonal, deviation, products)


def _backward(
    tensors: Sequence[Tensor],
    saved: Sequence[Tensor],
    gradients: Sequence[Tensor],
    needs: Sequence[bool],
    *,
    center: bool,
    scale: bool,
    between: bool,
) -> tuple[Tensor]:
    """Return the gradient with respect to Z. With Δ_v = A_v − mean over the views, the gradient G with respect to A is

        4 (A Aᵀ A − A · diagonal) = 4 A C of off_diagonal, C = AᵀA without its diagonal;   2 A of diagonal;   2 V Δ of distance

    Between two views, products belong to the other view. Of scaled columns, G → (G − a (a · G)) / ‖a‖: the part along a vanishes.
    The columns of G have mean zero if those of A have, so that centring leaves G as it is.
    """
    (Z,), (A, mean, factor, diagonal, deviation, products) = tensors, saved
    grad_diagonal, grad_off, grad_distance = gradients
    V, N, D = Z.shape
    gram = _prefers_gram(N, D, between)
    b = 2 * V * grad_distance
    bias = torch.zeros_like(mean) if scale else b * (mean - mean.mean(0))
    if gram and between:  # a_1d · a_2d = (diagonal_1 + diagonal_2 − V Σ_v deviation_v) / 2
        correlation = (diagonal.sum(0) - V * deviation.sum((0, 1))) / 2
        grad_diagonal, b = grad_diagonal - grad_off * correlation, b + 2 * V * grad_off * correlation
    elif gram:
        grad_diagonal = grad_diagonal - 2 * grad_off[:, None] * diagonal
    a = 2 * grad_diagonal[:, None]
    G = torch.empty_like(Z, memory_format=torch.contiguous_format)
    if gram:
        K = 2 * grad_off * products.flip(0) if between else 4 * grad_off[:, None, None] * products
        for block in _blocks(D, N, Z):
            columns = A[..., block]
            g = _deviations(columns, b[block])
            if scale:
                g.baddbmm_(K, columns)
                g.addcmul_(columns, (columns * g).sum(1, keepdim=True), value=-1)
                torch.mul(g, factor[..., block], out=G[..., block])
            else:
                g.addcmul_(columns, a[..., block]).baddbmm_(K, columns)
                torch.add(g, bias[..., block], out=G[..., block])
        return (G,)
    weight = 2 * grad_off if between else 4 * grad_off[:, None, None]
    C = (products[0].mT, products[0]) if between else products  # without a copy: weight and factor scale the product with A
    along = torch.stack([c.square().sum(0) for c in C])[:, None]
    if scale:  # a · (A C) and a · Δ = (‖a‖² − ‖mean‖² + ‖Δ‖²) / 2 are known, so that one pass is enough
        own = (diagonal - diagonal.mean(0) + deviation.squeeze(1) + deviation.squeeze(1).mean(0)) / 2
        a, b = -(weight * along + b * own[:, None]) * factor, b * factor
    weight = weight * factor
    for block in _blocks(N, D, Z):
        rows = (Z[:, block] - mean).mul_(factor)
        g = G[:, block]
        for v in range(V):
            torch.mm(rows[1 - v if between else v], C[v], out=g[v])
        g.mul_(weight).addcmul_(rows, a).add_(_deviations(rows, b))
        if not scale:
            g += bias
    return (G,)


@closed_form(_forward, _backward)
def _second_moments(Z: Tensor, *, center: bool, scale: bool, between: bool) -> tuple[Tensor, Tensor, Tensor]:
    _, N, D = Z.shape
    A = centered(Z) if center and scale else Z - Z.mean(1, keepdim=True) if center else Z
    A = unit(A, dim=-2) if scale else A
    X, Y = A if between else (A, A)
    if _prefers_gram(N, D, between):
        off = ((X @ X.mT) * (Y @ Y.mT)).sum((-2, -1)) - (X * Y).sum(-2).square().sum(-1)
    else:
        off = off_diagonal(X.mT @ Y).square().sum((-2, -1))
    B = A if scale else Z
    distance = len(Z) * (B - B.mean(0)).square().sum((0, 1))  # Σ_{v<w} ‖b_v − b_w‖² = V Σ_v ‖b_v − mean‖²
    return A.square().sum(1), off, distance


def second_moments(Z: Float[Tensor, "V N D"], *, center: bool = True, scale: bool = True, between: bool = False) -> SecondMoments:
    """Return the second moments of the columns of embeddings.

    The matrix behind `off_diagonal` is the covariance (D, D) or the Gram matrix (N, N), whichever is cheaper. By the Gram matrix
    K_v = A_v A_vᵀ it is Σ_{i≠j} (a_i · a_j)² = ‖K‖_F² − Σ_d ‖a_d‖⁴, exact up to the rounding error of this difference, so that it can be
    slightly negative. Forward and backward pass keep two matrices of this size for each view and the gradient, and by
    the Gram matrix also A.

    Args:
        Z: embeddings of V views of N samples.
        center: subtract the mean over the samples.
        scale: scale each column to unit norm; columns that are zero, or constant up to rounding if they are centred, become zero.
        between: take the products between the columns of two views, instead of the columns of one view.

    Returns:
        The diagonal, the sum of squares off the diagonal, and the squared distance of the views.

    >>> second_moments(torch.tensor([[[0.0, 2], [2, 0]], [[1.0, 1], [1, 3]]])).off_diagonal.round(decimals=4)
    tensor([2., 0.])
    """
    return SecondMoments(*_second_moments(Z, center=center, scale=scale, between=between))


def correlations(moments: SecondMoments) -> Float[Tensor, " D"]:
    """Return the inner products a_1d · a_2d of scaled columns of two views, from ‖a_1‖² + ‖a_2‖² − ‖a_1 − a_2‖².

    >>> correlations(second_moments(torch.tensor([[[0.0, 2], [2, 0]], [[1.0, 1], [5, 3]]]))).round(decimals=4)
    tensor([ 1., -1.])
    """
    return (moments.diagonal.sum(0) - moments.distance) / 2


def _prefers_gram(N: int, D: int, between: bool) -> bool:
    """Compare the multiplications of both passes: between two views, N D² for one matrix and 2 N D², or 2 D N² and 2 D N²."""
    return 4 * N < 3 * D if between else N < D


def _inverse_norm(square: Tensor, mean: Tensor, N: int) -> Tensor:
    """Return 1/‖a‖; 0 for a column that is zero or constant up to rounding; NaN stays NaN."""
    rounding = N * (CONSTANT_BELOW * torch.finfo(mean.dtype).eps) ** 2
    alive = square > rounding * mean.square()  # ‖z‖² = ‖a‖² + N mean²
    return torch.where(alive, square.rsqrt(), 0 * square)


def _deviations(A: Tensor, factor: Tensor) -> Tensor:
    """Return (A_v − mean over the views) · factor; for two views, the difference keeps the digits in which nearly equal views differ."""
    if len(A) != 2:
        return (A - A.mean(0)).mul_(factor)
    deviations = torch.empty_like(A, memory_format=torch.contiguous_format)
    torch.neg(torch.sub(A[0], A[1], out=deviations[0]), out=deviations[1])
    return deviations.mul_(factor / 2)


def _squared_deviations(A: Tensor) -> Tensor:
    """Return Σ_n (A_v − mean over the views)², (V, 1, D), or (1, D) if it is equal for all views."""
    if len(A) != 2:
        return (A - A.mean(0)).square_().sum(1, keepdim=True)
    return (A[0] - A[1]).square_().sum(0, keepdim=True) / 4


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


def _blocks(length: int, side: int, Z: Tensor, *, accumulates: bool = False) -> Iterator[slice]:
    """Divide the larger axis into blocks, where `side` is the smaller one.

    On a CPU a block stays in the cache, but is not so small that a product is slow, or that it costs less than to add it to a matrix
    (side, side), if the blocks are accumulated. An accelerator gets few large blocks, so that it does not wait for calls.
    """
    step = max(2**17 // max(side, 1), 256, side // 2 if accumulates else 0)
    if Z.device.type != "cpu":
        step = max(step, 2**26 // max(side * len(Z), 1))
    return (slice(start, start + step) for start in range(0, length, step))
