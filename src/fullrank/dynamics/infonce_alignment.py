"""Alignment of the singular vectors of two neighbouring layers: how it moves, its bounds, and blocks of equal singular values.

Source of all: Jing et al. 2022, Understanding Dimensional Collapse in Contrastive Self-supervised Learning.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor

from fullrank.dynamics.infonce_modes import Svd, svd_velocity
from fullrank.errors import UserError


def layer_alignment(first: Svd, second: Svd) -> Float[Tensor, "k2 k1"]:
    """A = V₂ᵀU₁: how the right singular vectors of W₂ stand to the left ones of W₁.

    Signs are free, so read |A|. It becomes the identity on the modes that outgrow W₁W₁ᵀ − W₂ᵀW₂ (`alignment_floor`), on all of them only
    from a balanced start (`balanced_layers`); equal singular values leave blocks (`subspace_cosines`).

    Args:
        first: `svd` of W₁.
        second: `svd` of W₂.

    Returns:
        A, from −1 to 1.

    Source: Sec. 5, Theorem 2, its conclusion corrected (relative to the largest singular values only).

    >>> from fullrank.dynamics.infonce_modes import svd
    >>> W = torch.diag(torch.tensor([2.0, 1.0]))
    >>> alignment(svd(W), svd(W)).abs()
    tensor([[1., 0.],
            [0., 1.]])
    """
    return second.V.mT @ first.U


def alignment_velocity(first: Svd, second: Svd, flow: Sequence[Float[Tensor, "_ _"]]) -> Float[Tensor, "k2 k1"]:
    """Ȧ = V̇₂ᵀU₁ + V₂ᵀU̇₁. Under InfoNCE, where V₂ and U₁ are square, this is the paper's

        Ȧ = −A(H₁ ⊙ (AᵀF + FᵀA)) + (H₂ ⊙ (AFᵀ + FAᵀ))A,    F = S₂U₂ᵀGV₁S₁,    G = −W₂W₁X

    Args:
        first: `svd` of W₁.
        second: `svd` of W₂.
        flow: Ẇ₁ and Ẇ₂, by `linear_flow` or `layers_flow`.

    Returns:
        Ȧ.

    Raises:
        UserError: two singular values of one layer coincide.

    Source: Lemma 6, eq. 19, corrected: H₁ and H₂ are printed with the opposite sign.

    >>> from fullrank.dynamics.infonce_modes import svd
    >>> W = torch.diag(torch.tensor([2.0, 1.0]))
    >>> alignment_velocity(svd(W), svd(W), [W, W]).norm()
    tensor(0.)
    """
    first_dot, second_dot = (svd_velocity(factors, W_dot) for factors, W_dot in zip((first, second), flow, strict=True))
    return second_dot.V.mT @ first.U + second.V.mT @ first_dot.U


def alignment_upper_bound(s1: Float[Tensor, " k1"], s2: Float[Tensor, " k2"], D: Float[Tensor, "h h"]) -> Float[Tensor, "k2 k1"]:
    """Upper bounds of the entries of |A|, ‖D‖₂/|σ₁ₖ² − σ₂ⱼ²| or 1, where D = W₁W₁ᵀ − W₂ᵀW₂ is conserved.

    It follows from the identity (σ₁ₖ² − σ₂ⱼ²) A_jk = v₂ⱼᵀDu₁ₖ: the further apart two singular values, the closer
    to orthogonal their vectors. For D = 0 vectors of different singular values are orthogonal; equal ones are not bounded.

    Args:
        s1: singular values of W₁, k in A_jk.
        s2: singular values of W₂, j in A_jk.
        D: the imbalance of the two layers, at any time (`imbalances`).

    Returns:
        The bounds, from 0 to 1.

    Source: in place of Theorem 2, whose W₁W₁ᵀ = W₂ᵀW₂ holds relative to the largest singular values only.

    >>> alignment_bound(torch.tensor([2.0, 1.0]), torch.tensor([2.0, 0.0]), torch.eye(2))
    tensor([[1.0000, 0.3333],
            [0.2500, 1.0000]])
    """
    gaps = (s1.square() - s2.square()[:, None]).abs()
    imbalance = torch.linalg.matrix_norm(D, 2)
    return torch.where(gaps > imbalance, imbalance / gaps, 1)


def alignment_lower_bound(s1: Float[Tensor, " k"], s2: Float[Tensor, " k"], D: Float[Tensor, "k k"]) -> Float[Tensor, " k"]:
    """Lower bounds of |A_kk|, √(1 − ‖D‖₂²/min_{j≠k}(σ₁ₖ² − σ₂ⱼ²)²) or 0: a mode that outgrows the imbalance has to align.

    The identity of `alignment_bound`, summed over the j of a column, whose squares add up to one where the hidden layer is no wider than
    either matrix has singular values. It is Davis and Kahan's sin θ theorem for the two matrices W₁W₁ᵀ and W₂ᵀW₂.

    Args:
        s1: singular values of W₁, as many as the layer has units.
        s2: singular values of W₂.
        D: the imbalance of the two layers, at any time (`imbalances`).

    Returns:
        The floors, from 0 (nothing known) to 1 (D = 0 and no other singular value as large).

    Source: in place of Theorem 2; Davis and Kahan 1970, The Rotation of Eigenvectors by a Perturbation III.

    >>> alignment_floor(torch.tensor([3.0, 1.0]), torch.tensor([3.0, 1.0]), 4 * torch.eye(2))
    tensor([0.8660, 0.8660])
    """
    itself = torch.eye(len(s1), dtype=torch.bool, device=s1.device)
    gaps = (s1.square() - s2.square()[:, None]).abs().masked_fill(itself, torch.inf).amin(0)
    sine = (torch.linalg.matrix_norm(D, 2) / gaps).nan_to_num(1).clamp(max=1)  # 0/0: a second mode of the same singular value
    return (1 - sine.square()).sqrt()


def degenerate_groups(S: Float[Tensor, " k"], *, ratio: float) -> list[int]:
    """The sizes of the groups of nearly equal singular values: a new one begins where σ_k exceeds σ_{k+1} by more than `ratio`.

    Args:
        S: singular values in descending order.
        ratio: of neighbours, above 1.

    Returns:
        Sizes that add up to k.

    Raises:
        UserError: the ratio is not above 1.

    Source: Section 5, after Theorem 2.

    >>> degenerate_groups(torch.tensor([1.0, 1.0, 0.5, 0.0]), ratio=1.1)
    [2, 1, 1]
    """
    if not ratio > 1:
        raise UserError(f"ratio is {ratio}, but a group ends where neighbours differ by a factor above 1; give one, such as 1.1")
    ends = (S[:-1] > ratio * S[1:]).nonzero()[:, 0] + 1
    return [end - start for start, end in pairwise([0, *ends.tolist(), len(S)])]


def subspace_cosines(A: Float[Tensor, "k k"], sizes: Sequence[int]) -> list[Tensor]:
    """Alignment group by group: the singular values of A's diagonal blocks, cosines of the principal angles between what the right singular
    vectors of W₂ and the left ones of W₁ span together.

    Inside a group of equal singular values the vectors are not unique, and |A| is no identity, however well the layers are aligned; these
    cosines do not depend on the choice of the vectors. Groups of one are |A_kk|.

    Args:
        A: `alignment` of two layers.
        sizes: of the groups, in order of descending singular values (`degenerate_groups`).

    Returns:
        For each group its cosines in descending order, all 1 where the subspaces coincide.

    Raises:
        UserError: the sizes do not add up to k.

    Source: Section 5, after Theorem 2 (block-diagonal alignment).

    >>> swapped = torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    >>> subspace_cosines(swapped, [2, 1])
    [tensor([1., 1.]), tensor([1.])]
    """
    if sum(sizes) != len(A):
        raise UserError(f"groups of {list(sizes)} make {sum(sizes)}, but A has {len(A)} rows; take degenerate_groups(S, ratio=…)")
    rows = A.split(list(sizes))
    return [torch.linalg.svdvals(row.split(list(sizes), 1)[k]) for k, row in enumerate(rows)]
