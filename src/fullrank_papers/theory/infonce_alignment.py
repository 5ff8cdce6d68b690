"""Singular values and vectors of linear layers in training, and the alignment of neighbouring layers.

Balanced layers, W_{l+1}ᵀW_{l+1} = W_lW_lᵀ, stay aligned, so that each mode evolves independently. Other layers align as
far as their modes outgrow the imbalance. In arguments, s1 and s2 are the singular values of W₁ and W₂, and D is their
imbalance (`imbalances`). Time is learning rate × step of gradient descent on the loss of `infonce`, a sum over the
samples. Source of all: Jing et al. 2022, Understanding Dimensional Collapse in Contrastive Self-supervised Learning.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor


def aligned_vector_field(
    s1: Float[Tensor, "*T k"], s2: Float[Tensor, "*T k"], a: Float[Tensor, "*T k"]
) -> tuple[Float[Tensor, "*T k"], Float[Tensor, "*T k"]]:
    """Return σ̇₁ = σ₁σ₂²a and σ̇₂ = σ₂σ₁²a with a = v₁ᵀXv₁, for each pair of aligned singular values of two layers.

    σ₁² − σ₂² = C is conserved: σ̇₁ = aσ₁(σ₁² − C).

    Source: Theorem 3, eq. 10-11, where aligned means V₂ = U₁ (printed V₂ = U₁ᵀ); corrected: the paper has σ₁² + C for
    σ₁² − C.

    >>> aligned_vector_field(torch.tensor([2.0]), torch.tensor([1.0]), torch.tensor([1.0]))
    (tensor([2.]), tensor([4.]))
    """
    return a * s1 * s2.square(), a * s2 * s1.square()


def balanced_layers(W: Float[Tensor, "D m"], depth: int) -> list[Tensor]:
    """Return L layers with product W = USVᵀ and zero `imbalances`: W₁ = S^{1/L}Vᵀ, W_l = S^{1/L}, W_L = US^{1/L}.

    As the imbalances are conserved, the layers stay aligned: the papers' alignment is exact from this initialisation.
    Hidden layers are as wide as W has singular values.

    Source: Arora et al. 2018, On the Optimization of Deep Networks: Implicit Acceleration by Overparameterization,
    Procedure 1.

    >>> balanced_layers(torch.tensor([[9.0]]), 2)
    [tensor([[3.]]), tensor([[3.]])]
    """
    if depth == 1:
        return [W]
    U, S, Vh = torch.linalg.svd(W, full_matrices=False)
    root = S ** (1 / depth)
    return [root[:, None] * Vh, *(torch.diag(root) for _ in range(depth - 2)), U * root]


def balanced_singular_values(
    s: Float[Tensor, " k"], a: Float[Tensor, " k"], t: Float[Tensor, "*T"], *, depth: int
) -> Float[Tensor, "*T k"]:
    """Return the singular values s = σ^L of the product of L balanced layers, each of which has σ̇ = aσ^{2L−1}:

        ṡ = L a s^{3−2/L},    s(t) = s(0)/(1 − (2L − 2) a s(0)^{2−2/L} t)^{L/(2L−2)},    or s(0)e^{at} for L = 1

    a is vᵀXv of each mode, with its right singular vector v an eigenvector of a fixed X. For a > 0 and L > 1, s is
    infinite from t* = s(0)^{2/L−2}/((2L − 2)a) on. In one layer, modes of equal a grow at the same rate ṡ/s. In deeper
    networks ṡ/s increases with s, so that large modes dominate.

    Source: eq. 10-11 for any depth; not in the paper, which has L = 2 and states C's sign wrongly.

    >>> balanced_singular_values(torch.tensor([1.0, 0.5]), torch.ones(2), torch.tensor(0.375), depth=2)
    tensor([4.0000, 0.8000])
    """
    growth = a * t[..., None]
    if depth == 1:
        return s * growth.exp()
    rest = 1 - (2 * depth - 2) * growth * s ** (2 - 2 / depth)  # 0 at t*
    return s * rest.clamp(min=0) ** (-depth / (2 * depth - 2))


def layer_alignment(W1: Float[Tensor, "h m"], W2: Float[Tensor, "k h"]) -> Float[Tensor, "k2 k1"]:
    """Return A = V₂ᵀU₁, the cosines between the right singular vectors of W₂ and the left ones of W₁.

    Signs are free, so read |A|. It converges to the identity on the modes that outgrow W₁W₁ᵀ − W₂ᵀW₂
    (`alignment_lower_bound`), and on all modes only from a balanced start (`balanced_layers`). Equal singular values
    leave blocks (`subspace_cosines`).

    Source: Sec. 5, Theorem 2, its conclusion corrected (relative to the largest singular values only).

    >>> W = torch.diag(torch.tensor([2.0, 1.0]))
    >>> layer_alignment(W, W).abs()
    tensor([[1., 0.],
            [0., 1.]])
    """
    return torch.linalg.svd(W2, full_matrices=False).Vh @ torch.linalg.svd(W1, full_matrices=False).U


def alignment_lower_bound(
    s1: Float[Tensor, " k1"], s2: Float[Tensor, " k2"], D: Float[Tensor, "h h"]
) -> Float[Tensor, " k"]:
    """Return lower bounds of |A_kk|, √(1 − ‖D‖₂²/min_{j≠k}(σ₁ₖ² − σ₂ⱼ²)²) or 0: a mode that outgrows the imbalance is
    aligned.

    D = W₁W₁ᵀ − W₂ᵀW₂ is conserved. The bound follows from the identity (σ₁ₖ² − σ₂ⱼ²) A_jk = v₂ⱼᵀDu₁ₖ, squared and
    summed over the j of a column, whose squares add up to one over all h right vectors of W₂. Where W₂ has fewer
    singular values than the hidden layer has units (fewer outputs than h), the others are 0 and belong to the minimum.
    There are min(k1, k2) bounds. It is Davis and Kahan's sin θ theorem for W₁W₁ᵀ and W₂ᵀW₂.

    Source: in place of Theorem 2; Davis and Kahan 1970, The Rotation of Eigenvectors by a Perturbation III.

    >>> alignment_lower_bound(torch.tensor([3.0, 1.0]), torch.tensor([3.0, 1.0]), 4 * torch.eye(2))
    tensor([0.8660, 0.8660])
    >>> alignment_lower_bound(torch.tensor([3.0, 1.0]), torch.tensor([3.0]), 4 * torch.eye(2))
    tensor([0.8958])
    """
    count = min(len(s1), len(s2))
    s1, s2 = s1[:count], torch.cat([s2, s2.new_zeros(len(D) - len(s2))])
    same = torch.eye(len(s2), count, dtype=torch.bool, device=s1.device)
    gaps = (s1.square() - s2.square()[:, None]).abs().masked_fill(same, torch.inf).amin(0)
    # 0/0: a second mode of the same singular value
    sine = (torch.linalg.matrix_norm(D, 2) / gaps).nan_to_num(1).clamp(max=1)
    return (1 - sine.square()).sqrt()


def degenerate_groups(S: Float[Tensor, " k"], *, ratio: float) -> list[int]:
    """Return the sizes of the groups of nearly equal singular values: a new group begins if σ_k exceeds `ratio` times
    σ_{k+1}.

    Source: Section 5, after Theorem 2.

    >>> degenerate_groups(torch.tensor([1.0, 1.0, 0.5, 0.0]), ratio=1.1)
    [2, 1, 1]
    """
    ends = (S[:-1] > ratio * S[1:]).nonzero()[:, 0] + 1
    return [end - start for start, end in pairwise([0, *ends.tolist(), len(S)])]


def subspace_cosines(A: Float[Tensor, "k k"], sizes: Sequence[int]) -> list[Tensor]:
    """Return the alignment of each group: the singular values of A's diagonal blocks, of the `sizes` that
    `degenerate_groups` returns.

    They are the cosines of the principal angles between the spans of the right singular vectors of W₂ and the left ones
    of W₁. Inside a group of equal singular values the vectors are not unique, and |A| is not the identity even for
    aligned layers. These cosines do not depend on the choice of the vectors, and are 1 if the subspaces coincide. For
    groups of one they are |A_kk|.

    Source: Section 5, after Theorem 2 (block-diagonal alignment).

    >>> swapped = torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    >>> subspace_cosines(swapped, [2, 1])
    [tensor([1., 1.]), tensor([1.])]
    """
    rows = A.split(list(sizes))
    return [torch.linalg.svdvals(row.split(list(sizes), 1)[k]) for k, row in enumerate(rows)]
