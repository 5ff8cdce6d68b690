"""TiCo: agreement of the views, and a penalty on directions in which a running covariance is large."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from torch.linalg import vecdot

from fullrank.objectives.closed_form import closed_form
from fullrank.objectives.rows import pair_cosines, scatter, unit_rows
from fullrank.objectives.shapes import checks_shapes
from fullrank.objectives.state import ObjectiveState, stateful
from fullrank.objectives.terms import Terms


def tico_covariance(
    Z: Float[Tensor, "V N D"], C: Float[Tensor, "D D"], *, forgetting: float = 0.9
) -> Float[Tensor, "D D"]:
    """Return the running second moment of the L2-normalised rows z: forgetting · C + (1 − forgetting) · mean_{v,i} z_vi
    z_viᵀ.

    Source: Zhu et al. 2022.

    >>> tico_covariance(torch.tensor([[[2.0, 0.0]], [[0.0, 3.0]]]), torch.zeros(2, 2), forgetting=0.5)
    tensor([[0.2500, 0.0000],
            [0.0000, 0.2500]])
    """
    rows = unit_rows(Z).flatten(0, 1)
    return forgetting * C + (1 - forgetting) / len(rows) * scatter(rows)


def _penalty(U: Tensor, C: Tensor, *, forgetting: float) -> tuple[Tensor, Sequence[Tensor]]:
    M, D = U.shape
    if 2 * M < D:  # both passes multiply M D² + 2 M² D times; else 2 M D²
        UC, K = U @ (C + C.mT), U @ U.mT
        return forgetting / (2 * M) * vecdot(UC, U).sum() + (1 - forgetting) / M**2 * vecdot(K, K).sum(), (UC, K)
    S = U.mT @ U / M
    return vecdot((forgetting * C).add_(S, alpha=1 - forgetting), S).sum(), (S,)


def _penalty_gradient(
    tensors: Sequence[Tensor],
    saved: Sequence[Tensor],
    gradients: Sequence[Tensor],
    needs: Sequence[bool],
    *,
    forgetting: float,
) -> tuple[Tensor, None]:
    (U, C), (g,) = tensors, gradients
    M, D = U.shape
    if 2 * M < D:
        UC, K = saved
        return torch.addmm(UC, K, U, beta=forgetting / M, alpha=4 * (1 - forgetting) / M**2).mul_(g), None
    (S,) = saved
    return U @ (C + C.mT).mul_(forgetting).add_(S, alpha=4 * (1 - forgetting)).mul_(g / M), None


@closed_form(_penalty, _penalty_gradient)
def penalty(U: Float[Tensor, "M D"], C: Float[Tensor, "D D"], *, forgetting: float) -> Float[Tensor, ""]:
    """Return the mean of uᵀC′u, with C′ = forgetting · C + (1 − forgetting) · mean u uᵀ; C gets no gradient.

    The mean of uᵀAu is tr(A UᵀU)/M, so the value costs one product, UᵀU, and the gradient another; autograd makes five.
    For 2 M < D the value uses UUᵀ, which is smaller.

    >>> penalty(torch.eye(2), torch.eye(2), forgetting=0.5)
    tensor(0.7500)
    """
    C = forgetting * C.detach() + (1 - forgetting) * U.mT @ U / len(U)
    return (U @ C * U).sum(-1).mean()


@stateful(ObjectiveState({"C": ("D D", torch.zeros)}, tico_covariance))
@checks_shapes
def tico(
    Z: Float[Tensor, "V N D"],
    T: Float[Tensor, "V_T N D"],
    C: Float[Tensor, "D D"],
    *,
    covariance: float = 8.0,
    forgetting: float = 0.9,
) -> Terms:
    """Return the terms of TiCo, for any number of views. With z and t the L2-normalised rows of Z and T, and C′ the
    running second moment of z after this batch (`tico_covariance`),

        ℒ = mean_{v≠w} mean_i (1 − z_vi·sg t_wi) + covariance · mean_{v,i} z_viᵀ C′ z_vi

    with sg the stop-gradient; in C′, the gradient flows only through the part of this batch. With `forgetting=0`, the
    second term is covariance · ‖mean z zᵀ‖_F², which is FroSSL's without logarithm, on L2-normalised rows without
    centring. The cost is V·N·D², and the memory D², because the state C is a matrix (D, D).

    Args:
        Z: embeddings of V ≥ 2 views of N samples.
        T: the teacher's embeddings of the first V_T of these views; T gets no gradient.
        C: the running second moment before this batch; it starts at zero.
        covariance: weight of the second term, the paper's ρ.
        forgetting: weight of the past in the running second moment, the paper's β.

    Returns:
        The terms "invariance" and "covariance".

    Source: Zhu et al. 2022, TiCo: Transformation Invariance and Covariance Contrast for Self-Supervised Visual
    Representation Learning; the mean over ordered pairs of views.

    If views agree, spread evenly over D dimensions, and there is no past, the loss is covariance/D:

    >>> Z = torch.eye(4).expand(2, 4, 4)
    >>> tico(Z, Z, torch.zeros(4, 4), forgetting=0.0)
    {'invariance': tensor(0.), 'covariance': tensor(2.)}
    """
    return {
        "invariance": 1 - pair_cosines(Z, T.detach()).mean(),
        "covariance": covariance * penalty(unit_rows(Z).flatten(0, 1), C.detach(), forgetting=forgetting),
    }
