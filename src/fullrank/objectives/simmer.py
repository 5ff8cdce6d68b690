"""SimMER: align the views of a sample, and maximise the distance of each sample to its nearest neighbour."""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.linalg import vecdot

from fullrank.objectives.rows import unit_rows
from fullrank.objectives.shapes import checks_shapes
from fullrank.objectives.similarities import blocks
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
    up to constants. The cost is V·N²·D for the nearest neighbours, whose distances exist in blocks, and V·N·D for the
    gradient; the memory is a few times V·N·D.

    Args:
        Z: embeddings of V ≥ 2 views of N ≥ 2 samples.
        invariance: weight of the distance between views.
        entropy: weight of the distance to the nearest neighbour.

    Returns:
        The terms "invariance" and "entropy".

    Source: after the description in Skean et al. 2024, FroSSL, Section 4, of Yang et al. 2022, SimMER: Simple
    Maximization of Entropy and Rank for Self-supervised Representation Learning; details of the original may differ.

    Two opposite samples have the largest distance of L2-normalised rows, 2:

    >>> simmer(torch.tensor([[1.0, 0.0], [-1.0, 0.0]]).expand(2, 2, 2))  # − log 2
    {'invariance': tensor(0.), 'entropy': tensor(-0.6931)}
    """
    V, N, D = Z.shape
    Z = unit_rows(Z)
    nearest = torch.stack([nearest_rows(z.detach()) for z in Z])  # (V, N)
    neighbours = Z.gather(1, nearest[..., None].expand(V, N, D))
    distance2 = (Z - neighbours).square().sum(-1).clamp_min(EPSILON**2)
    return {
        "invariance": invariance
        * 2
        * (Z - Z.mean(0)).square().sum()
        / (N * (V - 1)),  # Σ_{v<w} ‖z_v − z_w‖² = V Σ_v ‖z_v − mean‖²
        "entropy": -entropy * distance2.log().mean() / 2,
    }


def nearest_rows(U: Float[Tensor, "N D"]) -> Int[Tensor, " N"]:
    """Return the index of the nearest other row of each row. The distances exist in blocks of rows, not as one matrix
    (N, N).

    >>> nearest_rows(torch.tensor([[0.0], [1.0], [3.0]]))
    tensor([1, 0, 1])
    """
    squares = vecdot(U, U)
    indices = []
    for rows in blocks(U):
        distances = (U[rows] @ U.mT).mul_(-2).add_(squares)  # without ‖row‖², which is the same for all candidates
        distances.diagonal(rows.start).fill_(torch.inf)
        indices.append(distances.argmin(-1))
    return torch.cat(indices)
