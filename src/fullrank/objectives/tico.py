"""TiCo: agreement of the views, and a penalty on directions in which a running covariance is large."""

import torch
from jaxtyping import Float
from torch import Tensor

from fullrank.objectives.algebra import pair_cosines, products, unit
from fullrank.objectives.signature import ObjectiveState, checks_shapes, stateful
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
    U = unit(Z, dim=-1)
    return forgetting * C + (1 - forgetting) * products(U, U).sum(0) / (Z.shape[0] * Z.shape[1])


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
    C = C.detach()
    second_moment = tico_covariance(Z, C, forgetting=0.0)
    C = forgetting * C + (1 - forgetting) * second_moment
    return {
        "invariance": 1 - pair_cosines(Z, T.detach()).mean(),
        "covariance": covariance * (C * second_moment).sum(),  # the mean of zᵀC′z = tr(C′ zzᵀ)
    }
