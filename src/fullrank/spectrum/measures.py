"""Numbers that sum up a spectrum, as functions of eigenvalues λ (…, D) ≥ 0 in descending order along the last dimension.

All are of the centred covariance, but for RankMe, which takes singular values of the embeddings as they stand.

Natural logarithms, 0 log 0 = 0. A spectrum of zeros (total collapse) has entropy, ranks and ratios 0, never NaN.
"""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fullrank.errors import UserError


def shares(x: Float[Tensor, "*T D"]) -> Float[Tensor, "*T D"]:
    """x / Σx, or zeros where all are zero.

    >>> shares(torch.tensor([3.0, 1.0, 0.0]))
    tensor([0.7500, 0.2500, 0.0000])
    """
    total = x.sum(-1, keepdim=True)
    return x / total.masked_fill(total == 0, 1)


def entropy(eigenvalues: Float[Tensor, "*T D"], *, k: int | None = None) -> Float[Tensor, "*T"]:
    """Shannon entropy − Σ p log p, p = λ/Σλ, in nats: log D for equal eigenvalues, 0 for a single one (Skean et al. 2024, Sec. 5.2).

    With k, both sums are over the first k eigenvalues.

    Raises:
        UserError: there is no k-th eigenvalue.

    >>> entropy(torch.tensor([2.0, 2.0, 0.0])).exp()
    tensor(2.)
    """
    return torch.special.entr(shares(eigenvalues[..., : count(k, eigenvalues, "entropy")])).sum(-1)


def renyi(eigenvalues: Float[Tensor, "*T D"], *, alpha: float = 2.0) -> Float[Tensor, "*T"]:
    """Rényi entropy log(Σ p^α) / (1 − α), p = λ/Σλ, in nats.

    α = 0 is log rank, α = 1 the Shannon entropy, α = 2 the collision entropy − log ‖C‖_F²/(tr C)² that FroSSL maximises,
    α = ∞ the min-entropy − log p₁.

    Raises:
        UserError: α < 0, for which a direction without variance would count more than all others.

    >>> renyi(torch.tensor([2.0, 2.0, 0.0])).exp()
    tensor(2.)
    """
    if not alpha >= 0:
        raise UserError(f"Rényi entropy of order {alpha:g}, expected 0 or more")
    if alpha == 1:
        return entropy(eigenvalues)
    p = shares(eigenvalues)
    alive = p[..., 0] > 0
    if math.isinf(alpha):
        return torch.where(alive, -p[..., 0].log(), 0)
    sums = torch.where(p > 0, p**alpha, 0).sum(-1)
    return torch.where(alive, sums.log() / (1 - alpha), 0)


def collision_entropy(C: Float[Tensor, "*T m m"]) -> Float[Tensor, "*T"]:
    """Rényi-2 entropy − log ‖C‖_F²/(tr C)² of a covariance or a Gram matrix, without its eigenvalues; 0 for a matrix of zeros.

    For embeddings with D columns of unit norm, log ‖ZᵀZ‖_F² = 2 log D − this: the variance term of FroSSL is this entropy. ZᵀZ and ZZᵀ
    give the same.

    Source: Skean et al. 2024, Section 3.1; the matrix-based entropy is that of Giraldo et al. 2014.

    >>> collision_entropy(torch.diag(torch.tensor([2.0, 2.0, 0.0]))).exp()
    tensor(2.)
    """
    trace = C.diagonal(dim1=-2, dim2=-1).sum(-1)
    scaled = C / trace.masked_fill(trace == 0, 1)[..., None, None]
    return torch.where(trace > 0, -scaled.square().sum((-2, -1)).log(), 0)


def effective_rank(eigenvalues: Float[Tensor, "*T D"]) -> Float[Tensor, "*T"]:
    """Effective rank exp H(σ/Σσ) of the singular values σ = √λ: between 1 and D, 0 for zeros (Roy and Vetterli 2007, eq. 4).

    As published it is that of any matrix. Here the matrix is that of the centred embeddings, so that a mean far from the origin does
    not count as a direction; `rank_me` is the same without centring.

    >>> effective_rank(torch.tensor([2.0, 2.0, 0.0]))
    tensor(2.)
    """
    return torch.where(eigenvalues[..., 0] > 0, entropy(eigenvalues.sqrt()).exp(), 0)


def rank_me(singular_values: Float[Tensor, "*T D"], *, epsilon: float = 1e-7) -> Float[Tensor, "*T"]:
    """RankMe exp(− Σ p log p), p_j = (σ_j/Σσ + ε)/(1 + r ε) over the r singular values that are not zero: never above the rank r.

    As published, ε is added to all min(n, D) shares, so that their sum exceeds 1 and every dead dimension adds − ε log ε to the entropy.
    Rank 16 of 2,048 dimensions then reads 16.1 with ε = 10⁻⁷ and 20.2 with 10⁻⁵. Where no singular value is zero the two agree to
    a relative D ε log D.

    Args:
        singular_values: of the embeddings (n, D), not centred, in descending order.
        epsilon: ε.

    Source: Garrido et al. 2023, RankMe: Assessing the Downstream Performance of Pretrained Self-Supervised Representations by Their Rank,
    eq. 1 and 2; corrected: ε does not reach the dimensions that are dead, and p sums to 1.

    >>> rank_me(torch.tensor([2.0, 2.0, 0.0]))
    tensor(2.)
    """
    living = singular_values > 0
    p = shares(torch.where(living, shares(singular_values) + epsilon, 0))
    return torch.where(living[..., 0], torch.special.entr(p).sum(-1).exp(), 0)


def participation_ratio(eigenvalues: Float[Tensor, "*T D"]) -> Float[Tensor, "*T"]:
    """Participation ratio (Σλ)²/Σλ², the exponential of the Rényi-2 entropy: between 1 and D, 0 for zeros.

    >>> participation_ratio(torch.tensor([2.0, 2.0, 0.0]))
    tensor(2.)
    """
    return torch.where(eigenvalues[..., 0] > 0, renyi(eigenvalues).exp(), 0)


def participation_ratio_corrected(eigenvalues: Float[Tensor, "*T D"], *, n: int) -> Float[Tensor, "*T"]:
    """Participation ratio that infinitely many samples would have, estimated from the eigenvalues of n.

    To leading order 1/PR_n = 1/PR + 1/ν, ν = n − 1: n samples cannot show a participation ratio above ν. With S the covariance of
    ν degrees of freedom, A = (tr S)² and B = tr S², Gaussian embeddings of covariance Σ have

        E[A] = (tr Σ)² + (2/ν) tr Σ²        E[B] = (1 + 1/ν) tr Σ² + (1/ν) (tr Σ)²

    so that b = (B − A/ν) ν²/((ν − 1)(ν + 2)) and a = A − 2b/ν are unbiased for tr Σ² and (tr Σ)². Their ratio a/b is what is returned,
    held between the uncorrected value and D. Its relative bias is of the order tr Σ⁴/(tr Σ²)²/ν, where the uncorrected one has PR/ν:
    9 % instead of 28 % for λ_j = 1/j in 20 dimensions of 20 samples, 1.5 % instead of 3 % of 200. What Var‖z‖² exceeds the
    Gaussian 2 tr Σ² by leaves PR/(ν (tr Σ)²) times itself besides, and the bound at D a few per cent where PR is D.

    Args:
        eigenvalues: of the covariance of n embeddings, centred by their own mean.
        n: how many embeddings; below 3 nothing can be corrected.

    Source: Srivastava 2005, Some tests concerning the covariance matrix in high dimensional data, for a and b.

    >>> participation_ratio_corrected(torch.tensor([1.1, 1.0, 0.9]), n=101)
    tensor(3.)
    """
    naive, nu = participation_ratio(eigenvalues), n - 1
    if nu < 2:
        return naive
    share = 1 / naive.masked_fill(naive == 0, 1)  # B/A
    b = (share - 1 / nu) * nu**2 / ((nu - 1) * (nu + 2))  # b/A
    estimate = torch.where(b > 0, 1 / b - 2 / nu, torch.inf).clamp(max=eigenvalues.shape[-1])
    return torch.where(naive > 0, torch.maximum(estimate, naive), 0)


def stable_rank(eigenvalues: Float[Tensor, "*T D"]) -> Float[Tensor, "*T"]:
    """Stable rank Σλ/λ₁ = ‖A‖_F²/‖A‖₂² of the centred embeddings A: between 1 and D, 0 for zeros.

    The sum of eigenvalues over the largest is also known as NESum (He and Ozay 2022).

    >>> stable_rank(torch.tensor([2.0, 1.0, 0.0]))
    tensor(1.5000)
    """
    top = eigenvalues[..., 0]
    return eigenvalues.sum(-1) / top.masked_fill(top == 0, 1)


def condition_number(eigenvalues: Float[Tensor, "*T D"], *, k: int | None = None) -> Float[Tensor, "*T"]:
    """Condition number λ₁/λ_k of the leading k directions, of all D by default (Skean et al. 2024, Sec. 5.2: k = 14).

    Infinite where λ_k = 0.

    Raises:
        UserError: there is no k-th eigenvalue.

    >>> condition_number(torch.tensor([4.0, 2.0, 0.0]), k=2), condition_number(torch.tensor([4.0, 2.0, 0.0]))
    (tensor(2.), tensor(inf))
    """
    last = eigenvalues[..., count(k, eigenvalues, "condition number") - 1]
    return torch.where(last > 0, eigenvalues[..., 0] / last, torch.inf)


def collapsed_dimensions(eigenvalues: Float[Tensor, "*T D"], *, n: int, tolerance: float = 1e-6) -> Int[Tensor, "*T"]:
    """How many dimensions are dead: λ_j ≤ tolerance · λ₁, among the first min(D, n − 1), j = 1, 2, ….

    Centred embeddings of n samples have at most n − 1 nonzero eigenvalues: what lies beyond is unobserved, not dead.
    The default tolerance, a ratio of 10⁻³ of standard deviations, is about the rounding noise of embeddings computed in bfloat16.

    >>> eigenvalues = torch.tensor([4.0, 2.0, 0.0, 0.0, 0.0])
    >>> collapsed_dimensions(eigenvalues, n=100), collapsed_dimensions(eigenvalues, n=4)
    (tensor(3), tensor(1))
    """
    observed = eigenvalues[..., : max(n - 1, 0)]
    return (observed <= tolerance * eigenvalues[..., :1]).sum(-1)


def count(k: int | None, eigenvalues: Float[Tensor, "*T D"], what: str) -> int:
    """Return k, or D for None.

    Raises:
        UserError: there is no k-th eigenvalue.

    >>> count(None, torch.ones(5), "entropy")
    5
    """
    D = eigenvalues.shape[-1]
    if k is not None and not 1 <= k <= D:
        raise UserError(f"{what} for k = {k}, but there are {D} eigenvalues; choose k from 1 to {D}")
    return k or D
