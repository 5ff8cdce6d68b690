"""Matrix operations that objectives share; leading dimensions are a batch of views."""

import torch
from jaxtyping import Float
from torch import Tensor

from fullrank.distributed import sample_mean, whole

# A column is constant up to rounding if centring reduces its norm to this many units of its rounding error, ε ‖z‖.
CONSTANT_BELOW = 8


def centered(Z: Float[Tensor, "*V N D"]) -> Float[Tensor, "*V N D"]:
    """Return Z − mean over the samples. A column that is constant up to rounding becomes exactly zero, without
    gradient.

    The mean of N equal numbers has a rounding error of a few units in the last place. Normalisation would scale this
    error of a constant column to noise of unit norm, with a gradient of about 1/ε.

    >>> centered(torch.full((48, 1), 0.1)).abs().max()
    tensor(0.)
    """
    A = Z - sample_mean(Z)
    rounding = CONSTANT_BELOW * torch.finfo(Z.dtype).eps * torch.linalg.vector_norm(Z.detach(), dim=-2, keepdim=True)
    return A * (torch.linalg.vector_norm(A.detach(), dim=-2, keepdim=True) > rounding)  # a product keeps NaN


def unit(A: Float[Tensor, "*V N D"], *, dim: int | tuple[int, ...]) -> Float[Tensor, "*V N D"]:
    """Return A / ‖A‖₂ along `dim`: rows (-1), columns (-2) or the matrix (both) get unit norm; zeros stay zero.

    >>> unit(torch.tensor([[3.0, 4.0], [0.0, 0.0]]), dim=-1)
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]])
    """
    norm2 = A.square().sum(dim, keepdim=True)
    return A / torch.where(norm2 == 0, 1, norm2).sqrt()


def products(X: Float[Tensor, "*V N D"], Y: Float[Tensor, "*V N D"]) -> Float[Tensor, "*V D D"]:
    """Return XᵀY, the sum over the samples of x_i y_iᵀ; over those of all processes, if they share the batch
    (`fullrank.distributed.on_shards`).

    >>> products(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0]]))
    tensor([[3., 4.],
            [6., 8.]])
    """
    return whole(X.mT @ Y)


def gram(A: Float[Tensor, "*V N D"]) -> Float[Tensor, "*V M M"]:
    """Return the smaller of AᵀA and AAᵀ: they have the same eigenvalues, except for zeros.

    >>> gram(torch.ones(1, 5)), gram(torch.ones(5, 1))
    (tensor([[5.]]), tensor([[5.]]))
    """
    return products(A, A) if A.shape[-1] <= A.shape[-2] else A @ A.mT


def off_diagonal(C: Float[Tensor, "*V D D"]) -> Float[Tensor, "*V D D"]:
    """Return C with its diagonal set to zero.

    >>> off_diagonal(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    tensor([[0., 2.],
            [3., 0.]])
    """
    return C - torch.diag_embed(C.diagonal(dim1=-2, dim2=-1))


def off_diagonal_norm2(X: Float[Tensor, "*V N D"], Y: Float[Tensor, "*V N D"]) -> Float[Tensor, "*V"]:
    """Return Σ_{i≠j} (x_i · y_j)² of the columns of X and Y.

    For N < D it comes from the smaller matrices, as ‖XᵀY‖_F² = ⟨XXᵀ, YYᵀ⟩ without Σ_i (x_i · y_i)²; the rounding error
    of this difference can make it slightly negative.

    >>> off_diagonal_norm2(torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 3.0]]))
    tensor(13.)
    """
    if X.shape[-1] <= X.shape[-2]:
        return off_diagonal(products(X, Y)).square().sum((-2, -1))
    return ((X @ X.mT) * (Y @ Y.mT)).sum((-2, -1)) - (X * Y).sum(-2).square().sum(-1)


def squared_distances(Z: Float[Tensor, "*V N D"]) -> Float[Tensor, "*V N N"]:
    """Return ‖z_i − z_j‖² for all pairs of rows. No entry is negative; the diagonal is zero up to rounding.

    >>> squared_distances(torch.tensor([[0.0, 0.0], [3.0, 4.0]]))
    tensor([[ 0., 25.],
            [25.,  0.]])
    """
    norms = Z.square().sum(-1)
    return (norms[..., :, None] + norms[..., None, :] - 2 * Z @ Z.mT).clamp_min(0)


def view_pairs(V: int, W: int) -> list[tuple[int, int]]:
    """Return the ordered pairs of different views, the first of V, the second of W.

    >>> view_pairs(3, 2)
    [(0, 1), (1, 0), (2, 0), (2, 1)]
    """
    return [(v, w) for v in range(V) for w in range(W) if v != w]


def pair_products(A: Float[Tensor, "V N D"], B: Float[Tensor, "W N D"]) -> Float[Tensor, "P N"]:
    """Return the inner products of the rows of A with the rows of B of the same sample, for each pair of different
    views (`view_pairs`).

    >>> A = torch.tensor([[[1.0, 0.0]], [[2.0, 2.0]]])
    >>> pair_products(A, A)
    tensor([[2.],
            [2.]])
    """
    return torch.stack([torch.linalg.vecdot(A[v], B[w]) for v, w in view_pairs(len(A), len(B))])


def pair_cosines(A: Float[Tensor, "V N D"], B: Float[Tensor, "W N D"]) -> Float[Tensor, "P N"]:
    """Return the cosines of the rows of A with the rows of B of the same sample, for each pair of different views; a
    zero row has cosine 0.

    >>> A = torch.tensor([[[1.0, 0.0]], [[2.0, 2.0]]])
    >>> pair_cosines(A, A)
    tensor([[0.7071],
            [0.7071]])
    """
    a, b = _row_norms(A), _row_norms(B)
    norms = torch.stack([a[v] * b[w] for v, w in view_pairs(len(A), len(B))])
    return pair_products(A, B) / norms


def _row_norms(A: Tensor) -> Tensor:
    norm = torch.linalg.vector_norm(A, dim=-1)
    return norm.masked_fill(norm == 0, 1)


def random_directions(D: int, slices: int, generator: torch.Generator | None) -> Float[Tensor, "D slices"]:
    """Return unit vectors with uniform directions, as columns on the CPU.

    >>> random_directions(3, 5, None).square().sum(0).allclose(torch.ones(5, dtype=torch.float64))
    True
    """
    return unit(torch.randn(D, slices, generator=generator, dtype=torch.float64), dim=-2)


def logdet(C: Float[Tensor, "*V D D"], *, epsilon: float) -> Float[Tensor, "*V"]:
    """Return log det(C + ε I) of positive semidefinite matrices, by Cholesky.

    If the rounding error of the trace is larger than ε, it replaces ε, because a singular C could otherwise become
    indefinite.

    >>> logdet(torch.diag(torch.tensor([1.0, 2.0, 3.0])), epsilon=1e-6), torch.tensor(6.0).log()
    (tensor(1.7918), tensor(1.7918))
    """
    rounding = 8 * torch.finfo(C.dtype).eps * C.detach().diagonal(dim1=-2, dim2=-1).sum(-1)
    ridge = rounding.clamp_min(epsilon)[..., None].expand(C.shape[:-1])
    L = torch.linalg.cholesky_ex(C + torch.diag_embed(ridge)).L  # unlike `cholesky`, it keeps NaN without an error
    return 2 * L.diagonal(dim1=-2, dim2=-1).log().sum(-1)
