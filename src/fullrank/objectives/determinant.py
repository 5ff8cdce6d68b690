"""The logarithm of a determinant, which two objectives maximise."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from fullrank.objectives.closed_form import closed_form


def _logdet(C: Tensor, *, epsilon: float) -> tuple[Tensor, Sequence[Tensor]]:
    L = _regular_cholesky(C, epsilon)
    return 2 * L.diagonal(dim1=-2, dim2=-1).log().sum(-1), (L,)


def _logdet_gradient(
    tensors: Sequence[Tensor],
    saved: Sequence[Tensor],
    gradients: Sequence[Tensor],
    needs: Sequence[bool],
    *,
    epsilon: float,
) -> tuple[Tensor]:
    (L,), (g,) = saved, gradients
    return (torch.cholesky_solve(torch.diag_embed(g[..., None].expand(L.shape[:-1])), L),)  # g C⁻¹


@closed_form(_logdet, _logdet_gradient)
def logdet(C: Float[Tensor, "*V D D"], *, epsilon: float) -> Float[Tensor, "*V"]:
    """Return log det(C + ε I) of positive semidefinite matrices, by Cholesky. The gradient is the inverse, from the
    same factor.

    If the rounding error of the trace is larger than ε, it replaces ε, because a singular C could otherwise become
    indefinite.

    >>> logdet(torch.diag(torch.tensor([1.0, 2.0, 3.0])), epsilon=1e-6), torch.tensor(6.0).log()
    (tensor(1.7918), tensor(1.7918))
    """
    return 2 * _regular_cholesky(C, epsilon).diagonal(dim1=-2, dim2=-1).log().sum(-1)


def _regular_cholesky(C: Tensor, epsilon: float) -> Tensor:
    rounding = 8 * torch.finfo(C.dtype).eps * C.detach().diagonal(dim1=-2, dim2=-1).sum(-1)
    ridge = rounding.clamp_min(epsilon)[..., None].expand(C.shape[:-1])
    return torch.linalg.cholesky_ex(
        C + torch.diag_embed(ridge)
    ).L  # unlike `cholesky`, it does not synchronise and propagates NaN
