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
