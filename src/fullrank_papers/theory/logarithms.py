"""The loss that is trained, FroSSL's (6) with logarithms and columns of unit norm, for one linear network: its minimum,
which dimensions it learns, and how fast a new one grows.

Of both views, z = Wx with the same W (D, M). If both views have the same second moment G, as crops nearly have, the
loss depends on W only through the unit vectors u_d = G^½w_d/‖G^½w_d‖ of its rows: through Σ_d u_du_dᵀ, whose
eigenvalues m_j sum to D,

    ℒ = 2 variance · f(F) + weight · Σ_d ‖y_1d − y_2d‖²        F = Σ_j m_j², the squared norm of ZᵀZ
      = 2 variance · f(F) + 2 weight · (D − Σ_j ρ_j m_j)       f = log, or the identity without logarithms

where the second line holds at the minimum. The ρ_j are the canonical correlations of the views, in
descending order, and weight = invariance / N. Participation ratio: D²/F.

No rule for the scale of W follows: the loss is the same for cw_d, and the flow from cW is that from W, in time c² t.
The last layer of any network is this linear network, on the features before it.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class Loss:
    """The loss of one linear network and two views.

    Attributes:
        weight: Of Σ_d ‖y_1d − y_2d‖²; `invariance` of `fullrank.objectives.frossl` divided by N.
        variance: Weight of the variance terms.
        log: Whether the variance terms have logarithms.
    """

    weight: float
    variance: float = 1.0
    log: bool = True

    def __call__(self, W: Float[Tensor, "D M"], G: Float[Tensor, "2 2 M M"]) -> Float[Tensor, ""]:
        """Return the loss of `fullrank.objectives.frossl` for weights W and the moments G_vw = X_vᵀX_w of two views.

        >>> Loss(weight=0.1)(torch.eye(2), torch.eye(2).expand(2, 2, 2, 2))  # 2 log 2
        tensor(1.3863)
        """
        grams = [W @ G[v, v] @ W.mT for v in (0, 1)]
        inverse = [gram.diagonal().rsqrt() for gram in grams]
        squares = [(gram * a * a[:, None]).square().sum() for gram, a in zip(grams, inverse, strict=True)]
        cosines = (W @ G[0, 1] * W).sum(1) * inverse[0] * inverse[1]
        return self.variance * sum(map(self.f, squares)) + self.weight * (2 - 2 * cosines).sum()

    def f(self, F: Tensor) -> Tensor:
        """Return log F, or F."""
        return F.log() if self.log else F


def correlations(G: Float[Tensor, "2 2 M M"], tolerance: float = 1e-8) -> tuple[Tensor, Tensor]:
    """Return the canonical correlations ρ (r,) of the views in descending order, and their directions (M, r): columns a
    with aᵀGa = 1 for the mean G of both second moments. Eigenvalues of G below tolerance times the largest one count as
    zero.

    >>> correlations(torch.eye(2).expand(2, 2, 2, 2))[0]
    tensor([1., 1.])
    """
    eigenvalues, V = torch.linalg.eigh((G[0, 0] + G[1, 1]) / 2)
    kept = eigenvalues > tolerance * eigenvalues[-1]
    whiten = V[:, kept] * eigenvalues[kept].rsqrt()
    rho, Q = torch.linalg.eigh(whiten.mT @ (G[0, 1] + G[1, 0]) @ whiten / 2)
    return rho.flip(0), whiten @ Q.flip(1)


def spectrum(
    W: Float[Tensor, "D M"], G: Float[Tensor, "2 2 M M"], directions: Float[Tensor, "M r"]
) -> Float[Tensor, " r"]:
    """Return m_j, the share of each canonical direction in the embeddings, of D in all.

    >>> spectrum(torch.eye(2), torch.eye(2).expand(2, 2, 2, 2), torch.eye(2))
    tensor([1., 1.])
    """
    S = (G[0, 0] + G[1, 1]) / 2
    parts = W @ S @ directions
    return (parts.square() / (W @ S * W).sum(1, keepdim=True)).sum(0)


def optimal_spectrum(loss: Loss, rho: Float[Tensor, " r"], *, dimensions: int) -> Float[Tensor, " r"]:
    """Return the m_j of the minimum: on the first k directions, with ρ̄ and σ² = Σ_j (ρ_j − ρ̄)² over these,

        m_j = D/k + (ρ_j − ρ̄) weight/(2 variance) · F        F = 1 without logarithms in this line; with them
        F   = (1 − √(1 − c² σ² D²/k)) · 2/(c² σ²)            c = weight/variance

    and zero on the others. The minimum has the k ≤ min(D, r) of the lowest loss for which all m_j > 0 (and F is real).

    >>> optimal_spectrum(Loss(weight=0.5), torch.tensor([0.9, 0.7, 0.1]), dimensions=2)
    tensor([1.0501, 0.9499, 0.0000])
    """
    D, c = dimensions, loss.weight / loss.variance
    best, lowest = torch.zeros_like(rho), math.inf
    for k in range(1, min(D, len(rho)) + 1):
        deviation = rho[:k] - rho[:k].mean()
        x = c**2 * deviation.square().sum().item()
        if loss.log and x * D**2 / k > 1:
            continue
        # The smaller root of x F²/4 − F + D²/k = 0, in a form that is also right for x = 0.
        F = 2 * D**2 / k / (1 + math.sqrt(1 - x * D**2 / k)) if loss.log else 1.0
        m = D / k + c / 2 * F * deviation
        value = 2 * loss.variance * loss.f(m.square().sum()) - 2 * loss.weight * (rho[:k] * m).sum()
        if m.min() > 0 and value < lowest:
            lowest, best = value.item(), torch.cat([m, torch.zeros_like(rho[k:])])
    return best


def growth_rates(loss: Loss, rho: Float[Tensor, " r"], m: Float[Tensor, " r"]) -> Float[Tensor, " r"]:
    """Return the rate of growth of each direction that is not yet learned, at the minimum m over those that are, times
    ‖z‖²/λ_j, with λ_j the variance of the input in this direction and ‖z‖² that of the output; NaN for learned ones.

        with logarithms 8 variance D/(k F) − 4 weight (ρ̄ − ρ_j)        without 8 variance D/k − 4 weight (ρ̄ − ρ_j)

    G is diagonal in the canonical directions here, k < D, all ‖z_d‖ are equal, and the new parts of the rows are
    orthogonal to the learned ones. D/(k F) is at most 1/D, however few directions are learned; without
    logarithms the push is D/k times stronger than with all D of them. So the logarithm weakens the variance term while
    few dimensions are learned, and a direction stays unlearned if ρ_j < ρ̄ − 2 D variance/(k F weight).

    >>> growth_rates(Loss(weight=2.0), torch.tensor([0.9, 0.9, 0.5]), torch.tensor([2.0, 2.0, 0.0]))
    tensor([    nan,     nan, -1.2000])
    """
    learned = m > 0
    push = 8 * loss.variance * m[learned].mean() / (m.square().sum() if loss.log else 1.0)
    return torch.where(learned, torch.nan, push - 4 * loss.weight * (rho[learned].mean() - rho))
