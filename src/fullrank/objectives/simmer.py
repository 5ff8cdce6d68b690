"""SimMER: align the views of a sample, and maximise the distance of each sample to its nearest neighbour."""

import torch
from jaxtyping import Float
from torch import Tensor

from fullrank.objectives.algebra import squared_distances, unit
from fullrank.objectives.signature import checks_shapes
from fullrank.objectives.terms import Terms

# The smallest distance with a gradient is a hundred times the rounding error of a unit-length row in float32. Between
# two equal rows, the direction of the distance is noise, and the gradient of the logarithm would multiply this noise by
# 1/distance.
EPSILON = 1e-5


@checks_shapes
def simmer(Z: Float[Tensor, "V N D"], *, invariance: float = 1.0, entropy: float = 1.0) -> Terms:
    """Return the terms of SimMER, for any number of views. With z the L2-normalised rows of each view,

        ℒ = invariance · mean_{v<w} mean_i ‖z_vi − z_wi‖² − entropy · mean_v mean_i log max(‖z_vi − z_v,nn(i)‖, 10⁻⁵)

    where nn(i) is the nearest other sample of the same view, selected without gradient. The mean logarithm is the
    nearest-neighbour estimate of the differential entropy (Kozachenko and Leonenko 1987), divided by the dimension and
    up to constants. The cost is V·N²·D, and the memory V·N², for the nearest neighbours.

    Args:
        Z: embeddings of V ≥ 2 views of N ≥ 2 samples.
        invariance: weight of the distance between views.
        entropy: weight of the distance to the nearest neighbour.

    Returns:
        The terms "invariance" and "entropy".

    Source: after the description in Skean et al. 2023, FroSSL, Section 4, of Yang et al. 2022, SimMER: Simple
    Maximization of Entropy and Rank for Self-supervised Representation Learning; details of the original may differ.

    Two opposite samples have the largest distance of L2-normalised rows, 2:

    >>> simmer(torch.tensor([[1.0, 0.0], [-1.0, 0.0]]).expand(2, 2, 2))  # − log 2
    {'invariance': tensor(0.), 'entropy': tensor(-0.6931)}
    """
    V, N, D = Z.shape
    Z = unit(Z, dim=-1)
    itself = torch.eye(N, dtype=torch.bool, device=Z.device)
    nearest = squared_distances(Z.detach()).masked_fill(itself, torch.inf).argmin(-1)  # (V, N)
    neighbours = Z.gather(1, nearest[..., None].expand(V, N, D))
    distance2 = (Z - neighbours).square().sum(-1).clamp_min(EPSILON**2)
    spread = 2 * (Z - Z.mean(0)).square().sum() / (N * (V - 1))  # Σ_{v<w} ‖z_v − z_w‖² = V Σ_v ‖z_v − mean‖²
    return {"invariance": invariance * spread, "entropy": -entropy * distance2.log().mean() / 2}
