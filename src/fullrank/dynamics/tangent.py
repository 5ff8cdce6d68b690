"""The tangent kernel of a two-layer network u = W2ᵀφ(W1x), through which the outputs at one point move those at another in training.

Under the flow Θ′ = −∇ℒ of any loss of the outputs, u_l(x)′ = − Σ_j Σ_i K_lj(x, x_i) ∂ℒ/∂u_j(x_i); time is learning rate × step, in the
loss's own scale.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from fullrank.dynamics.flow import gradient
from fullrank.dynamics.nonlinear import ACTIVATIONS
from fullrank.errors import pick


def tangent_kernel(
    W1: Float[Tensor, "h d"], W2: Float[Tensor, "h z"], X: Float[Tensor, "n d"], Y: Float[Tensor, "m d"], *, activation: str = "linear"
) -> Float[Tensor, "z z n m"]:
    """K_lj(x, y) = ⟨∇u_l(x), ∇u_j(y)⟩ = Σ_k W2_kl W2_kj φ′(w_kᵀx) φ′(w_kᵀy) xᵀy + δ_lj φ(W1x)ᵀφ(W1y), w_k the rows of W1.

    The first part is that of W1. For φ linear it is (W2ᵀW2)_lj xᵀy, which vanishes across outputs because columns of W2 are orthogonal,
    not because W1 stands still. With orthonormal weights both parts are equal, and K_lj = 2δ_lj xᵀy at every width.

    Args:
        W1: first layer.
        W2: second layer.
        X: n points.
        Y: m points.
        activation: a name in `ACTIVATIONS`.

    Raises:
        UserError: an unknown activation.

    Source: Esser et al. 2023, Lemma 1 and its proof (corrected: the part of W1 is there, hence the 2 of eq. 9).

    >>> one = torch.ones(1, 1)
    >>> tangent_kernel(torch.eye(2)[:, :1], torch.eye(2), one, 3 * one)[..., 0, 0]
    tensor([[6., 0.],
            [0., 6.]])
    """
    phi = pick(activation, ACTIVATIONS, "activation")
    A, B = X @ W1.mT, Y @ W1.mT  # what enters the units
    A_slope, B_slope = gradient(lambda units: phi(units[0]).sum() + phi(units[1]).sum(), (A, B))  # φ′
    first = torch.einsum("kl,kj,nk,mk->ljnm", W2, W2, A_slope, B_slope) * (X @ Y.mT)
    return first + torch.eye(W2.shape[1], dtype=W2.dtype, device=W2.device)[:, :, None, None] * (phi(A) @ phi(B).mT)
