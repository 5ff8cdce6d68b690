"""MMCR: maximise the nuclear norm of the mean embeddings of the samples."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from fullrank.objectives.algebra import unit
from fullrank.objectives.signature import checks_shapes
from fullrank.objectives.terms import Terms


@checks_shapes
def mmcr(Z: Float[Tensor, "V N D"], *, nuclear_norm: float = 1.0) -> Terms:
    """Return the term of MMCR, for any number of views. With c_i the mean over the views of the L2-normalised rows of
    sample i, and C the matrix (N, D) of these centroids,

        ℒ = − nuclear_norm · ‖C‖_* / √(N · min(N, D))

    The nuclear norm ‖C‖_*, the sum of the singular values, is at most √(N · min(N, D)), so the fraction is at most 1.
    At the bound the views of a sample agree, and the centroids are spread evenly over min(N, D) dimensions. The authors
    do not divide; the division keeps the size of the gradient for other N and D. The cost is N·D·min(N, D).

    Args:
        Z: embeddings of V ≥ 2 views of N samples.
        nuclear_norm: weight of the term; √(N · min(N, D)) gives the authors' loss.

    Returns:
        The term "nuclear_norm".

    Source: Yerxa et al. 2023, Learning Efficient Coding of Natural Images with Maximum Manifold Capacity
    Representations, eq. 4 with λ = 0; the bound is that of Schaeffer et al. 2024, Towards an Improved Understanding and
    Utilization of Maximum Manifold Capacity Representations.

    >>> mmcr(torch.eye(4).expand(2, 4, 4))
    {'nuclear_norm': tensor(-1.)}
    """
    _, N, D = Z.shape
    C = unit(Z, dim=-1).mean(0)
    norm = torch.linalg.svdvals(C.nan_to_num()).sum() + 0 * C.sum()  # svdvals raises at NaN, which the sum keeps
    return {"nuclear_norm": -nuclear_norm * norm / math.sqrt(N * min(N, D))}
