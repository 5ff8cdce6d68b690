"""Two-layer networks u = W2ᵀφ(W1x) with orthonormal weights, compared with linear ones, u = W2ᵀW1x, as the width grows.

Shapes: d inputs, h ≥ 2 hidden units, z ≤ h outputs; W1 (h, d), W2 (h, z), both with orthonormal columns, which are
*not* scaled with the width. In arguments, `norm` is |x|, `activation` a name in `ACTIVATIONS`, and `curvature` is c,
the largest |φ″| (tanh: 4/√27). The input of a unit is then of size |x|h^{−½}: as the width grows, only φ's value and
slope at 0 matter. The outputs of the linear network vanish too, √(E|u|²) = |x|√(z/h) at a random start, so read a
difference relative to that.
Source of all: Esser et al. 2023, Representation Learning Dynamics of Self-Supervised Models.
"""

import math
from collections.abc import Callable
from functools import cache

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import softplus

from fullrank.errors import pick

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "linear": lambda a: a,
    "tanh": torch.tanh,
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
    "shifted_sigmoid": lambda a: 4 * torch.sigmoid(a) - 2,
    "shifted_softplus": lambda a: 2 * softplus(a) - 2 * math.log(2),
}
"""φ by name. Tanh, shifted sigmoid and shifted softplus have φ(0) = 0 and φ′(0) = 1, as Theorem 1 requires."""


def outputs(
    W1: Float[Tensor, "*S h d"], W2: Float[Tensor, "*S h z"], X: Float[Tensor, "*n d"], *, activation: str = "linear"
) -> Float[Tensor, "... z"]:
    """Return the outputs u(x) = W2ᵀφ(W1x) of each row x. Many networks at once broadcast as in a matrix product.

    Raises:
        UserError: an unknown activation.

    Source: Sec. "SSL with (Orthogonality) Constraints".

    >>> outputs(torch.eye(2), torch.eye(2), torch.tensor([[1.0, -2.0]]), activation="relu")
    tensor([[1., 0.]])
    """
    return pick(activation, ACTIVATIONS, "activation")(X @ W1.mT) @ W2


def initial_difference(activation: str, *, norm: float, hidden: int, outputs: int) -> float:
    """Return √(E|u^φ(x) − u^I(x)|²) = √(z E(φ(g) − g)²) over random orthonormal weights, exactly.

    g is a coordinate of a random vector of length |x| in ℝʰ, since W1x is uniform on that sphere and W2 is independent
    of it. The result depends neither on d nor on the direction of x. As the width grows,

        φ(0) ≠ 0                 √z |φ(0)|                      and the outputs do not vanish
        φ(0) = 0, φ″(0) ≠ 0      √(3z)/2 |φ″(0)| |x|² h^{−1}
        φ(0) = 0, φ″(0) = 0      √(15z)/6 |φ‴(0)| |x|³ h^{−3/2}     (tanh: φ‴(0) = −2)
        ReLU                     √(z/2) |x| h^{−½}              1/√2 of the linear outputs' size, at every width

    and the last three have φ′(0) = 1 (ReLU: on one side).

    Raises:
        UserError: an unknown activation.

    Source: not in the paper; Theorem 1 bounds it by a larger rate, `theorem1_bound`.

    >>> round(initial_difference("relu", norm=1.0, hidden=100, outputs=1) / math.sqrt(1 / 100), 4)
    0.7071
    """
    phi = pick(activation, ACTIVATIONS, "activation")
    return math.sqrt(outputs * _mean_over_sphere(lambda g: (phi(g) - g).square(), norm, hidden))


def aligned_gain(activation: str, *, norm: float, hidden: int) -> float:
    """Return the factor c in E u^φ(x) = c u^I(x) for layers that training has aligned, W2 = W1A, over random W1: c = h
    E[g φ(g)]/|x|².

    1 − c is the part of the difference that remains when h^{−½} no longer makes the outputs small:

        tanh     |x|²/(h + 2) to leading order: after training the rate is h^{−1}, no longer h^{−3/2}
        ReLU     ½, at every width: never near the linear network
        sigmoid  ¾ as h → ∞, in addition to the constant W2ᵀφ(0)1

    Raises:
        UserError: an unknown activation.

    Source: not in the paper.

    >>> round(aligned_gain("relu", norm=1.0, hidden=100), 9)
    0.5
    """
    phi = pick(activation, ACTIVATIONS, "activation")
    return hidden * _mean_over_sphere(lambda g: g * phi(g), norm, hidden) / norm**2


def curvature_bound(*, norm: float, hidden: int, outputs: int, curvature: float) -> float:
    """Return the bound √(E|u^φ − u^I|²) ≤ c/2 |x|² √(3z/(h(h+2))), for φ(0) = 0, φ′(0) = 1 and |φ″| ≤ c.

    It follows from |φ(g) − g| ≤ cg²/2 and E g⁴ = 3|x|⁴/(h(h+2)). Divided by the linear outputs' size |x|√(z/h) it still
    vanishes, as h^{−½}. Theorem 1 claims this, but does not prove it.

    Source: not in the paper.

    >>> curvature_bound(norm=1.0, hidden=1, outputs=1, curvature=2.0)
    1.0
    """
    return curvature / 2 * norm**2 * math.sqrt(3 * outputs / (hidden * (hidden + 2)))


def theorem1_bound(*, norm: float, inputs: int, hidden: int, curvature: float, constant: float = 1.0) -> float:
    """Return Theorem 1's bound on |u^φ − u^I|, K c |x|² d log²h / √h, with high probability.

    K is a universal constant that the paper does not give. The bound is true but not sufficient: divided by the size
    |x|√(z/h) of the outputs it *grows*, as log²h. Compare `curvature_bound`.

    Source: Theorem 1.

    >>> [theorem1_bound(norm=1.0, inputs=2, hidden=h, curvature=1.0) > math.sqrt(1 / h) for h in (10, 1000)]
    [True, True]
    """
    return constant * curvature * norm**2 * inputs * math.log(hidden) ** 2 / math.sqrt(hidden)


gauss_legendre = cache(np.polynomial.legendre.leggauss)


def _mean_over_sphere(f: Callable[[Tensor], Tensor], norm: float, hidden: int) -> float:
    """Return E f(g) of one coordinate g = |x| sin ψ of a random vector of length |x| in ℝʰ; ψ has a density ∝ cosʰ⁻²ψ.

    Gauss-Legendre quadrature on each side of 0, where ReLU has its kink; beyond 12/√h there is less than 1e-25 of the
    mass.
    """
    nodes, weights = gauss_legendre(100)
    half = min(math.pi / 2, 12 / math.sqrt(hidden)) / 2 * torch.from_numpy(nodes + 1)
    angles = torch.cat([-half, half])
    density = torch.from_numpy(weights).repeat(2) * angles.cos() ** (hidden - 2)
    return ((density * f(norm * angles.sin())).sum() / density.sum()).item()
