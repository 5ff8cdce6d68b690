"""The few operations on matrices that objectives share; a leading dimension is a batch of views."""

import torch
from jaxtyping import Float
from torch import Tensor


def centered(Z: Float[Tensor, "*V N D"]) -> Float[Tensor, "*V N D"]:
    """Z − mean over the samples; a column that is constant up to rounding becomes exactly zero, without gradient.

    The mean of N equal numbers is off by a few units in the last place. Left alone, that residue of a dead column would be
    normalised into a column of noise as large as the living ones, with a gradient of about 1/ε.

    >>> centered(torch.full((48, 1), 0.1)).abs().max()
    tensor(0.)
    """
    A = Z - Z.mean(-2, keepdim=True)
    rounding = 8 * torch.finfo(Z.dtype).eps * torch.linalg.vector_norm(Z.detach(), dim=-2, keepdim=True)
    return A * (torch.linalg.vector_norm(A.detach(), dim=-2, keepdim=True) > rounding)  # a product, so that NaN stays NaN


def unit(A: Float[Tensor, "*V N D"], *, dim: int | tuple[int, ...]) -> Float[Tensor, "*V N D"]:
    """A / ‖A‖₂ along `dim`: -1 unit rows, -2 unit columns, both a matrix of unit Frobenius norm; what is zero stays zero.

    >>> unit(torch.tensor([[3.0, 4.0], [0.0, 0.0]]), dim=-1)
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]])
    """
    norm = torch.linalg.vector_norm(A, dim=dim, keepdim=True)
    return A / norm.masked_fill(norm == 0, 1)


def off_diagonal(C: Float[Tensor, "*V D D"]) -> Float[Tensor, "*V D D"]:
    """C with its diagonal set to zero.

    >>> off_diagonal(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    tensor([[0., 2.],
            [3., 0.]])
    """
    return C - torch.diag_embed(C.diagonal(dim1=-2, dim2=-1))


def products(A: Float[Tensor, "V N D"], B: Float[Tensor, "W N D"]) -> Float[Tensor, "V W N"]:
    """a_vi · b_wi of every view v of A with every view w of B, for each sample i.

    >>> products(torch.ones(3, 4, 5), torch.ones(2, 4, 5)).shape
    torch.Size([3, 2, 4])
    """
    return torch.einsum("vnd,wnd->vwn", A, B)


def mean_over_pairs(M: Float[Tensor, "V W N"]) -> Float[Tensor, ""]:
    """The mean over the samples and over the pairs of different views, v ≠ w; W may be less than V.

    >>> mean_over_pairs(torch.tensor([[7.0, 1.0], [2.0, 7.0], [3.0, 6.0]])[..., None])
    tensor(3.)
    """
    V, W, _ = M.shape
    same = torch.eye(V, W, dtype=torch.bool, device=M.device)
    return M.mean(-1).masked_fill(same, 0).sum() / (V * W - min(V, W))


def squared_distances(Z: Float[Tensor, "*V N D"]) -> Float[Tensor, "*V N N"]:
    """‖z_i − z_j‖² between all rows, never negative; exact zeros on the diagonal are not promised.

    >>> squared_distances(torch.tensor([[0.0, 0.0], [3.0, 4.0]]))
    tensor([[ 0., 25.],
            [25.,  0.]])
    """
    norms = Z.square().sum(-1)
    return (norms[..., :, None] + norms[..., None, :] - 2 * Z @ Z.mT).clamp_min(0)


def logdet(C: Float[Tensor, "*V D D"], *, epsilon: float) -> Float[Tensor, "*V"]:
    """log det(C + ε I) of positive semidefinite matrices, by Cholesky.

    A rounding of the trace greater than ε takes its place, or a singular C would come out indefinite.

    >>> logdet(torch.diag(torch.tensor([1.0, 2.0, 3.0])), epsilon=1e-6), torch.tensor(6.0).log()
    (tensor(1.7918), tensor(1.7918))
    """
    rounding = 8 * torch.finfo(C.dtype).eps * C.detach().diagonal(dim1=-2, dim2=-1).sum(-1)
    ridge = rounding.clamp_min(epsilon)[..., None, None] * torch.eye(C.shape[-1], dtype=C.dtype, device=C.device)
    factor = torch.linalg.cholesky_ex(C + ridge).L  # unlike `cholesky` it waits for no check, and lets NaN through
    return 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
