"""Two linear networks from small random weights: which modes of the data they learn, in which order, and when.

While weights are small a flow is linear in them, [W₁ W₂]′ = 2 [W₁ W₂] M with a symmetric matrix M of moments. Its eigenvectors grow apart
by orders of magnitude, so that one after the other reaches its limit. Time is learning rate × step of the losses of `two_view`, sums over
the samples; weights are those of `two_view`, (2, D, M) of two networks or (1, D, M) of a shared one.
"""

from collections.abc import Callable
from dataclasses import dataclass

import scipy.linalg
import torch
from jaxtyping import Float
from torch import Tensor

from fullrank.dynamics.two_view_modes import LogisticModes
from fullrank.errors import UserError

CANDIDATES = 5
"""How many leading eigenvectors are compared for which reaches its limit first. If weights are small enough it is the leading one."""


def frossl_growth_matrix(G: Float[Tensor, "2 2 M M"], *, shared: bool = False) -> Float[Tensor, "K K"]:
    """M = [[G₁₁, G₁₂], [G₂₁, G₂₂]], by which small weights grow under FroSSL: the Gram matrix of the views side by side, [X₁ X₂]ᵀ[X₁ X₂].

    Where one basis diagonalises all blocks and λ = γ, its eigenvalues are λ_j(1 ± ρ_j), with v_j alike or opposite in both networks.

    Args:
        G: moments.
        shared: one network for both views: the sum of the blocks, (M, M) instead of (2M, 2M).

    Source: Skean et al. 2024, FroSSL, proposition D.2, which leaves this to Simon et al. 2023; they have one network and Barlow's loss.

    >>> torch.linalg.eigvalsh(frossl_growth(torch.tensor([[[[2.0]], [[1.0]]], [[[1.0]], [[2.0]]]])))
    tensor([1., 3.])
    """
    return G.sum((0, 1)) if shared else G.transpose(1, 2).flatten(2).flatten(0, 1)


def barlow_growth_matrix(G: Float[Tensor, "2 2 M M"], *, shared: bool = False) -> Float[Tensor, "K K"]:
    """M = [[0, G₁₂], [G₂₁, 0]], by which small weights grow under Barlow's loss. Its eigenvalues are ± the singular values of G₁₂.

    Args:
        G: moments.
        shared: one network for both views: G₁₂ + G₂₁, (M, M) instead of (2M, 2M).

    Source: Simon et al. 2023, On the Stepwise Nature of Self-Supervised Learning (shared), for two networks.

    >>> torch.linalg.eigvalsh(barlow_growth(torch.tensor([[[[2.0]], [[1.0]]], [[[1.0]], [[2.0]]]])))
    tensor([-1.,  1.])
    """
    cross = G.clone()
    cross[0, 0] = cross[1, 1] = 0
    return frossl_growth_matrix(cross, shared=shared)


@dataclass(frozen=True)
class SmallInitialization:
    """What small weights are going to do: W_v(t) = U diag(s(t)) A_vᵀ, modes in the order of learning.

    s_j(0) is the length, and column j of U the direction, of W(0) along mode j, once the columns of earlier modes are projected out.

    Exact as W(0) → 0 under Barlow's loss of two networks, and under FroSSL where the modes are aligned in both views with λ = γ. Otherwise
    directions turn while a mode is learned, the more the less the views correlate: FroSSL's step times are off by 5 % where a crop keeps
    90 % of an image (half of it Euler's error, as Barlow's shows), and not predicted where it keeps 60 %. A mode of which W(0) holds by
    chance much less than of the others is predicted worse, too.
    """

    modes: LogisticModes
    """Limits and rates of the D modes."""
    s0: Float[Tensor, " D"]
    """s(0) ≥ 0."""
    U: Float[Tensor, "D D"]
    """Directions in the embedding space, orthonormal columns."""
    A: Float[Tensor, "B M D"]
    """Directions a_j, b_j in the inputs of each network; ‖a_j‖² + ‖b_j‖² = 2, or ‖a_j‖ = 1 where it is shared."""
    covariances: Float[Tensor, "2 D D"]
    """A₁ᵀG₁₁A₁ and A₂ᵀG₂₂A₂, diagonal where modes are aligned."""

    def step_times(self, *, fraction: float = 0.5) -> Float[Tensor, " D"]:
        """When each mode is learned, s² = fraction · limit; see `LogisticModes.step_times`."""
        return self.modes.step_times(self.s0, fraction=fraction)

    def eigenvalues(self, t: Float[Tensor, " T"]) -> Float[Tensor, "T 2 D"]:
        """Those of Z_vᵀZ_v of both views, in descending order: λ_j s_j(t)² where modes are aligned."""
        s = self.modes.singular_values(t, self.s0)[:, None]
        return torch.linalg.eigvalsh(s[..., None] * self.covariances * s[..., None, :]).flip(-1)

    def weights(self, t: Float[Tensor, " T"]) -> Float[Tensor, "T B D M"]:
        """The whole trajectory in closed form."""
        return (self.U * self.modes.singular_values(t, self.s0)[:, None, None]) @ self.A.mT


def frossl_small_initialization(W: Float[Tensor, "B D M"], G: Float[Tensor, "2 2 _ _"]) -> SmallInitialization:
    """The modes that small weights learn under FroSSL, from one saddle to the next: limit (p + q + 2r)/(2(p² + q²)), rate 4μ.

    The first is the leading eigenvector (a, b) of `frossl_growth`, with eigenvalue μ; p = aᵀG₁₁a, q = bᵀG₂₂b, r = aᵀG₁₂b. Learnt, it takes
    2s²G₁₁aaᵀG₁₁ off G₁₁ and 2s²G₂₂bbᵀG₂₂ off G₂₂ for what grows beside it; the next is the leading eigenvector of what is left. The
    modes therefore need not be the first D eigenvectors of M: where modes are aligned and ρ_j > 0, (v_j, −v_j) stops
    growing once (v_j, v_j) is learned, even if its eigenvalue was the second. Limit and rate are those of s, with the directions a and b
    held.

    Args:
        W: weights at t = 0, small: s(0)² ≪ the limits.
        G: moments (2, 2, M, M).

    Raises:
        UserError: fewer than D modes grow.

    Source: not in the papers; Skean et al. 2024, FroSSL, proposition D.2 has only that small weights behave as aligned ones.

    >>> W, G = 1e-3 * torch.eye(2).expand(2, 2, 2), torch.diag(torch.tensor([1.0, 2.0])).expand(2, 2, 2, 2)
    >>> frossl_small_start(W, G).modes.rate.round()  # 8λ
    tensor([16.,  8.])
    """
    variances = torch.stack([G[0, 0], G[1, 1]])

    def limit(mu: Tensor, A: Tensor) -> Tensor:
        return len(W) * mu / (2 * (A * (variances @ A)).sum(1).square().sum(0))

    def taken(limit: Tensor, a: Tensor) -> Tensor:
        Ga = variances @ a  # (2, M, 1)
        return 2 * limit * torch.stack([torch.stack([Ga[0] @ Ga[0].mT, 0 * G[0, 1]]), torch.stack([0 * G[0, 1], Ga[1] @ Ga[1].mT])])

    return _saddle_to_saddle(W, G, frossl_growth_matrix, limit, taken)


def barlow_small_initialization(W: Float[Tensor, "B D M"], G: Float[Tensor, "2 2 _ _"]) -> SmallInitialization:
    """The modes that small weights learn under Barlow's loss, the leading singular triples (a, σ, b) of G₁₂: limit 1/σ, rate 4σ.

    A shared network has the eigenvectors of (G₁₂ + G₂₁)/2 instead, and twice the rate.

    Args:
        W: weights at t = 0, small: s(0)² ≪ the limits.
        G: moments (2, 2, M, M).

    Raises:
        UserError: fewer than D modes grow.

    Source: Simon et al. 2023, On the Stepwise Nature of Self-Supervised Learning, small initialisation (shared), for two networks.

    >>> W, G = 1e-3 * torch.eye(2).expand(2, 2, 2), torch.diag(torch.tensor([1.0, 2.0])).expand(2, 2, 2, 2)
    >>> barlow_small_start(W, G).modes.rate.round()
    tensor([8., 4.])
    """

    def limit(mu: Tensor, A: Tensor) -> Tensor:
        return 2 / (len(W) * mu)

    def taken(limit: Tensor, a: Tensor) -> Tensor:
        C = a[0] @ a[1].mT / limit
        return torch.stack([torch.stack([0 * C, C]), torch.stack([C.mT, 0 * C])])

    return _saddle_to_saddle(W, G, barlow_growth_matrix, limit, taken)


def _saddle_to_saddle(W: Tensor, G: Tensor, growth: Callable, limit_of: Callable, taken_by: Callable) -> SmallInitialization:
    """One mode after the other, of those that are left to grow, in what is left free of the embedding space."""
    networks, dimensions, inputs = W.shape
    free, left, found = W.transpose(0, 1).flatten(1), G, []
    for _ in range(dimensions):
        mu, A = _leading_eigenvectors(growth(left, shared=networks == 1), networks=networks, count=CANDIDATES)
        grows = mu > 1e-9 * (found[0][0] if found else 0)  # below is rounding
        if not bool(grows.any()):
            raise UserError(f"{dimensions} dimensions, but {len(found)} modes grow; expected at most as many, since others stay small")
        limit, Y = limit_of(mu, A), free @ A.flatten(0, 1) / networks
        s0 = Y.norm(dim=0)
        k = torch.where(grows, (limit / s0**2).log() / mu, torch.inf).argmin()
        u, a = Y[:, k] / s0[k], A[:, :, k]
        free = free - torch.outer(u, u @ free)
        left = left - taken_by(limit[k], a.expand(2, inputs)[..., None])
        found.append((mu[k], limit[k], s0[k], u, a))
    mu, limit, s0, U, A = (torch.stack(column, -1) for column in zip(*found, strict=True))
    return SmallInitialization(
        mode=LogisticModes(limit=limit, rate=4 * mu), s0=s0, U=U, A=A, covariances=A.mT @ torch.stack([G[0, 0], G[1, 1]]) @ A
    )


def _leading_eigenvectors(M: Tensor, *, networks: int, count: int) -> tuple[Tensor, Tensor]:
    """The leading eigenvalues of M in descending order, and their eigenvectors as the directions (B, M, count) of each network."""
    count = min(count, len(M))
    mu, E = scipy.linalg.eigh(M.cpu().numpy(), subset_by_index=(len(M) - count, len(M) - 1))
    mu, E = torch.from_numpy(mu).to(M), torch.from_numpy(E).to(M)
    return mu.flip(0), networks**0.5 * E.flip(1).unflatten(0, (networks, -1))
