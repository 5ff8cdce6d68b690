"""Two linear networks from small random weights: the modes of the data that they learn, in which order, and when.

While weights are small, the flow is linear in them, [W₁ W₂]′ = 2 [W₁ W₂] M with a symmetric matrix M of moments. The
components along its eigenvectors separate by orders of magnitude, so they reach their limits one after the other. Time
is learning rate × step of the losses of `two_view`, sums over the samples; weights W(0) are (2, D, M) of two networks
or (1, D, M) of a shared one, and moments G (2, 2, M, M), as in `two_view`. Small means s(0)² ≪ the limits.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor

from fullrank.errors import UserError
from fullrank_papers.theory.two_view_modes import LogisticModes

CANDIDATES = 5
"""How many leading eigenvectors, at least, are candidates for the next mode, the first to reach its limit. For weights
→ 0 it is the leading one."""

NEAR = 1.5
"""Growth rates form a block if, until a mode is learned, they separate its directions by less than a factor e^1.5."""


def frossl_growth_matrix(G: Float[Tensor, "2 2 M M"], *, shared: bool = False) -> Float[Tensor, "K K"]:
    """Return M = [[G₁₁, G₁₂], [G₂₁, G₂₂]] for FroSSL: the Gram matrix of the concatenated views, [X₁ X₂]ᵀ[X₁ X₂].

    If one basis diagonalises all blocks and λ = γ, its eigenvalues are λ_j(1 ± ρ_j), with v_j of equal or opposite sign
    in the networks. A shared network has the sum of the blocks, (M, M) instead of (2M, 2M).

    Source: Skean et al. 2023, FroSSL, proposition D.2, which refers to Simon et al. 2023; they have one network and
    Barlow Twins' loss.

    >>> torch.linalg.eigvalsh(frossl_growth_matrix(torch.tensor([[[[2.0]], [[1.0]]], [[[1.0]], [[2.0]]]])))
    tensor([1., 3.])
    """
    return G.sum((0, 1)) if shared else G.transpose(1, 2).flatten(2).flatten(0, 1)


def barlow_growth_matrix(G: Float[Tensor, "2 2 M M"], *, shared: bool = False) -> Float[Tensor, "K K"]:
    """Return M = [[0, G₁₂], [G₂₁, 0]] for the Barlow Twins loss. Its eigenvalues are ± the singular values of G₁₂.

    A shared network has G₁₂ + G₂₁.

    Source: Simon et al. 2023, On the Stepwise Nature of Self-Supervised Learning (shared), for two networks.

    >>> torch.linalg.eigvalsh(barlow_growth_matrix(torch.tensor([[[[2.0]], [[1.0]]], [[[1.0]], [[2.0]]]])))
    tensor([-1.,  1.])
    """
    cross = G.clone()
    cross[0, 0] = cross[1, 1] = 0
    return frossl_growth_matrix(cross, shared=shared)


@dataclass(frozen=True)
class SmallInitialization:
    """The predicted trajectory of small weights: W_v(t) = U diag(s(t)) A_vᵀ, modes in the order of learning.

    s_j(0) is the length, and column j of U the direction, of W(0) along mode j, after a projection orthogonal to the
    columns of earlier modes. Where growth rates are equal, or so near that the modes do not separate before they are
    learned, mode j is the leading singular vector of what W(0) has become in the block by then.

    Exact as W(0) → 0 under the Barlow Twins loss of two networks, and under FroSSL if the modes are aligned in both
    views with λ = γ. Otherwise directions turn while a mode is learned, and they turn more if the views correlate less.
    FroSSL's learning times differ by 5 % for crops that keep 90 % of an image (half of it is Euler's error), and are
    not predicted for crops of 60 %. The prediction is also worse for a mode of which W(0) contains, by chance, much
    less than of the others.

    Attributes:
        modes: Limits and rates of the D modes.
        s0: s(0) ≥ 0.
        U: Directions in the embedding space, orthonormal columns.
        A: Directions a_j, b_j in the inputs of each network; ‖a_j‖² + ‖b_j‖² = 2, or ‖a_j‖ = 1 for a shared network.
        covariances: A₁ᵀG₁₁A₁ and A₂ᵀG₂₂A₂, diagonal if modes are aligned.
    """

    modes: LogisticModes
    s0: Float[Tensor, " D"]
    U: Float[Tensor, "D D"]
    A: Float[Tensor, "B M D"]
    covariances: Float[Tensor, "2 D D"]

    def learning_times(self, *, fraction: float = 0.5) -> Float[Tensor, " D"]:
        """Return the time when each mode is learned, s² = fraction · limit; see `LogisticModes.learning_times`."""
        return self.modes.learning_times(self.s0, fraction=fraction)

    def eigenvalues(self, t: Float[Tensor, " T"]) -> Float[Tensor, "T 2 D"]:
        """Return the eigenvalues of Z_vᵀZ_v of both views, in descending order: λ_j s_j(t)² if modes are aligned."""
        s = self.modes.singular_values(t, self.s0)[:, None]
        return torch.linalg.eigvalsh(s[..., None] * self.covariances * s[..., None, :]).flip(-1)

    def weights(self, t: Float[Tensor, " T"]) -> Float[Tensor, "T B D M"]:
        """Return the whole trajectory in closed form."""
        return (self.U * self.modes.singular_values(t, self.s0)[:, None, None]) @ self.A.mT


def frossl_small_initialization(W: Float[Tensor, "B D M"], G: Float[Tensor, "2 2 _ _"]) -> SmallInitialization:
    """Return the modes that small weights learn under FroSSL, from one saddle to the next: limit (p + q + 2r)/(2(p² +
    q²)), rate 4μ.

    The first mode is the leading eigenvector (a, b) of `frossl_growth_matrix`, with eigenvalue μ; p = aᵀG₁₁a, q =
    bᵀG₂₂b, r = aᵀG₁₂b. Once learned, it subtracts 2s²G₁₁aaᵀG₁₁ from G₁₁ and 2s²G₂₂bbᵀG₂₂ from G₂₂ for all other
    directions of the embedding space. The next mode is the leading eigenvector of the remaining matrix. So the modes
    need not be the first D eigenvectors of M: if modes are aligned and ρ_j > 0, (v_j, −v_j) stops growing when (v_j,
    v_j) is learned, even if its eigenvalue was the second. Limit and rate are those of s with constant directions a and
    b.

    Raises:
        UserError: fewer than D modes grow, or W is zero.

    Source: not in the papers; Skean et al. 2023, FroSSL, proposition D.2 states only that small weights behave as
    aligned ones.

    >>> W, G = 1e-3 * torch.eye(2).expand(2, 2, 2), torch.diag(torch.tensor([1.0, 2.0])).expand(2, 2, 2, 2)
    >>> frossl_small_initialization(W, G).modes.rate.round()  # 8λ
    tensor([16.,  8.])
    """
    variances = torch.stack([G[0, 0], G[1, 1]])

    def compute_limit(mu: Tensor, A: Tensor) -> Tensor:
        return len(W) * mu / (2 * (A * (variances @ A)).sum(1).square().sum(0))

    def learned_moments(limit: Tensor, a: Tensor) -> Tensor:
        Ga = (variances @ a)[..., 0]  # (2, M)
        return 2 * limit * torch.einsum("vw,vm,wn->vwmn", torch.eye(2).to(G), Ga, Ga)

    return _saddle_to_saddle(W, G, frossl_growth_matrix, compute_limit, learned_moments)


def barlow_small_initialization(W: Float[Tensor, "B D M"], G: Float[Tensor, "2 2 _ _"]) -> SmallInitialization:
    """Return the modes that small weights learn under Barlow Twins, the leading singular triples (a, σ, b) of G₁₂:
    limit 1/σ, rate 4σ.

    A shared network has the eigenvectors of (G₁₂ + G₂₁)/2 instead, and twice the rate.

    Raises:
        UserError: fewer than D modes grow, or W is zero.

    Source: Simon et al. 2023, On the Stepwise Nature of Self-Supervised Learning, small initialisation (shared), for
    two networks.

    >>> W, G = 1e-3 * torch.eye(2).expand(2, 2, 2), torch.diag(torch.tensor([1.0, 2.0])).expand(2, 2, 2, 2)
    >>> barlow_small_initialization(W, G).modes.rate.round()
    tensor([8., 4.])
    """

    def compute_limit(mu: Tensor, A: Tensor) -> Tensor:
        return 2 / (len(W) * mu)

    def learned_moments(limit: Tensor, a: Tensor) -> Tensor:
        return torch.einsum("vw,vm,wn->vwmn", 1 - torch.eye(2).to(G), a[..., 0], a[..., 0]) / limit

    return _saddle_to_saddle(W, G, barlow_growth_matrix, compute_limit, learned_moments)


def _saddle_to_saddle(
    W: Tensor, G: Tensor, growth_matrix: Callable, compute_limit: Callable, learned_moments: Callable
) -> SmallInitialization:
    """Find one mode after the other, each among the growing directions, in the remaining part of the embedding
    space.
    """
    if not bool(W.any() and W.isfinite().all()):
        raise UserError("W is zero or not finite, so no mode grows; give small random weights")
    networks, dimensions, inputs = W.shape
    remaining_W, remaining_G, found, largest = W.transpose(0, 1).flatten(1), G, [], None
    for _ in range(dimensions):
        mu, A = _leading_eigenvectors(growth_matrix(remaining_G, shared=networks == 1), networks=networks)
        if not found and mu[0] > 0:
            largest = mu[0]
        grows = mu > (1e-9 * largest if largest is not None else 0)  # smaller ones are rounding errors
        if not bool(grows.any()):
            raise UserError(f"W has {dimensions} dimensions, only {len(found)} modes grow; choose at most that many")
        mu, A = mu[grows], A[..., grows]
        mu, A, Y = _turn_blocks(mu, A, remaining_W, torch.stack([G[0, 0], G[1, 1]]), compute_limit)
        limit, s0 = compute_limit(mu, A), Y.norm(dim=0)
        k = ((limit / s0**2).log() / mu).argmin()
        u, a = Y[:, k] / s0[k], A[:, :, k]
        remaining_W = remaining_W - torch.outer(u, u @ remaining_W)
        remaining_G = remaining_G - learned_moments(limit[k], a.expand(2, inputs)[..., None])
        found.append((mu[k], limit[k], s0[k], u, a))
    mu, limit, s0, U, A = (torch.stack(column, -1) for column in zip(*found, strict=True))
    covariances = A.mT @ torch.stack([G[0, 0], G[1, 1]]) @ A
    return SmallInitialization(modes=LogisticModes(limit=limit, rate=4 * mu), s0=s0, U=U, A=A, covariances=covariances)


def _leading_eigenvectors(M: Tensor, *, networks: int) -> tuple[Tensor, Tensor]:
    """Return the leading eigenvalues of M in descending order, and the eigenvectors as directions (B, M, count) of each
    network.

    They are those above half the first one, which can form a block with it, and `CANDIDATES` at least.
    """
    mu, E = torch.linalg.eigh(M)
    count = max(min(CANDIDATES, len(M)), int((mu > mu[-1] / 2).sum()))
    return mu[-count:].flip(0), networks**0.5 * E[:, -count:].flip(1).unflatten(0, (networks, -1))


def _turn_blocks(
    mu: Tensor, A: Tensor, W: Tensor, variances: Tensor, compute_limit: Callable
) -> tuple[Tensor, Tensor, Tensor]:
    """Turn the directions within each block of near μ to the singular vectors of the weights when the first mode is
    learned.

    Return μ, the directions and the weights along them, all at t = 0 such that they grow at the rate μ.
    """
    Y = W @ A.flatten(0, 1) / len(A)
    t = ((compute_limit(mu, A) / Y.square().sum(0)).log() / (4 * mu)).clamp(min=0).min()
    for block in _blocks(2 * t * mu, A, variances):
        growth = 2 * t * (mu[block] - mu[block.start])
        U, S, Vh = torch.linalg.svd(Y[:, block] * growth.exp())
        R, k = Vh.mT, len(S)  # from column k on, the block has no weights
        turned = R.square().mT @ mu[block]
        A[..., block], mu[block] = A[..., block] @ R, turned
        Y[:, block] = 0
        Y[:, block.start : block.start + k] = U[:, :k] * S * (2 * t * (mu[block.start] - turned[:k])).exp()
    return mu, A, Y


def _blocks(growth: Tensor, A: Tensor, variances: Tensor) -> list[slice]:
    """Return the blocks of two modes or more with near growth that turn into each other.

    Those are modes with the same variance in each view that do not suppress each other. v_j of equal and of opposite
    signs in the two networks suppress each other, and the modes of uncorrelated views belong to one network each: the
    loss is not invariant under their rotation, even if both grow equally.
    """
    covariances = A.mT @ variances @ A
    own = covariances.diagonal(dim1=-2, dim2=-1)
    tiny = torch.finfo(A.dtype).tiny
    shared = (covariances.square() / (own[..., None] * own[..., None, :]).clamp(min=tiny)).amax(0)
    starts = [0]
    for k in range(1, len(growth)):
        block = slice(starts[-1], k)
        unlike = (own[:, block] - own[:, k, None]).abs() > 0.5 * own[:, block].maximum(own[:, k, None])
        if growth[k - 1] - growth[k] > NEAR or shared[k, block].sum() > 0.25 or bool(unlike.any()):
            starts.append(k)
    return [slice(start, end) for start, end in pairwise([*starts, len(growth)]) if end - start > 1]
