"""Metrics of a spectrum as functions of eigenvalues λ (…, D) ≥ 0, in descending order along the last dimension.

Eigenvalues are those of the centred covariance; only RankMe takes singular values of the uncentred embeddings.
Logarithms are natural, with 0 log 0 = 0. If all eigenvalues are zero (complete collapse), entropies, ranks and the
participation ratio are 0, and the condition number is infinite; never NaN. Values that are not eigenvalues in this
order (NaN, negative, ascending, integers, a list) are a `UserError`.
"""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fullrank.errors import NotFiniteError, UserError


def check_eigenvalues(x: Tensor, name: str = "eigenvalues") -> None:
    """Check that x holds eigenvalues or singular values: floating-point, (…, D) with D > 0, finite, ≥ 0, in descending
    order.

    Raises:
        UserError: x is something else.

    >>> check_eigenvalues(torch.tensor([1.0, 2.0]))
    Traceback (most recent call last):
    fullrank.errors.UserError: eigenvalues ascend, expected descending order; pass x.flip(-1) after eigvalsh
    """
    check_floats(x, name, "tensor (…, D) with D > 0")
    descends = (x.diff(dim=-1) <= 1e-6 * x.amax(-1, keepdim=True)).all()
    if ((x >= 0) & (x < torch.inf)).all() & descends:  # one value is read on the host; the reasons only for an error
        return
    check_finite(x, name)
    if (x < 0).any():
        least = f"{name} has a negative value, {x.min().item():.3g}"
        raise UserError(f"{least}, expected all ≥ 0; if rounding caused it, pass x.clamp_min(0)")
    raise UserError(f"{name} ascend, expected descending order; pass x.flip(-1) after eigvalsh")


def check_floats(x: object, name: str, expected: str, fits: Callable[[Tensor], bool] = lambda x: x.ndim > 0) -> None:
    """Check that x is a floating-point tensor that is not empty along its last axis and has the expected shape.

    >>> check_floats([1], "C", "matrix (m, m)", is_square)
    Traceback (most recent call last):
    fullrank.errors.UserError: C is a list, expected a floating-point matrix (m, m)
    """
    if not (isinstance(x, Tensor) and fits(x) and x.shape[-1] and x.is_floating_point()):
        what = f"{x.dtype} of shape {tuple(x.shape)}" if isinstance(x, Tensor) else f"a {type(x).__name__}"
        raise UserError(f"{name} is {what}, expected a floating-point {expected}")


def check_finite(x: Tensor, name: str) -> None:
    """Check that x has no NaN and no infinite value.

    >>> check_finite(torch.tensor([1.0, torch.nan]), "Z")
    Traceback (most recent call last):
    fullrank.errors.NotFiniteError: Z has NaN or infinite values, expected finite ones; if training diverged, ...
    """
    if not x.isfinite().all():
        remedy = "if training diverged, lower the learning rate"
        raise NotFiniteError(f"{name} has NaN or infinite values, expected finite ones; {remedy}")


def is_square(C: Tensor) -> bool:
    """Return whether C is a matrix (…, m, m).

    >>> is_square(torch.ones(2, 3)), is_square(torch.ones(4, 3, 3))
    (False, True)
    """
    return C.ndim >= 2 and C.shape[-1] == C.shape[-2]


def normalize(x: Float[Tensor, "*T D"]) -> Float[Tensor, "*T D"]:
    """Return x / Σx, or zeros if x is zero.

    >>> normalize(torch.tensor([3.0, 1.0, 0.0]))
    tensor([0.7500, 0.2500, 0.0000])
    """
    total = x.sum(-1, keepdim=True)
    return x / total.masked_fill(total == 0, 1)


def entropy(eigenvalues: Float[Tensor, "*T D"], *, k: int | None = None) -> Float[Tensor, "*T"]:
    """Return the Shannon entropy − Σ p log p, p = λ/Σλ, in nats: log D for equal eigenvalues, 0 for a single nonzero
    eigenvalue.

    With k, both sums are over the first k eigenvalues (Skean et al. 2023, Sec. 5.2).

    Raises:
        UserError: k is not between 1 and D.

    >>> entropy(torch.tensor([2.0, 2.0, 0.0])).exp()
    tensor(2.)
    """
    check_eigenvalues(eigenvalues)
    return torch.special.entr(normalize(eigenvalues[..., : _valid_k(k, eigenvalues)])).sum(-1)


def renyi_entropy(eigenvalues: Float[Tensor, "*T D"], *, alpha: float = 2.0) -> Float[Tensor, "*T"]:
    """Return the Rényi entropy log(Σ p^α) / (1 − α), p = λ/Σλ, in nats.

    α = 0 is log rank, α = 1 the Shannon entropy, α = 2 the collision entropy − log ‖C‖_F²/(tr C)² that FroSSL
    maximises, α = ∞ the min-entropy − log p₁.

    Raises:
        UserError: α < 0; a direction without variance would then count more than all other directions.

    >>> renyi_entropy(torch.tensor([2.0, 2.0, 0.0])).exp()
    tensor(2.)
    """
    check_eigenvalues(eigenvalues)
    if not alpha >= 0:
        raise UserError(f"alpha is {alpha:g}, but the order of a Rényi entropy must be at least 0")
    p = normalize(eigenvalues)
    nonzero = p[..., 0] > 0
    if alpha == 1:
        return torch.special.entr(p).sum(-1)
    if math.isinf(alpha):
        return torch.where(nonzero, -p[..., 0].log(), 0)
    top = torch.where(nonzero, p[..., 0], 1)  # taken out of the sum, which would underflow for a large α
    sums = torch.where(p > 0, (p / top[..., None]) ** alpha, 0).sum(-1)
    return torch.where(nonzero, (alpha * top.log() + sums.log()) / (1 - alpha), 0)


def collision_entropy(C: Float[Tensor, "*T m m"]) -> Float[Tensor, "*T"]:
    """Return the Rényi-2 entropy − log ‖C‖_F²/(tr C)² of a covariance or Gram matrix, computed without eigenvalues; 0
    for C = 0.

    For embeddings with D columns of unit norm, log ‖ZᵀZ‖_F² = 2 log D − entropy: the variance term of FroSSL is this
    entropy. ZᵀZ and ZZᵀ give the same value.

    Source: Skean et al. 2023, Section 3.1; Giraldo et al. 2014 define the matrix-based entropy.

    >>> collision_entropy(torch.diag(torch.tensor([2.0, 2.0, 0.0]))).exp()
    tensor(2.)
    """
    check_floats(C, "C", "covariance or Gram matrix (m, m)", is_square)
    check_finite(C, "C")
    trace = C.diagonal(dim1=-2, dim2=-1).sum(-1)
    scaled = C / trace.masked_fill(trace == 0, 1)[..., None, None]
    return torch.where(trace > 0, -scaled.square().sum((-2, -1)).log(), 0)


def effective_rank(eigenvalues: Float[Tensor, "*T D"]) -> Float[Tensor, "*T"]:
    """Return the effective rank exp H(σ/Σσ), σ = √λ: between 1 and D, 0 for zeros (Roy and Vetterli 2007, eq. 4).

    Roy and Vetterli define the effective rank of any matrix. Here the matrix holds the centred embeddings, so a mean
    far from the origin does not count as a direction; `rank_me` uses the uncentred embeddings.

    >>> effective_rank(torch.tensor([2.0, 2.0, 0.0]))
    tensor(2.)
    """
    check_eigenvalues(eigenvalues)
    shares = normalize(eigenvalues.sqrt())
    return torch.where(eigenvalues[..., 0] > 0, torch.special.entr(shares).sum(-1).exp(), 0)


def rank_me(singular_values: Float[Tensor, "*T D"], *, epsilon: float = 1e-7) -> Float[Tensor, "*T"]:
    """Return RankMe exp(− Σ p log p), p_j = (σ_j/Σσ + ε)/(1 + r ε) over the r nonzero singular values; RankMe never
    exceeds r.

    The paper adds ε to all min(n, D) normalised singular values, so their sum exceeds 1 and every collapsed dimension
    adds − ε log ε to the entropy. Rank 16 of 2,048 dimensions then gives 16.1 with ε = 10⁻⁷ and 20.2 with 10⁻⁵. If no
    singular value is zero, the two agree up to a relative D ε log D.

    Args:
        singular_values: singular values of the uncentred embeddings (n, D), in descending order.
        epsilon: the constant ε.

    Source: Garrido et al. 2023, RankMe: Assessing the Downstream Performance of Pretrained Self-Supervised
    Representations by Their Rank, eq. 1 and 2; corrected: ε is not added to collapsed dimensions, and p sums to 1.

    >>> rank_me(torch.tensor([2.0, 2.0, 0.0]))
    tensor(2.)
    """
    check_eigenvalues(singular_values, "singular_values")
    if not epsilon >= 0:
        raise UserError(f"epsilon is {epsilon:g}, but the constant of RankMe must be at least 0")
    nonzero = singular_values > 0
    p = normalize(torch.where(nonzero, normalize(singular_values) + epsilon, 0))
    return torch.where(nonzero[..., 0], torch.special.entr(p).sum(-1).exp(), 0)


def participation_ratio(eigenvalues: Float[Tensor, "*T D"]) -> Float[Tensor, "*T"]:
    """Return the participation ratio (Σλ)²/Σλ², the exponential of the Rényi-2 entropy: between 1 and D, 0 for zeros.

    >>> participation_ratio(torch.tensor([2.0, 2.0, 0.0]))
    tensor(2.)
    """
    check_eigenvalues(eigenvalues)
    return torch.where(eigenvalues[..., 0] > 0, 1 / normalize(eigenvalues).square().sum(-1), 0)


def participation_ratio_corrected(eigenvalues: Float[Tensor, "*T D"], *, n: int) -> Float[Tensor, "*T"]:
    """Return an estimate of the participation ratio for n → ∞ from the eigenvalues of n samples.

    To leading order 1/PR_n = 1/PR + 1/ν, ν = n − 1: n samples cannot show a participation ratio above ν. With S the
    covariance of ν degrees of freedom, A = (tr S)² and B = tr S², Gaussian embeddings of covariance Σ have

        E[A] = (tr Σ)² + (2/ν) tr Σ²        E[B] = (1 + 1/ν) tr Σ² + (1/ν) (tr Σ)²

    so b = (B − A/ν) ν²/((ν − 1)(ν + 2)) and a = A − 2b/ν are unbiased for tr Σ² and (tr Σ)². The function returns their
    ratio a/b, clamped between the uncorrected value and D. A ratio of unbiased estimates is not unbiased: the relative
    bias is of the order tr Σ⁴/(tr Σ²)²/ν, instead of PR/ν without the correction: for λ_j = 1/j in 20 dimensions, 9 %
    instead of 28 % with 20 samples, and 1.5 % instead of 3 % with 200. With very few samples it is large. Embeddings
    that are not Gaussian leave more: if Var‖z‖² exceeds the Gaussian value 2 tr Σ² (heavy tails), a bias of the excess
    times PR/(ν (tr Σ)²) remains. Clamping at D adds a bias of a few per cent if PR is D.

    Args:
        eigenvalues: eigenvalues of the covariance of n embeddings, centred by the sample mean.
        n: number of embeddings; for n < 3 the function returns the uncorrected value.

    Source: Srivastava 2005, Some tests concerning the covariance matrix in high dimensional data, for a and b.

    >>> participation_ratio_corrected(torch.tensor([1.1, 1.0, 0.9]), n=101)
    tensor(3.)
    """
    uncorrected, nu = participation_ratio(eigenvalues), n - 1
    if nu < 2:
        return uncorrected
    share = 1 / uncorrected.masked_fill(uncorrected == 0, 1)  # B/A
    b = (share - 1 / nu) * nu**2 / ((nu - 1) * (nu + 2))  # b/A
    estimate = torch.where(b > 0, 1 / b - 2 / nu, torch.inf).clamp(max=eigenvalues.shape[-1])
    return torch.where(uncorrected > 0, torch.maximum(estimate, uncorrected), 0)


def stable_rank(eigenvalues: Float[Tensor, "*T D"]) -> Float[Tensor, "*T"]:
    """Return the stable rank Σλ/λ₁ = ‖A‖_F²/‖A‖₂² of the centred embeddings A: between 1 and D, 0 for zeros.

    He and Ozay 2022 call the stable rank NESum, the sum of normalised eigenvalues.

    >>> stable_rank(torch.tensor([2.0, 1.0, 0.0]))
    tensor(1.5000)
    """
    check_eigenvalues(eigenvalues)
    top = eigenvalues[..., 0]
    return eigenvalues.sum(-1) / top.masked_fill(top == 0, 1)


def condition_number(eigenvalues: Float[Tensor, "*T D"], *, k: int | None = None) -> Float[Tensor, "*T"]:
    """Return the condition number λ₁/λ_k of the first k directions, by default all D (Skean et al. 2023, Sec. 5.2: k =
    14).

    The condition number is infinite if λ_k = 0.

    Raises:
        UserError: k is not between 1 and D.

    >>> condition_number(torch.tensor([4.0, 2.0, 0.0]), k=2), condition_number(torch.tensor([4.0, 2.0, 0.0]))
    (tensor(2.), tensor(inf))
    """
    check_eigenvalues(eigenvalues)
    last = eigenvalues[..., _valid_k(k, eigenvalues) - 1]
    return torch.where(last > 0, eigenvalues[..., 0] / last, torch.inf)


def collapsed_dimensions(eigenvalues: Float[Tensor, "*T D"], *, n: int, tolerance: float = 1e-6) -> Int[Tensor, "*T"]:
    """Return the number of collapsed dimensions: λ_j ≤ tolerance · λ₁, among the first min(D, n − 1).

    Centred embeddings of n samples have at most n − 1 nonzero eigenvalues; the other dimensions are not observed and do
    not count. The default tolerance is about the rounding noise of bfloat16 embeddings: a standard deviation of 10⁻³
    times the largest.

    >>> eigenvalues = torch.tensor([4.0, 2.0, 0.0, 0.0, 0.0])
    >>> collapsed_dimensions(eigenvalues, n=100), collapsed_dimensions(eigenvalues, n=4)
    (tensor(3), tensor(1))
    """
    check_eigenvalues(eigenvalues)
    observed = eigenvalues[..., : max(n - 1, 0)]
    return (observed <= tolerance * eigenvalues[..., :1]).sum(-1)


def _valid_k(k: int | None, eigenvalues: Float[Tensor, "*T D"]) -> int:
    """Return k, or D for None."""
    D = eigenvalues.shape[-1]
    if k is not None and not 1 <= k <= D:
        raise UserError(f"k is {k}, but there are only {D} eigenvalues; choose k from 1 to {D}")
    return k or D
