"""Matrix operations that objectives share; leading dimensions are a batch of views."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from fullrank.objectives.closed_form import closed_form


def centered(Z: Float[Tensor, "*V N D"]) -> Float[Tensor, "*V N D"]:
    """Return Z − mean over the samples. A column that is constant up to rounding becomes exactly zero, without gradient.

    The mean of N equal numbers has a rounding error of a few units in the last place. Normalisation would scale this error of a constant
    column to noise of unit norm, with a gradient of about 1/ε.

    >>> centered(torch.full((48, 1), 0.1)).abs().max()
    tensor(0.)
    """
    A = Z - Z.mean(-2, keepdim=True)
    rounding = 8 * torch.finfo(Z.dtype).eps * torch.linalg.vector_norm(Z.detach(), dim=-2, keepdim=True)
    return A * (torch.linalg.vector_norm(A.detach(), dim=-2, keepdim=True) > rounding)  # a product keeps NaN


def unit(A: Float[Tensor, "*V N D"], *, dim: int | tuple[int, ...]) -> Float[Tensor, "*V N D"]:
    """Return A / ‖A‖₂ along `dim`: rows (-1), columns (-2) or the matrix (both) get unit norm; zeros stay zero.

    >>> unit(torch.tensor([[3.0, 4.0], [0.0, 0.0]]), dim=-1)
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]])
    """
    norm = torch.linalg.vector_norm(A, dim=dim, keepdim=True)
    return A / norm.masked_fill(norm == 0, 1)


def off_diagonal(C: Float[Tensor, "*V D D"]) -> Float[Tensor, "*V D D"]:
    """Return C with its diagonal set to zero.

    >>> off_diagonal(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    tensor([[0., 2.],
            [3., 0.]])
    """
    return C - torch.diag_embed(C.diagonal(dim1=-2, dim2=-1))


def products(A: Float[Tensor, "V N D"], B: Float[Tensor, "W N D"]) -> Float[Tensor, "V W N"]:
    """Return the inner products a_vi · b_wi of every view v of A with every view w of B, for each sample i.

    >>> products(torch.ones(3, 4, 5), torch.ones(2, 4, 5)).shape
    torch.Size([3, 2, 4])
    """
    return torch.einsum("vnd,wnd->vwn", A, B)


def mean_over_pairs(M: Float[Tensor, "V W N"]) -> Float[Tensor, ""]:
    """Return the mean over the samples and over the pairs of different views, v ≠ w; W may be less than V.

    >>> mean_over_pairs(torch.tensor([[7.0, 1.0], [2.0, 7.0], [3.0, 6.0]])[..., None])
    tensor(3.)
    """
    V, W, _ = M.shape
    same = torch.eye(V, W, dtype=torch.bool, device=M.device)
    return M.mean(-1).masked_fill(same, 0).sum() / (V * W - min(V, W))


def squared_distances(Z: Float[Tensor, "*V N D"]) -> Float[Tensor, "*V N N"]:
    """Return ‖z_i − z_j‖² for all pairs of rows. No entry is negative; the diagonal is zero up to rounding.

    >>> squared_distances(torch.tensor([[0.0, 0.0], [3.0, 4.0]]))
    tensor([[ 0., 25.],
            [25.,  0.]])
    """
    norms = Z.square().sum(-1)
    return (norms[..., :, None] + norms[..., None, :] - 2 * Z @ Z.mT).clamp_min(0)


def _logdet(C: Tensor, *, epsilon: float) -> tuple[Tensor, Sequence[Tensor]]:
    L = _regular_cholesky(C, epsilon)
    return 2 * L.diagonal(dim1=-2, dim2=-1).log().sum(-1), (L,)


def _logdet_gradient(
    tensors: Sequence[Tensor], saved: Sequence[Tensor], gradients: Sequence[Tensor], needs: Sequence[bool], *, epsilon: float
) -> tuple[Tensor]:
    (L,), (g,) = saved, gradients
    identity = torch.eye(L.shape[-1], dtype=L.dtype, device=L.device)
    return (torch.cholesky_solve((g[..., None, None] * identity).expand_as(L), L),)


@closed_form(_logdet, _logdet_gradient)
def logdet(C: Float[Tensor, "*V D D"], *, epsilon: float) -> Float[Tensor, "*V"]:
    """Return log det(C + ε I) of positive semidefinite matrices, by Cholesky. The gradient is the inverse, from the same factor.

    If the rounding error of the trace is larger than ε, it replaces ε, because a singular C could otherwise become indefinite.

    >>> logdet(torch.diag(torch.tensor([1.0, 2.0, 3.0])), epsilon=1e-6), torch.tensor(6.0).log()
    (tensor(1.7918), tensor(1.7918))
    """
    return 2 * _regular_cholesky(C, epsilon).diagonal(dim1=-2, dim2=-1).log().sum(-1)


def _regular_cholesky(C: Tensor, epsilon: float) -> Tensor:
    rounding = 8 * torch.finfo(C.dtype).eps * C.detach().diagonal(dim1=-2, dim2=-1).sum(-1)
    ridge = rounding.clamp_min(epsilon)[..., None, None] * torch.eye(C.shape[-1], dtype=C.dtype, device=C.device)
    return torch.linalg.cholesky_ex(C + ridge).L  # unlike `cholesky`, `cholesky_ex` does not synchronise and propagates NaN
