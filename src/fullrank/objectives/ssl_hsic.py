"""SSL-HSIC: maximise the dependence of embeddings on the identity of the image, measured by a kernel."""

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from torch.linalg import vecdot

from fullrank.objectives import similarities
from fullrank.objectives.algebra import centered, squared_distances
from fullrank.objectives.closed_form import closed_form
from fullrank.objectives.rows import pair_cosines, unit_rows, view_pairs
from fullrank.objectives.shapes import checks_shapes
from fullrank.objectives.similarities import upper_blocks
from fullrank.objectives.terms import Terms


@checks_shapes
def ssl_hsic(Z: Float[Tensor, "V N D"], *, regularization: float = 3.0, kernel_scale: float = 1.0) -> Terms:
    """Return the terms of SSL-HSIC, for any number of views. With z the n = V N L2-normalised embeddings, k(x, y) =
    c/√(c² + ‖x − y‖²) the inverse multiquadric kernel of scale c, K its matrix, H = I − 1/n, and Y the identity of the
    image of each row,

        HSIC(Z, Y) = mean_{v≠w} mean_i k(z_vi, z_wi) − mean_{a,b} K_ab        HSIC(Z, Z) = ‖HKH‖_F²/n²
        ℒ = − HSIC(Z, Y) + regularization · √HSIC(Z, Z)

    Complete collapse has loss 0 and no gradient. A joint rotation and the length of rows do not change the loss. The
    cost is (V N)² D. The kernel exists in blocks; the memory is a few times V·N·D, and at most `similarities.KEEP`
    numbers of the kernel.

    Args:
        Z: embeddings of V ≥ 2 views of N samples.
        regularization: weight of the dependence of embeddings on themselves, the paper's γ.
        kernel_scale: scale c of the kernel.

    Returns:
        The terms "dependence" and "regularization".

    Source: Li et al. 2021, Self-Supervised Learning with Kernel Dependence Maximization, with its estimator of HSIC(Z,
    Y), where the kernel of Y is N for two views of one image and 0 otherwise. (With 1 in place of N, HSIC(Z, Y) would
    be N times smaller, and collapse the optimum.) The kernel is computed exactly; the authors approximate it by random
    features.

    >>> ssl_hsic(torch.ones(2, 8, 3))
    {'dependence': tensor(0.), 'regularization': tensor(0.)}
    """
    U = unit_rows(Z)
    squares = vecdot(U.detach(), U.detach())  # 1, or 0 for a zero row, always without gradient
    D2 = torch.stack([squares[v] + squares[w] for v, w in view_pairs(len(Z), len(Z))]) - 2 * pair_cosines(Z, Z)
    mean, dependence = kernel_moments(U.flatten(0, 1), scale=kernel_scale)
    return {
        "dependence": mean - kernel(D2.clamp_min(0), kernel_scale).mean(),
        "regularization": regularization * dependence,
    }


def kernel(D2: Float[Tensor, "*N"], scale: float) -> Float[Tensor, "*N"]:
    """Return the inverse multiquadric kernel of squared distances.

    >>> kernel(torch.tensor([0.0, 3.0]), 1.0)
    tensor([1.0000, 0.5000])
    """
    return scale * (scale**2 + D2).rsqrt()


def _blocks_of_kernel(U: Tensor, scale: float, kept: Sequence[Tensor] = ()) -> Iterator[tuple[slice, slice, Tensor]]:
    squares = vecdot(U, U)
    for i, (rows, columns) in enumerate(upper_blocks(U)):
        if kept:
            yield rows, columns, kept[i]
            continue
        D2 = (U[rows] @ U[columns].mT).mul_(-2).add_(squares[rows, None]).add_(squares[columns])
        yield rows, columns, D2.clamp_min_(0).add_(scale**2).rsqrt_().mul_(scale)


def _centred(K: Tensor, rows: slice, columns: slice, means: Tensor) -> Tensor:
    return (K - (means[rows, None] - means.mean())).sub_(means[columns])


def _kernel_moments(U: Tensor, *, scale: float) -> tuple[tuple[Tensor, Tensor], Sequence[Tensor]]:
    n = len(U)
    means = torch.zeros_like(U[:, 0])
    kept = []
    for rows, columns, K in _blocks_of_kernel(U, scale):
        means[rows] += K.sum(1) / n
        if rows != columns:
            means[columns] += K.sum(0) / n
        if n**2 <= similarities.KEEP:
            kept.append(K)
    squared = torch.zeros_like(means[0])
    for rows, columns, K in _blocks_of_kernel(U, scale, kept):
        squared += (1 if rows == columns else 2) * _centred(K, rows, columns, means).square_().sum()
    norm = squared.sqrt()
    norm = norm * ~(norm <= 8 * torch.finfo(norm.dtype).eps * n)  # a constant matrix has rounding errors; NaN stays
    return (means.mean(), norm / n), (means, norm, *kept)


def _kernel_moments_gradient(
    tensors: Sequence[Tensor],
    saved: Sequence[Tensor],
    gradients: Sequence[Tensor],
    needs: Sequence[bool],
    *,
    scale: float,
) -> tuple[Tensor]:
    (U,), (means, norm, *kept), n = tensors, saved, len(tensors[0])
    of_mean = gradients[0] / n**2
    of_centred = gradients[1] / (n * norm.masked_fill(norm == 0, torch.inf))
    dU = torch.zeros_like(U, memory_format=torch.contiguous_format)
    sums = torch.zeros_like(means)
    for rows, columns, K in _blocks_of_kernel(U, scale, kept):
        G = _centred(K, rows, columns, means).mul_(of_centred).add_(of_mean)
        G.mul_(K).mul_(K).mul_(K).mul_(-2 / scale**2)  # 4 dk/d‖x − y‖² = − 2 k³/c²
        sums[rows] += G.sum(1)
        dU[rows].addmm_(G, U[columns], alpha=-1)
        if rows != columns:
            sums[columns] += G.sum(0)
            dU[columns].addmm_(G.mT, U[rows], alpha=-1)
    return (dU.addcmul_(U, sums[:, None]),)


@closed_form(_kernel_moments, _kernel_moments_gradient)
def kernel_moments(U: Float[Tensor, "M D"], *, scale: float) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Return the mean of the kernel matrix K of the rows, and ‖HKH‖_F/M.

    The matrix is made in blocks on and above its diagonal, and used three times: for the means, for the norm around the
    means, and for the gradient. With the product of the gradient, this takes 1.5 M²D multiplications if the blocks are
    kept (`similarities.KEEP`), else 2.5 M²D; autograd takes 3 M²D and a dozen matrices (M, M).

    >>> kernel_moments(torch.ones(8, 3), scale=1.0)
    (tensor(1.), tensor(0.))
    """
    K = kernel(squared_distances(U), scale)
    return K.mean(), torch.linalg.matrix_norm(centered(centered(K).mT)) / len(U)
