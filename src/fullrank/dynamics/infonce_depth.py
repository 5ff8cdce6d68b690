"""Balanced linear layers of any depth: W_{l+1}ᵀW_{l+1} = W_lW_lᵀ all along, so that they are aligned and each mode moves by itself.

Time is learning rate × step of gradient descent on the loss of `infonce`, a sum over the samples.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from fullrank.dynamics.infonce_modes import svd
from fullrank.errors import UserError


def balanced_layers(W: Float[Tensor, "D m"], depth: int) -> list[Tensor]:
    """L layers whose product is W = USVᵀ and whose `imbalances` are zero: W₁ = S^{1/L}Vᵀ, W_l = S^{1/L}, W_L = US^{1/L}.

    As the imbalances are conserved, the layers stay aligned for good: this is the start from which the papers' alignment is exact.

    Args:
        W: the product.
        depth: L.

    Returns:
        W₁, …, W_L; the hidden layers are as wide as W has singular values.

    Raises:
        UserError: a depth below 1.

    Source: Arora et al. 2018, On the Optimization of Deep Networks: Implicit Acceleration by Overparameterization, Procedure 1.

    >>> balanced_layers(torch.tensor([[9.0]]), 2)
    [tensor([[3.]]), tensor([[3.]])]
    """
    if depth < 1:
        raise UserError(f"a depth of {depth} has no layers; give 1 or more")
    if depth == 1:
        return [W]
    U, S, V = svd(W)
    root = S ** (1 / depth)
    return [root[:, None] * V.mT, *(torch.diag(root) for _ in range(depth - 2)), U * root]


def balanced_singular_values(
    s: Float[Tensor, " k"], a: Float[Tensor, " k"], t: Float[Tensor, "*T"], *, depth: int
) -> Float[Tensor, "*T k"]:
    """Singular values of the product of L balanced layers, whose layers each move by σ̇ = aσ^{2L−1} and their product s = σ^L by

        ṡ = L a s^{3−2/L},    s(t) = s(0)/(1 − (2L − 2) a s(0)^{2−2/L} t)^{L/(2L−2)},    or s(0)e^{at} for L = 1

    In one layer, modes of equal a grow at the same rate ṡ/s. In deeper networks ṡ/s rises with s, so that large modes leave others behind.

    Args:
        s: singular values of W_L…W₁ at t = 0.
        a: vᵀXv of each mode, its right singular vector v an eigenvector of a fixed X.
        t: times, learning rate × step.
        depth: L.

    Returns:
        s(t), infinite from t* = s(0)^{2/L−2}/((2L − 2)a) on where a > 0 and L > 1.

    Raises:
        UserError: a depth below 1.

    Source: eq. 10-11 of Jing et al. 2022 for any depth; not in the paper, which has L = 2 and states C's sign wrongly.

    >>> balanced_singular_values(torch.tensor([1.0, 0.5]), torch.ones(2), torch.tensor(0.375), depth=2)
    tensor([4.0000, 0.8000])
    """
    if depth < 1:
        raise UserError(f"a depth of {depth} has no layers; give 1 or more")
    growth = a * t[..., None]
    if depth == 1:
        return s * growth.exp()
    rest = 1 - (2 * depth - 2) * growth * s ** (2 - 2 / depth)  # of the way to infinity
    return s * rest.clamp(min=0) ** (-depth / (2 * depth - 2))
