"""Second moments of the columns of embeddings, from which FroSSL, Barlow Twins and VICReg are built, with their
gradient in closed form.

Autograd passes over (V, N, D) numbers at each operation and keeps most results, which takes as long as the matrix
products themselves. The closed form passes over blocks that stay in the cache. With the Gram matrix it saves the
centred and scaled columns for the backward pass; with the covariance it saves no tensor of the size of the embeddings.
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
    """Σ_{v<w} ‖a_vd − a_wd‖² if the columns are scaled, else Σ_{v<w} ‖z_vd − z_wd‖², the distance before centring."""


def _forward(Z: Tensor, *, center: bool, scale: bool, between: bool) -> tuple[tuple[Tensor, ...], Sequence[Tensor]]:
    """Return the moments and what `_backward` needs.

    With A = (Z − mean) · factor, off_diagonal is one of
    ‖A Aᵀ‖² − Σ_d ‖a_d‖⁴ for each view,   (A_1 A_1ᵀ) · (A_2 A_2ᵀ) − Σ_d (a_1d · a_2d)²,   ‖AᵀA without its diagonal‖²

    The rounding error of a large mean can be large beside the columns. It is the mean of Z − mean, and `shift` takes it
    out. Without that, G in `_backward` would have a mean, and the distance of nearly equal views would be mostly error.
    """
    V, N, D = Z.shape
    gram = _prefers_gram(N, D, between)
    mean = Z.mean(1, keepdim=True) if center else Z.new_zeros(V, 1, D)
    square, error, deviation = Z.new_zeros(3, V, 1, D)
    if gram:
        A = torch.empty_like(Z, memory_format=torch.contiguous_format)
        for block in _blocks(D, N, Z):
            columns = torch.sub(Z[..., block], mean[..., block], out=A[..., block])
            if center:
                torch.mean(columns, 1, keepdim=True, out=error[..., block])
            torch.sum(columns.square(), 1, keepdim=True, out=square[..., block])
    else:
        A = Z  # made again in blocks: the products take longer than the passes
        for block in _blocks(N, D, Z):
            rows = Z[:, block] - mean
            if center:
                error += rows.sum(1, keepdim=True) / N
            square += rows.square_().sum(1, keepdim=True)
    square = (square - N * error.square()).clamp_min_(0)  # without the error
    factor = _inverse_norm(square, mean, N) if scale else torch.ones_like(mean)
    shift = -error * factor
    if gram:
        products = Z.new_zeros(V, N, N)
        for block in _blocks(D, N, Z, accumulates=True):
            columns = A[..., block]
            if center or scale:
                torch.addcmul(shift[..., block], columns, factor[..., block], out=columns)
            _add_gram(products, columns)
            deviation[..., block] = _squared_deviations(columns if scale else Z[..., block])
    else:
        products = Z.new_zeros(1 if between else V, D, D)
        for block in _blocks(N, D, Z, accumulates=True):
            rows = _rows(Z[:, block], mean, factor, shift)
            if between:
                products.baddbmm_(rows[:1].mT, rows[1:])
            else:
                _add_gram(products, rows.mT)
            deviation += _squared_deviations(rows if scale else Z[:, block])
    if gram or not between:
        _mirror(products)
    # A scaled column has norm 1, or 0 if its factor is 0; NaN stays
    diagonal = (factor / factor.masked_fill(factor == 0, 1) if scale else square).squeeze(1)
    distance = V * deviation.sum((0, 1))
    if not gram:
        products.diagonal(dim1=1, dim2=2).zero_()
        off = products.square().sum((1, 2))
    elif between:
        off = (products[:1] * products[1:]).sum((1, 2)) - ((diagonal.sum(0) - distance) / 2).square().sum()
    else:
        off = products.square().sum((1, 2)) - diagonal.square().sum(1)
    return (diagonal, off.squeeze(0) if between else off, distance), (
        A,
        mean,
        factor,
        shift,
        diagonal,
        deviation,
        products,
    )


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
    """Return the gradient with respect to Z. With B = A if it is scaled, else Z, and Δ_v = B_v − mean over the views,
    the gradient G is

        4 (A Aᵀ A − A · diagonal) = 4 A C of off_diagonal, C = AᵀA without its diagonal;   2 A of diagonal;   2 V Δ of distance

    Between two views, products belong to the other view. Of scaled columns, G → (G − a (a · G)) / ‖a‖: the part along a
    vanishes. The columns of G have mean zero if those of A have, so that centring leaves G as it is.
    """
    (Z,), (A, mean, factor, shift, diagonal, deviation, products) = tensors, saved
    grad_diagonal, grad_off, grad_distance = gradients
    V, N, D = Z.shape
    b = 2 * V * grad_distance
    G = torch.empty_like(Z, memory_format=torch.contiguous_format)
    if _prefers_gram(N, D, between):
        if between:  # a_1d · a_2d = (diagonal_1 + diagonal_2 − V Σ_v deviation_v) / 2
            K = 2 * grad_off * products.flip(0)
            b = b + V * grad_off * (diagonal.sum(0) - V * deviation.sum((0, 1)))
        else:
            K = 4 * grad_off[:, None, None] * products
        if not scale:
            a = 2 * (grad_diagonal - 2 * grad_off[:, None] * diagonal)[:, None]
        for block in _blocks(D, N, Z):
            columns = A[..., block]
            if scale:
                g = _deviations(columns, b[block]).baddbmm_(K, columns)
                g.addcmul_(columns, (columns * g).sum(1, keepdim=True), value=-1)
                torch.mul(g, factor[..., block], out=G[..., block])
            else:
                g = _deviations(Z[..., block], b[block]).addcmul_(columns, a[..., block])
                G[..., block] = g.baddbmm_(K, columns)
        return (G,)
    weight = 2 * grad_off if between else 4 * grad_off[:, None, None]
    C = (
        (products[0].mT, products[0]) if between else products
    )  # without a copy: weight and factor scale the product with A
    a = 2 * grad_diagonal[:, None]
    if scale:  # a · (A C) and a · Δ = (‖a‖² − ‖mean‖² + ‖Δ‖²) / 2 are known, so that one pass is enough
        along = torch.stack([c.square().sum(0) for c in C])[:, None]
        own = (diagonal - diagonal.mean(0) + deviation.squeeze(1) + deviation.squeeze(1).mean(0)) / 2
        a, b = -(weight * along + b * own[:, None]) * factor, b * factor
    weight = weight * factor
    for block in _blocks(N, D, Z):
        rows = _rows(Z[:, block], mean, factor, shift)
        g = G[:, block]
        for v in range(V):
            torch.mm(rows[1 - v if between else v], C[v], out=g[v])
        g.mul_(weight).addcmul_(rows, a).add_(_deviations(rows if scale else Z[:, block], b))
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


def second_moments(
    Z: Float[Tensor, "V N D"], *, center: bool = True, scale: bool = True, between: bool = False
) -> SecondMoments:
    """Return the second moments of the columns of embeddings.

    `off_diagonal` comes from the covariance (D, D) or from the Gram matrix (N, N), whichever is cheaper. From the Gram
    matrix K_v = A_v A_vᵀ it is Σ_{i≠j} (a_i · a_j)² = ‖K_v‖_F² − Σ_d ‖a_d‖⁴, which the rounding error of the difference
    can make slightly negative. Forward and backward pass hold the gradient and at most two such matrices for each view,
    and with the Gram matrix also A.

    Args:
        Z: embeddings of V views of N samples.
        center: subtract the mean over the samples.
        scale: scale each column to unit norm; columns that are zero, or constant up to rounding if they are centred,
            become zero.
        between: multiply the columns of the first view with those of the second, not those of each view with each
            other; for two views of scaled columns.

    Returns:
        The diagonal, the sum of squares off the diagonal, and the squared distance of the views.

    Source: our derivation; the gradients are those of ‖AᵀA‖_F² and of the normalisation of columns.

    >>> second_moments(torch.tensor([[[0.0, 2], [2, 0]], [[1.0, 1], [1, 3]]])).off_diagonal.round(decimals=4)
    tensor([2., 0.])
    """
    assert not between or (scale and len(Z) == 2)
    return SecondMoments(*_second_moments(Z, center=center, scale=scale, between=between))


def correlations(moments: SecondMoments) -> Float[Tensor, " D"]:
    """Return the inner products a_1d · a_2d of scaled columns of two views, from ‖a_1‖² + ‖a_2‖² − ‖a_1 − a_2‖².

    >>> correlations(second_moments(torch.tensor([[[0.0, 2], [2, 0]], [[1.0, 1], [5, 3]]]))).round(decimals=4)
    tensor([ 1., -1.])
    """
    return (moments.diagonal.sum(0) - moments.distance) / 2


def _prefers_gram(N: int, D: int, between: bool) -> bool:
    """Return whether both passes multiply less through (N, N): between two views, 2 D N² + 2 D N² against N D² + 2 N
    D².
    """
    return 4 * N < 3 * D if between else N < D


def _rows(Z: Tensor, mean: Tensor, factor: Tensor, shift: Tensor) -> Tensor:
    """Return (Z − mean) · factor + shift."""
    rows = Z - mean
    return torch.addcmul(shift, rows, factor, out=rows)


def _inverse_norm(square: Tensor, mean: Tensor, N: int) -> Tensor:
    """Return 1/‖a‖; 0 for a column that is zero or constant up to rounding (`CONSTANT_BELOW`); NaN stays NaN."""
    norm = square.sqrt()
    alive = norm > CONSTANT_BELOW * torch.finfo(mean.dtype).eps * N**0.5 * mean.abs()  # ‖z‖² = ‖a‖² + N mean²
    return torch.where(alive, 1 / norm, 0 * square)


def _deviations(A: Tensor, factor: Tensor) -> Tensor:
    """Return (A_v − mean over the views) · factor; for two views, the difference keeps the digits in which nearly equal
    views differ.
    """
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

    On a CPU a block stays in the cache, but is large enough for a fast product. If the products are added to a matrix
    (side, side), a block is also at least half as long as `side`, so that a product takes longer than its addition. An
    accelerator gets few large blocks, so that it does not wait for calls.
    """
    step = max(2**17 // max(side, 1), 256, side // 2 if accumulates else 0)
    if Z.device.type != "cpu":
        step = max(step, 2**26 // max(side * len(Z), 1))
    return (slice(start, start + step) for start in range(0, length, step))
