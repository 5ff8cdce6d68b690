"""How strong an augmentation can be under InfoNCE before directions collapse: thresholds of small weights, and the
isotropic Gaussian.

k is the second moment of the shifts x′ − x in a direction, relative to the variance of the data there.
Source of all: derived from Lemma 2 of Jing et al. 2022, Understanding Dimensional Collapse in Contrastive
Self-supervised Learning.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from fullrank.errors import UserError
from fullrank_papers.theory.infonce import weighted_covariances


def collapse_thresholds(x: Float[Tensor, "2 N m"]) -> Float[Tensor, " m"]:
    """Return the factors k_j on the augmentation's second moments above which small weights vanish: one per direction,
    ascending.

    For W → 0 the softmax weights are 1/N, and X = 2N Cov(x) − (N − 1) Σ_i(x′_i − x_i)(x′_i − x_i)ᵀ/N. With the second
    moments times k, X has as many negative eigenvalues as there are k_j < k with Σ̂₀v = k_jΣ̂₁v. For isotropic data of
    variance v and an augmentation with unit second moments, k* = 2v N/(N − 1). Directions without augmentation have an
    infinite threshold.

    Raises:
        UserError: the anchors do not span the m dimensions.

    Source: Section 4 and Fig. 3, made precise: the paper gives no threshold.

    >>> x = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]], dtype=torch.float64)  # variance 1/2
    >>> collapse_thresholds(torch.stack([x, x + torch.tensor([1.0, 0.0])]))
    tensor([1.3333,    inf], dtype=torch.float64)
    """
    N, m = x.shape[1:]
    data, augmentation = weighted_covariances(x, x.new_full((N, N), 1 / N))
    variances, Q = torch.linalg.eigh(data)
    if variances[0] <= m * torch.finfo(x.dtype).eps * variances[-1]:
        raise UserError(f"the {N} anchors do not span their {m} dimensions; take their principal components")
    whitening = Q * variances.rsqrt()
    shares = torch.linalg.eigvalsh(whitening.mT @ augmentation @ whitening).flip(0)
    rounding = m * torch.finfo(x.dtype).eps * shares[0]
    return torch.where(shares > rounding, 1 / shares, torch.inf)


def gaussian_equilibrium(k: Float[Tensor, "*S"], *, variance: float = 1.0) -> Float[Tensor, "*S"]:
    """Return the singular value w* at which growth ends for an isotropic Gaussian: w*² = ((v + √(v² + 4vk))/(2k) −
    1)/v, or 0 for k ≥ 2v.

    It is the root of ẇ/(wN) = v(2 + ω²)/(1 + ω²)² − k, ω² = w²v, for infinitely many samples: the softmax weights tilt
    the density of the other samples towards each anchor, and the weight of the positive itself vanishes as N → ∞. The
    rate decreases with w, so w converges to w*, which reaches 0 continuously at k* = 2v.

    With finitely many samples, or with directions without augmentation, the equilibrium is lower, since α_ii grows with
    the separation of the samples; the threshold is the same.

    Source: Lemma 2 in expectation; not in the paper.

    >>> gaussian_equilibrium(torch.tensor([0.75, 2.0, 3.0]))
    tensor([1., 0., 0.])
    """
    ratio = k / variance
    return (((1 + (1 + 4 * ratio).sqrt()) / (2 * ratio) - 1) / variance).clamp(min=0).sqrt()
