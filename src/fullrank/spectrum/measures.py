"""Numbers that sum up a spectrum, as functions of eigenvalues λ (…, D) ≥ 0 in descending order along the last dimension.

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


def entropy(eigenvalues: Float[Tensor, "*T D"]) -> Float[Tensor, "*T"]:
    """Shannon entropy − Σ p log p, p = λ/Σλ, in nats: log D for equal eigenvalues, 0 for a single one (Skean et al. 2024, Sec. 5.2).

    >>> entropy(torch.tensor([2.0, 2.0, 0.0])).exp()
    tensor(2.)
    """
    return torch.special.entr(shares(eigenvalues)).sum(-1)


def renyi(eigenvalues: Float[Tensor, "*T D"], *, alpha: float = 2.0) -> Float[Tensor, "*T"]:
    """Rényi entropy log(Σ p^α) / (1 − α), p = λ/Σλ, in nats.

    α = 0 is log rank, α = 1 the Shannon entropy, α = 2 the collision entropy − log ‖C‖_F²/(tr C)² that FroSSL maximises,
    α = ∞ the min-entropy − log p₁.

    >>> renyi(torch.tensor([2.0, 2.0, 0.0])).exp()
    tensor(2.)
    """
    if alpha == 1:
        return entropy(eigenvalues)
    p = shares(eigenvalues)
    alive = p[..., 0] > 0
    if math.isinf(alpha):
        return torch.where(alive, -p[..., 0].log(), 0)
    sums = torch.where(p > 0, p**alpha, 0).sum(-1)
    return torch.where(alive, sums.log() / (1 - alpha), 0)


def effective_rank(eigenvalues: Float[Tensor, "*T D"]) -> Float[Tensor, "*T"]:
    """Effective rank exp H(σ/Σσ) of the singular values σ = √λ: between 1 and D, 0 for zeros (Roy and Vetterli 2007, eq. 4).

    >>> effective_rank(torch.tensor([2.0, 2.0, 0.0]))
    tensor(2.)
    """
    return torch.where(eigenvalues[..., 0] > 0, entropy(eigenvalues.sqrt()).exp(), 0)


def participation_ratio(eigenvalues: Float[Tensor, "*T D"]) -> Float[Tensor, "*T"]:
    """Participation ratio (Σλ)²/Σλ², the exponential of the Rényi-2 entropy: between 1 and D, 0 for zeros.

    >>> participation_ratio(torch.tensor([2.0, 2.0, 0.0]))
    tensor(2.)
    """
    return torch.where(eigenvalues[..., 0] > 0, renyi(eigenvalues).exp(), 0)


def stable_rank(eigenvalues: Float[Tensor, "*T D"]) -> Float[Tensor, "*T"]:
    """Stable rank Σλ/λ₁ = ‖A‖_F²/‖A‖₂² of the centred embeddings A: between 1 and D, 0 for zeros.

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
    D = eigenvalues.shape[-1]
    k = D if k is None else k
    if not 1 <= k <= D:
        raise UserError(f"condition number for k = {k}, but there are {D} eigenvalues; choose k from 1 to {D}")
    last = eigenvalues[..., k - 1]
    return torch.where(last > 0, eigenvalues[..., 0] / last, torch.inf)


def dead_dimensions(eigenvalues: Float[Tensor, "*T D"], *, n: int, tolerance: float = 1e-6) -> Int[Tensor, "*T"]:
    """How many dimensions are dead: λ_j ≤ tolerance · λ₁, among the first min(D, n − 1), j = 1, 2, ….

    Centred embeddings of n samples have at most n − 1 nonzero eigenvalues: what lies beyond is unobserved, not dead.
    The default tolerance, a ratio of 10⁻³ of standard deviations, is about the rounding noise of embeddings computed in bfloat16.

    >>> dead_dimensions(torch.tensor([4.0, 2.0, 0.0, 0.0, 0.0]), n=100), dead_dimensions(torch.tensor([4.0, 2.0, 0.0, 0.0, 0.0]), n=4)
    (tensor(3), tensor(1))
    """
    observed = eigenvalues[..., : max(n - 1, 0)]
    return (observed <= tolerance * eigenvalues[..., :1]).sum(-1)
