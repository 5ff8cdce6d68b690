"""I-VNE+: align the directions of the views of a sample, and maximise the von Neumann entropy of all directions."""

import torch
from jaxtyping import Float
from torch import Tensor

from fullrank.objectives.algebra import gram, unit, view_pairs
from fullrank.objectives.signature import checks_shapes
from fullrank.objectives.terms import Terms


@checks_shapes
def ivne(Z: Float[Tensor, "V N D"], *, alignment: float = 4.16, entropy: float = 1.0, full: int = 2) -> Terms:
    """Return the terms of I-VNE+, with multi-crop. With z the L2-normalised rows of each view, and λ_v the eigenvalues
    of its second moment Z_vᵀZ_v/N, which sum to 1,

        ℒ = − alignment · mean_{v ≤ full, v < w} mean_i cos(z_vi, z_wi) − entropy · mean_v S(λ_v)
        S(λ) = − Σ_j λ_j log λ_j

    A joint rotation and the length of rows do not change the loss. A direction of zero variance has no gradient. The
    eigenvalues are computed from the smaller of ZᵀZ and ZZᵀ, so the cost is N·D·min(N, D) + min(N, D)³; the
    decomposition needs the whole matrix.

    Args:
        Z: embeddings of V ≥ 2 views of N samples; full-size views come first.
        alignment: weight of the cosines between the views; the authors take log N.
        entropy: weight of the von Neumann entropies, in nats.
        full: number of full-size views; two smaller views are not compared.

    Returns:
        The terms "alignment" and "entropy".

    Source: Kim et al. 2023, VNE: An Effective Method for Improving Deep Representation by Manipulating Eigenvalue
    Distribution, with the pairs of views of the authors' code.

    Two equal views, spread evenly over D dimensions, are the optimum, − alignment − entropy · log D:

    >>> ivne(torch.eye(4).expand(2, 4, 4))
    {'alignment': tensor(-4.1600), 'entropy': tensor(-1.3863)}
    """
    Z = unit(Z, dim=-1)
    C = gram(Z) / Z.shape[1]  # (V, D, D) or (V, N, N)
    cosines = [torch.linalg.vecdot(Z[v], Z[w]) for v, w in view_pairs(full, len(Z)) if v < w]
    return {"alignment": -alignment * torch.stack(cosines).mean(), "entropy": -entropy * von_neumann_entropy(C).mean()}


def von_neumann_entropy(C: Float[Tensor, "*V D D"]) -> Float[Tensor, "*V"]:
    """Return − tr(C log C) of positive semidefinite matrices of trace 1, in nats.

    >>> von_neumann_entropy(torch.eye(2) / 2), torch.tensor(2.0).log()
    (tensor(0.6931), tensor(0.6931))
    """
    eigenvalues = torch.linalg.eigvalsh(C.nan_to_num())  # eigvalsh raises at NaN, which the alignment term keeps
    # An eigenvalue below rounding counts as 0. It is set to 1, since 1 log 1 = 0 = 0 log 0, but the gradient − 1 − log
    # λ is infinite at 0.
    return torch.special.entr(eigenvalues.masked_fill(eigenvalues <= torch.finfo(C.dtype).eps, 1)).sum(-1)
