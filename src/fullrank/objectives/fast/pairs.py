"""SimCLR and SSL-HSIC: sums over all pairs of rows, in blocks.

Under autograd, a matrix of all pairs goes through memory ten times. A block of it is made, reduced to sums while it is
in the cache, and kept for the backward pass if all blocks have at most `KEEP` numbers together; otherwise it is made
again. Of a symmetric matrix, only the blocks on and above the diagonal are made, and its gradient is one product.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.linalg import vecdot, vector_norm

from fullrank.objectives.algebra import view_pairs
from fullrank.objectives.terms import Terms

Saved = Sequence[Tensor]
# Rows and columns of a block: few calls, and a matrix product of full speed; a GPU needs larger blocks, 4096.
BLOCK = {"cpu": 1024}
# Largest number of products that are kept for the backward pass: 256 MiB in float32.
KEEP = 2**26


class simclr:
    """SimCLR. With P the softmax of the cosines without the diagonal, ∂ Σ_a log Σ_b exp s_ab = (P + Pᵀ) U/τ."""

    @staticmethod
    def forward(Z: Tensor, *, temperature: float) -> tuple[Terms, Saved]:
        V, N, _ = Z.shape
        U, norm = unit_rows(Z)
        rows = U.flatten(0, 1)
        sums, kept = torch.full_like(rows[:, 0], -torch.inf), []
        for a, b in upper_blocks(rows):
            S = cosines(rows, a, b, temperature)
            sums[a] = torch.logaddexp(sums[a], S.logsumexp(1))
            if a != b:
                sums[b] = torch.logaddexp(sums[b], S.logsumexp(0))
            if len(rows) ** 2 <= KEEP:
                kept.append(S)
        positives = (vecdot(U.sum(0), U.sum(0)) - vecdot(U, U).sum(0)).sum()
        alignment = -positives / (temperature * N * V * (V - 1))
        return {"alignment": alignment, "uniformity": sums.mean()}, (U, norm, sums, *kept)

    @staticmethod
    def backward(tensors: Saved, saved: Saved, gradients: Saved, *, temperature: float) -> tuple[Tensor]:
        (U, norm, sums, *kept), (of_alignment, of_uniformity) = saved, gradients
        V, N, _ = U.shape
        rows, G = U.flatten(0, 1), torch.zeros_like(U)
        out = G.flatten(0, 1)
        sums = sums.masked_fill(sums == -torch.inf, 0)  # of a row without others
        for i, (a, b) in enumerate(upper_blocks(rows)):
            S = kept[i] if kept else cosines(rows, a, b, temperature)
            W = (S - sums[a, None]).exp_()
            if a == b:
                out[a].addmm_(W + W.mT, rows[a])
            else:
                W += (S - sums[b]).exp_()
                out[a].addmm_(W, rows[b])
                out[b].addmm_(W.mT, rows[a])
        G.mul_(of_uniformity / (temperature * V * N))
        G -= U.sum(0) * (2 * of_alignment / (temperature * N * V * (V - 1)))
        return (through_unit_rows(G, U, norm),)


class ssl_hsic:
    """SSL-HSIC. With k = c/√(c² + ‖x − y‖²), ∂k/∂‖x − y‖² = − k³/(2c²); ∂‖HKH‖_F/∂K = HKH/‖HKH‖_F."""

    @staticmethod
    def forward(Z: Tensor, *, regularization: float, kernel_scale: float) -> tuple[Terms, Saved]:
        V = len(Z)
        U, norm = unit_rows(Z)
        rows = U.flatten(0, 1)
        means, kept = torch.zeros_like(rows[:, 0]), []
        for a, b in upper_blocks(rows):
            K = kernel(rows, a, b, kernel_scale)
            means[a] += K.sum(1) / len(rows)
            if a != b:
                means[b] += K.sum(0) / len(rows)
            if len(rows) ** 2 <= KEEP:
                kept.append(K)
        squared = torch.zeros_like(means[0])
        for i, (a, b) in enumerate(upper_blocks(rows)):
            K = kept[i] if kept else kernel(rows, a, b, kernel_scale)
            squared += (1 if a == b else 2) * vector_norm(centred(K, means, a, b), dim=1).square().sum()
        size = squared.sqrt()
        size = size * ~(size <= 8 * torch.finfo(size.dtype).eps * len(rows))  # rounding errors of a constant matrix
        pairs = torch.stack([pair_kernel(U[v] - U[w], kernel_scale) for v, w in view_pairs(V, V)])
        terms = {"dependence": means.mean() - pairs.mean(), "regularization": regularization * size / len(rows)}
        return terms, (U, norm, means, size, pairs, *kept)

    @staticmethod
    def backward(
        tensors: Saved, saved: Saved, gradients: Saved, *, regularization: float, kernel_scale: float
    ) -> tuple[Tensor]:
        U, norm, means, size, pairs, *kept = saved
        V = len(U)
        rows, G = U.flatten(0, 1), torch.zeros_like(U)
        out, sums = G.flatten(0, 1), torch.zeros_like(means)
        of_mean = gradients[0] / len(rows) ** 2
        of_centred = regularization * gradients[1] / (len(rows) * size.masked_fill(size == 0, torch.inf))
        for i, (a, b) in enumerate(upper_blocks(rows)):
            K = kept[i] if kept else kernel(rows, a, b, kernel_scale)
            W = centred(K, means, a, b).mul_(of_centred).add_(of_mean)
            W.mul_(K.pow(3)).mul_(-2 / kernel_scale**2)  # 4 ∂k/∂‖x − y‖²: two rows, and a factor 2 of the square
            sums[a] += W.sum(1)
            out[a].addmm_(W, rows[b], alpha=-1)
            if a != b:
                sums[b] += W.sum(0)
                out[b].addmm_(W.mT, rows[a], alpha=-1)
        out.addcmul_(rows, sums[:, None])
        of_pairs = (2 * gradients[0] / (pairs.numel() * kernel_scale**2)) * pairs.pow(3)  # each pair comes twice
        for p, (v, w) in enumerate(view_pairs(V, V)):
            G[v].addcmul_(U[v] - U[w], of_pairs[p, :, None])
        return (through_unit_rows(G, U, norm),)


def unit_rows(A: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rows with unit norm, and their norms, 1 for a zero row."""
    norm = vector_norm(A, dim=-1, keepdim=True)
    norm = norm.masked_fill_(norm == 0, 1)
    return A / norm, norm


def through_unit_rows(G: Tensor, U: Tensor, norm: Tensor) -> Tensor:
    """Return the gradient of the rows before their normalisation from G, that of U: (G − u (u · G)) / norm."""
    return G.addcmul_(U, vecdot(U, G)[..., None], value=-1).div_(norm)


def blocks(A: Tensor) -> list[slice]:
    """Return the blocks of rows of A."""
    size = BLOCK.get(A.device.type, 4096)
    return [slice(start, min(start + size, len(A))) for start in range(0, len(A), size)]


def upper_blocks(A: Tensor) -> Iterator[tuple[slice, slice]]:
    """Return the blocks on and above the diagonal of a symmetric matrix with the rows of A."""
    return ((a, b) for i, a in enumerate(blocks(A)) for b in blocks(A)[i:])


def cosines(U: Tensor, a: slice, b: slice, temperature: float) -> Tensor:
    """Return a block of UUᵀ/temperature, with −∞ on the diagonal."""
    S = (U[a] @ U[b].mT).div_(temperature)
    return S.fill_diagonal_(-torch.inf) if a == b else S


def kernel(U: Tensor, a: slice, b: slice, scale: float) -> Tensor:
    """Return a block of the kernel matrix of the rows."""
    squares = vecdot(U, U)
    D2 = (U[a] @ U[b].mT).mul_(-2).add_(squares[a, None]).add_(squares[b])
    return D2.clamp_min_(0).add_(scale**2).rsqrt_().mul_(scale)


def pair_kernel(difference: Tensor, scale: float) -> Tensor:
    """Return the kernel of x − y for each row."""
    return vecdot(difference, difference).add_(scale**2).rsqrt_().mul_(scale)


def centred(K: Tensor, means: Tensor, a: slice, b: slice) -> Tensor:
    """Return a block of HKH."""
    return (K - (means[a, None] - means.mean())).sub_(means[b])
