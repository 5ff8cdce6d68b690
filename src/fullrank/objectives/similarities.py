"""log Σ exp over matrices of inner products, in blocks: no matrix that is quadratic in the number of samples has to
exist.

A block of inner products is made, reduced to its logarithmic sums, and forgotten. The backward pass uses it twice, once
for each of its factors. All blocks are kept for it if they have at most `KEEP` numbers together; otherwise the backward
pass makes them again.
"""

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from fullrank.objectives.closed_form import closed_form

BLOCK = {"cpu": 1024, "other": 4096}
"""Rows and columns of a block: few calls, and a matrix product of full speed; a GPU needs larger blocks."""
KEEP = 2**26
"""Largest number of inner products that are kept for the backward pass: 256 MiB in float32."""


def blocks(A: Tensor) -> list[slice]:
    """Return the blocks of rows of A."""
    size = BLOCK.get(A.device.type, BLOCK["other"])
    return [slice(start, start + size) for start in range(0, len(A), size)]


def upper_blocks(A: Tensor) -> Iterator[tuple[slice, slice]]:
    """Return the blocks on and above the diagonal of a symmetric matrix with the rows of A."""
    return ((rows, columns) for i, rows in enumerate(blocks(A)) for columns in blocks(A)[i:])


def _others_block(U: Tensor, rows: slice, columns: slice, scale: float) -> Tensor:
    S = (U[rows] @ U[columns].mT).mul_(scale)
    return S.fill_diagonal_(-torch.inf) if rows == columns else S


def others(U: Tensor, *, scale: float) -> tuple[Tensor, Sequence[Tensor]]:
    """Return the value of `logsumexp_others`, and what its gradient needs."""
    sums = torch.full_like(U[:, 0], -torch.inf)
    kept = []
    for rows, columns in upper_blocks(U):
        S = _others_block(U, rows, columns, scale)
        sums[rows] = torch.logaddexp(sums[rows], S.logsumexp(1))
        if rows != columns:
            sums[columns] = torch.logaddexp(sums[columns], S.logsumexp(0))
        if len(U) ** 2 <= KEEP:
            kept.append(S)
    return sums, (sums, *kept)


def others_gradient(
    tensors: Sequence[Tensor],
    saved: Sequence[Tensor],
    gradients: Sequence[Tensor],
    needs: Sequence[bool],
    *,
    scale: float,
) -> tuple[Tensor]:
    """Return the gradient of `logsumexp_others`."""
    (U,), (sums, *kept), g = tensors, saved, scale * gradients[0]
    sums = sums.masked_fill(
        sums == -torch.inf, 0
    )  # a row alone has no others: its probabilities are exp(−∞ − 0), not exp(−∞ + ∞)
    dU = torch.zeros_like(U, memory_format=torch.contiguous_format)
    for i, (rows, columns) in enumerate(upper_blocks(U)):
        S = kept[i] if kept else _others_block(U, rows, columns, scale)
        W = (S - sums[rows, None]).exp_().mul_(g[rows, None])
        if rows == columns:
            dU[rows].addmm_(W + W.mT, U[rows])
        else:
            W += (S - sums[columns]).exp_().mul_(g[columns])
            dU[rows].addmm_(W, U[columns])
            dU[columns].addmm_(W.mT, U[rows])
    return (dU,)


@closed_form(others, others_gradient)
def logsumexp_others(U: Float[Tensor, "M D"], *, scale: float) -> Float[Tensor, " M"]:
    """Return log Σ_{b≠a} exp(scale · u_a·u_b) for each row a.

    The matrix is symmetric, so only its blocks on and above the diagonal are computed, and the gradient is one product
    with P + Pᵀ where
    autograd makes two: 1.5 M²D multiplications in all, 2 M²D if the blocks are made twice, and 3 M²D by autograd.

    >>> logsumexp_others(torch.eye(3), scale=5.0)  # log 2
    tensor([0.6931, 0.6931, 0.6931])
    """
    S = scale * (U @ U.mT)
    return S.masked_fill(torch.eye(len(U), dtype=torch.bool, device=U.device), -torch.inf).logsumexp(-1)


def _products(A: Tensor, B: Tensor, *, scale: float, columns: bool) -> tuple[tuple[Tensor, ...], Sequence[Tensor]]:
    sums = [torch.full_like(A[:, 0], -torch.inf)] + ([torch.full_like(B[:, 0], -torch.inf)] if columns else [])
    kept = []
    for i in blocks(A):
        for j in blocks(B):
            S = (A[i] @ B[j].mT).mul_(scale)
            sums[0][i] = torch.logaddexp(sums[0][i], S.logsumexp(1))
            if columns:
                sums[1][j] = torch.logaddexp(sums[1][j], S.logsumexp(0))
            if len(A) * len(B) <= KEEP:
                kept.append(S)
    return tuple(sums), (*sums, *kept)


def _products_gradient(
    tensors: Sequence[Tensor],
    saved: Sequence[Tensor],
    gradients: Sequence[Tensor],
    needs: Sequence[bool],
    *,
    scale: float,
    columns: bool,
) -> tuple[Tensor | None, ...]:
    (A, B), g = tensors, [scale * gradient for gradient in gradients]
    sums, kept = saved[: len(g)], iter(saved[len(g) :])
    dA, dB = (
        torch.zeros_like(t, memory_format=torch.contiguous_format) if need else None
        for t, need in zip(tensors, needs, strict=True)
    )
    for i in blocks(A):
        for j in blocks(B):
            S = next(kept, None)
            S = (A[i] @ B[j].mT).mul_(scale) if S is None else S
            W = (S - sums[0][i, None]).exp_().mul_(g[0][i, None])
            if columns:
                W += (S - sums[1][j]).exp_().mul_(g[1][j])
            if dA is not None:
                dA[i].addmm_(W, B[j])
            if dB is not None:
                dB[j].addmm_(W.mT, A[i])
    return dA, dB


@closed_form(_products, _products_gradient)
def logsumexp_products(
    A: Float[Tensor, "N D"], B: Float[Tensor, "M D"], *, scale: float, columns: bool
) -> tuple[Float[Tensor, " _"], ...]:
    """Return log Σ_b exp(scale · a·b) for each row a of A, and with `columns` log Σ_a exp(scale · a·b) for each row b
    of B.

    >>> logsumexp_products(torch.eye(2), torch.zeros(3, 2), scale=5.0, columns=True)  # log 3, log 2
    (tensor([1.0986, 1.0986]), tensor([0.6931, 0.6931, 0.6931]))
    """
    S = scale * (A @ B.mT)
    return (S.logsumexp(1), S.logsumexp(0)) if columns else (S.logsumexp(1),)
