"""LeJEPA: align the views of a sample, and make the embeddings a standard normal distribution (SIGReg)."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from fullrank.objectives.algebra import random_directions
from fullrank.objectives.signature import checks_shapes
from fullrank.objectives.terms import Terms

# Frequencies of the characteristic function, from 0 to `LIMIT`.
KNOTS, LIMIT = 17, 3.0


@checks_shapes
def lejepa(
    Z: Float[Tensor, "V N D"],
    *,
    trade_off: float = 0.05,
    slices: int = 1024,
    flatten: bool = False,
    generator: torch.Generator | None = None,
) -> Terms:
    """Return the terms of LeJEPA, for any number of views. With random unit directions a_k and the empirical
    characteristic function φ_vk(t) = mean_i exp(i t z_vi·a_k),

        ℒ = (1 − trade_off) · mean_{v,i,d} (z_vid − mean_w z_wid)²
          + trade_off · mean_{v,k} N ∫_{−3}^{3} |φ_vk(t) − exp(−t²/2)|² exp(−t²/2) dt

    The integral, the statistic of Epps and Pulley (1983), is computed by the trapezoidal rule on 17 points of its
    symmetric half. The embeddings are not normalised. The cost is V·N·slices·(D + 17), and the memory V·N·slices·17.

    The other form in use, invariance + λ · statistic, is (1 + λ) times this loss with trade_off = λ/(1 + λ).

    Args:
        Z: embeddings of V ≥ 2 views of N samples.
        trade_off: weight of the second term, the paper's λ.
        slices: number of directions.
        flatten: take the samples of all views as one set of V·N samples, which replaces N in the second term; its
            gradient then has V times the weight.
        generator: of the directions; None: torch's.

    Returns:
        The terms "invariance" and "normality".

    Source: Balestriero and LeCun 2025, LeJEPA: Provable and Scalable Self-Supervised Learning Without the Heuristics,
    eq. of Section 5.1 and the authors' code, which computes each view by itself. Other code flattens
    (stable-pretraining, issue 413).

    >>> Z = torch.zeros(2, 4, 3)  # the squared distance of the characteristic functions 1 and exp(−t²/2)
    >>> {name: round(term.item(), 4) for name, term in lejepa(Z, trade_off=1.0).items()}
    {'invariance': 0.0, 'normality': 1.6082}
    """
    A = random_directions(Z.shape[-1], slices, generator).to(Z)
    X = (Z.flatten(0, 1)[None] if flatten else Z) @ A  # (V, N, slices)
    errors = []
    for t in (LIMIT * k / (KNOTS - 1) for k in range(KNOTS)):
        target, angle = math.exp(-(t**2) / 2), t * X
        errors.append(((angle.cos().mean(1) - target).square() + angle.sin().mean(1).square()) * target)
    statistic = 2 * X.shape[1] * torch.trapezoid(torch.stack(errors), dx=LIMIT / (KNOTS - 1), dim=0)
    invariance = (Z - Z.mean(0)).square().mean()
    return {"invariance": (1 - trade_off) * invariance, "normality": trade_off * statistic.mean()}
