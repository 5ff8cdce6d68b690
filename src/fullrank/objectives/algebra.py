"""Matrix operations that objectives share; leading dimensions are a batch of views."""

import torch
from jaxtyping import Float
from torch import Tensor

CONSTANT_BELOW = 8
"""A column is constant up to rounding if centring reduces its norm to this many units of its rounding error, ε ‖z‖."""


def centered(Z: Float[Tensor, "*V N D"]) -> Float[Tensor, "*V N D"]:
    """Return Z − mean over the samples. A column that is constant up to rounding becomes exactly zero, without
    gradient.

    The mean of N equal numbers has a rounding error of a few units in the last place. Normalisation would scale this
    error of a constant column to noise of unit norm, with a gradient of about 1/ε.

    >>> centered(torch.full((48, 1), 0.1)).abs().max()
    tensor(0.)
    """
    A = Z - Z.mean(-2, keepdim=True)
    rounding = CONSTANT_BELOW * torch.finfo(Z.dtype).eps * torch.linalg.vector_norm(Z.detach(), dim=-2, keepdim=True)
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


def squared_distances(Z: Float[Tensor, "*V N D"]) -> Float[Tensor, "*V N N"]:
    """Return ‖z_i − z_j‖² for all pairs of rows. No entry is negative; the diagonal is zero up to rounding.

    >>> squared_distances(torch.tensor([[0.0, 0.0], [3.0, 4.0]]))
    tensor([[ 0., 25.],
            [25.,  0.]])
    """
    norms = Z.square().sum(-1)
    return (norms[..., :, None] + norms[..., None, :] - 2 * Z @ Z.mT).clamp_min(0)
