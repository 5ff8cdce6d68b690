"""VISReg: align the views of a sample, keep the standard deviation of each feature at 1, and make the standardised
embeddings a standard normal distribution by sorted projections.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from fullrank.objectives.algebra import centered, random_directions
from fullrank.objectives.signature import checks_shapes
from fullrank.objectives.terms import Terms

# Added to the standard deviations that the shape term divides by, as in lightly; the authors' code clips at 1e-6.
EPSILON = 1e-4


@checks_shapes
def visreg(
    Z: Float[Tensor, "V N D"],
    *,
    trade_off: float = 0.9,
    shape: float = 1.0,
    slices: int = 4096,
    full: int | None = None,
    generator: torch.Generator | None = None,
) -> Terms:
    """Return the terms of VISReg, for any number of views. With μ_v and σ_v the mean and the standard deviation
    (divided by N) of the features of view v, random unit directions a_k, and q_i the quantiles i/(N + 1) of a standard
    normal distribution,

        ℒ = (1 − trade_off) · mean_{v,i,d} (z_vid − mean_{w ≤ full} z_wid)²
          + trade_off · ( mean_{v,d} μ_vd² + mean_{v,d} (1 − σ_vd)²
                          + shape · mean_{v,k,i} (sort_i((z_vi − μ_v)/(sg σ_v + 10⁻⁴) · a_k) − q_i)² )

    The stop-gradient sg leaves the scale to the second term, whose gradient stays at a collapse. The cost is
    V·N·slices·(D + log N), and the memory V·N·slices.

    Args:
        Z: embeddings of V ≥ 2 views of N samples.
        trade_off: weight of all terms but the first, the paper's λ; 0.9 is its value for ImageNet, and 0.6 that for
            small data sets.
        shape: weight of the last term, larger for images of long-tailed classes.
        slices: number of directions.
        full: number of full-size views, which come first; None: all.
        generator: of the directions; None: torch's.

    Returns:
        The terms "invariance", "center", "scale" and "shape".

    Source: Wu et al. 2026, VISReg: Variance-Invariance-Sketching Regularization for JEPA Training, eq. 1 to 8.

    >>> Z = torch.zeros(2, 4, 3)
    >>> {name: round(term.item(), 4) for name, term in visreg(Z, trade_off=1.0).items()}
    {'invariance': 0.0, 'center': 0.0, 'scale': 1.0, 'shape': 0.3863}
    """
    _, N, D = Z.shape
    A = centered(Z)
    std = torch.linalg.vector_norm(A, dim=1, keepdim=True) / math.sqrt(N)
    X = (A / (std.detach() + EPSILON)) @ random_directions(D, slices, generator).to(Z)
    quantiles = torch.special.ndtri(torch.arange(1, N + 1, dtype=torch.float64, device=Z.device) / (N + 1)).to(Z)
    return {
        "invariance": (1 - trade_off) * (Z - Z[:full].mean(0)).square().mean(),
        "center": trade_off * Z.mean(1).square().mean(),
        "scale": trade_off * (1 - std).square().mean(),
        "shape": trade_off * shape * (X.sort(1).values - quantiles[:, None]).square().mean(),
    }
