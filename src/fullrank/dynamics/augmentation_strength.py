"""How strong an augmentation InfoNCE bears before directions collapse: thresholds of small weights, and the isotropic Gaussian in full.

k is the second moment of the shifts x′ − x in a direction, against the variance of the data there.
Source of all: derived from Lemma 2 of Jing et al. 2022, Understanding Dimensional Collapse in Contrastive Self-supervised Learning.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from fullrank.dynamics.infonce import weighted_covariances
from fullrank.errors import UserError


def collapse_thresholds(x: Float[Tensor, "2 N m"]) -> Float[Tensor, " m"]:
    """The factors k_j on the augmentation's second moments at which small weights begin to vanish, one direction after the other.

    For W → 0 the softmax weights are 1/N, and X = 2N Cov(x) − (N − 1) Σ_i(x′_i − x_i)(x′_i − x_i)ᵀ/N; with the second moments times k it
    has as many negative eigenvalues as there are k_j < k: those of Σ̂₀v = kΣ̂₁v. Isotropic data of variance v,
    augmented by unit second moments, have k* = 2v N/(N − 1).

    Args:
        x: inputs of N anchors and of their positives.

    Returns:
        The thresholds in ascending order, infinite for directions without augmentation.

    Raises:
        UserError: the anchors do not span the m dimensions.

    Source: Section 4 and Fig. 3, made precise: the paper names no threshold.

    >>> x = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]], dtype=torch.float64)  # variance 1/2
    >>> thresholds(torch.stack([x, x + torch.tensor([1.0, 0.0])]))
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


def gaussian_growth(w: Float[Tensor, "*S"], k: Float[Tensor, "*S"], *, variance: float = 1.0) -> Float[Tensor, "*S"]:
    """ẇ/(wN) = v(2 + ω²)/(1 + ω²)² − k with ω² = w²v: how a singular value grows, for infinitely many samples of an isotropic Gaussian.

    The softmax weights tilt the density of the others towards each anchor; the positive's own weight is taken to vanish, as it does for
    N → ∞. The rate falls with w: below k* = 2v it pulls to `gaussian_equilibrium`, from there on to 0.

    Args:
        w: singular values.
        k: second moments of the shifts x′ − x in that direction.
        variance: v of the data.

    Returns:
        Rates, for a time of learning rate × step with the loss a mean over the samples.

    Source: Lemma 2 in expectation; not in the paper.

    >>> gaussian_growth(torch.tensor([0.0, 1.0]), torch.tensor([2.0, 0.75]))
    tensor([0., 0.])
    """
    square = w.square() * variance
    return variance * (2 + square) / (1 + square).square() - k


def gaussian_equilibrium(k: Float[Tensor, "*S"], *, variance: float = 1.0) -> Float[Tensor, "*S"]:
    """The root of `gaussian_growth`, w*² = ((v + √(v² + 4vk))/(2k) − 1)/v, or 0 from k* = 2v on, which it approaches continuously.

    With finitely many samples, or directions without augmentation, the equilibrium lies lower, since α_ii grows with what the weights
    already tell apart; the threshold stays.

    Args:
        k: second moments of the shifts x′ − x in that direction, above 0.
        variance: v of the data.

    Returns:
        The singular values at which growth ends.

    Source: Lemma 2 in expectation; not in the paper.

    >>> gaussian_equilibrium(torch.tensor([0.75, 2.0, 3.0]))
    tensor([1., 0., 0.])
    """
    ratio = k / variance
    return (((1 + (1 + 4 * ratio).sqrt()) / (2 * ratio) - 1) / variance).clamp(min=0).sqrt()
