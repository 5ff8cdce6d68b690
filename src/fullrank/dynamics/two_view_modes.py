"""Two linear networks under FroSSL's loss or Barlow's, mode by mode: closed forms, fixed points, step times, stability.

Where singular vectors are aligned with the data's, mode j has λ_j and γ_j of the two views and κ_j between them. Time is learning rate ×
step of the losses of `two_view`, which are sums over the samples.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from fullrank.errors import UserError


def frossl_mode_vector_field(
    s: Float[Tensor, "2 K"], lam: Float[Tensor, " K"], gamma: Float[Tensor, " K"], kappa: Float[Tensor, " K"]
) -> Float[Tensor, "2 K"]:
    """The flow of aligned singular values, s₁′ = 2 (λs₁ + κs₂ − 2λ²s₁³) and s₂′ = 2 (γs₂ + κs₁ − 2γ²s₂³), for two networks.

    It holds where G₁₁, G₂₂ and G₁₂ have the same eigenvectors V, and W_v = U diag(s_v) Vᵀ with one U; then s₁ = s₂ is kept if λ = γ only.

    Args:
        s: singular values, signed, of both networks.
        lam: eigenvalues λ of G₁₁.
        gamma: eigenvalues γ of G₂₂.
        kappa: eigenvalues κ of G₁₂.

    Source: Skean et al. 2024, FroSSL, eq. 30 to 32, corrected (signs, and S₁ = S₂ is not assumed).

    >>> one = torch.ones(1)
    >>> frossl_mode_vector_field(torch.ones(2, 1), one, one, one)
    tensor([[0.],
            [0.]])
    """
    spectrum = torch.stack([lam, gamma])
    return 2 * (spectrum * s + kappa * s.flip(0) - 2 * spectrum**2 * s**3)


def barlow_mode_vector_field(s: Float[Tensor, "2 K"], kappa: Float[Tensor, " K"]) -> Float[Tensor, "2 K"]:
    """The flow of aligned singular values, s₁′ = 2κs₂ (1 − κs₁s₂) and s₂′ = 2κs₁ (1 − κs₁s₂). It conserves s₁² − s₂².

    Its fixed points are the saddle 0 and the curve κs₁s₂ = 1, which attracts.

    Args:
        s: singular values, signed, of both networks.
        kappa: eigenvalues κ of G₁₂.

    Source: Simon et al. 2023, On the Stepwise Nature of Self-Supervised Learning, for two networks.

    >>> barlow_modes(torch.tensor([[2.0], [0.5]]), torch.ones(1))
    tensor([[0.],
            [0.]])
    """
    return 2 * kappa * s.flip(0) * (1 - kappa * s[0] * s[1])


@dataclass(frozen=True)
class LogisticModes:
    """Balanced aligned singular values s₁ = s₂ = s, whose squares are logistic: y = s², y′ = rate · y (1 − y/limit).

    Source: Skean et al. 2024, FroSSL, eq. 18, corrected: as printed it solves another equation, and decays to 0 where λ = γ.

    >>> one = torch.ones(1, dtype=torch.float64)
    >>> frossl_mode(one, one).singular_values(torch.tensor([0.0, 0.5, math.inf], dtype=torch.float64), 0.1 * one)
    tensor([[0.1000],
            [0.5962],
            [1.0000]], dtype=torch.float64)
    """

    limit: Float[Tensor, " K"]
    """The stable fixed point of s²."""
    rate: Float[Tensor, " K"]
    """The rate at which a small s² grows."""

    def singular_values(self, t: Float[Tensor, " T"], s0: Float[Tensor, " K"]) -> Float[Tensor, "T K"]:
        """s(t), with s² = limit / (1 + (limit/s₀² − 1) exp(−rate · t)).

        Args:
            t: times, learning rate × step; ∞ gives the fixed point.
            s0: singular values at t = 0, signed and not 0.
        """
        y = self.limit / (1 + (self.limit / s0**2 - 1) * torch.exp(-self.rate * t[:, None]))
        return s0.sign() * y.sqrt()

    def step_times(self, s0: Float[Tensor, " K"], *, fraction: float = 0.5) -> Float[Tensor, " K"]:
        """The time at which s² is this fraction of its limit, T = ln [(limit/s₀² − 1) f/(1 − f)] / rate; negative where s₀² is beyond it.

        Args:
            s0: singular values at t = 0.
            fraction: f, between 0 and 1.

        Raises:
            UserError: s₀ is not below the fixed point, or the fraction is not between 0 and 1.
        """
        if not 0 < fraction < 1:
            raise UserError(f"fraction {fraction}; expected one between 0 and 1, since the limit itself is never reached")
        if bool((s0**2 >= self.limit).any()):
            raise UserError(
                f"a mode starts at or above its fixed point ({self.limit.min():.3g} is the lowest of s²); start from smaller s0"
            )
        return ((self.limit / s0**2 - 1) * fraction / (1 - fraction)).log() / self.rate


def frossl_modes(lam: Float[Tensor, " K"], kappa: Float[Tensor, " K"], *, shared: bool = False) -> LogisticModes:
    """FroSSL's balanced modes where λ = γ: limit (λ + κ)/(2λ²), rate 4(λ + κ).

    The eigenvalues of the embeddings tend to λs² = (1 + ρ)/2 with ρ = κ/λ.

    Args:
        lam: eigenvalues λ of G₁₁ and G₂₂.
        kappa: eigenvalues κ of G₁₂.
        shared: one network for both views: twice the rate.

    Raises:
        UserError: not −λ < κ ≤ λ.

    Source: Skean et al. 2024, FroSSL, proposition D.1, corrected: it needs one U for both networks, and κ = λ means no noise.

    >>> frossl_mode(torch.ones(1), torch.ones(1)).limit
    tensor([1.])
    """
    if bool(((kappa <= -lam) | (kappa > lam * (1 + 1e-6))).any()):
        raise UserError("moments with κ outside −λ < κ ≤ λ, which no two views have (or no mode grows); give eigenvalues of XᵥᵀX_w")
    return LogisticModes(limit=(lam + kappa) / (2 * lam**2), rate=(8 if shared else 4) * (lam + kappa))


def frossl_shared_mode(lam: Float[Tensor, " K"], gamma: Float[Tensor, " K"], kappa: Float[Tensor, " K"]) -> LogisticModes:
    """FroSSL's modes for one network, also where λ ≠ γ: limit (λ + γ + 2κ)/(2(λ² + γ²)), rate 4(λ + γ + 2κ).

    Args:
        lam: eigenvalues λ of G₁₁.
        gamma: eigenvalues γ of G₂₂.
        kappa: eigenvalues κ of (G₁₂ + G₂₁)/2, all that shared weights see of G₁₂.

    Raises:
        UserError: λ + γ + 2κ is not positive.

    Source: the sum of both equations of `frossl_mode_vector_field` at s₁ = s₂; not in the papers.

    >>> frossl_shared_mode(torch.tensor([2.0]), torch.tensor([1.0]), torch.tensor([1.0])).limit
    tensor([0.5000])
    """
    if bool((lam + gamma + 2 * kappa <= 0).any()):
        raise UserError("λ + γ + 2κ is not positive for some mode, which therefore does not grow; leave such modes out")
    return LogisticModes(limit=(lam + gamma + 2 * kappa) / (2 * (lam**2 + gamma**2)), rate=4 * (lam + gamma + 2 * kappa))


def barlow_modes(kappa: Float[Tensor, " K"], *, shared: bool = False) -> LogisticModes:
    """Barlow's balanced modes: limit 1/κ, rate 4κ. At κ = λ that is half FroSSL's rate to the same limit: each step takes twice the time.

    Args:
        kappa: eigenvalues κ of G₁₂.
        shared: one network for both views: twice the rate.

    Raises:
        UserError: κ is not positive.

    Source: Simon et al. 2023, On the Stepwise Nature of Self-Supervised Learning (shared); half the rate for two networks.

    >>> s0 = torch.full((1,), 0.1)
    >>> barlow_mode(torch.ones(1)).step_times(s0) / frossl_mode(torch.ones(1), torch.ones(1)).step_times(s0)
    tensor([2.])
    """
    if bool((kappa <= 0).any()):
        raise UserError(f"κ = {kappa.min():.3g}; balanced modes of Barlow's loss need κ > 0, so flip the sign of one view's direction")
    return LogisticModes(limit=1 / kappa, rate=(8 if shared else 4) * kappa)


def frossl_fixed_points(lam: float, gamma: float, kappa: float) -> tuple[Float[Tensor, "P 2"], Bool[Tensor, " P"]]:
    """All fixed points (s₁, s₂) of one mode of `frossl_mode_vector_field`, and whether each is linearly stable.

    With u = √λ s₁, v = √γ s₂ and ρ = κ/√(λγ): the origin, unstable; ±(1, 1)√((1+ρ)/2), stable iff ρ > −½; ±(1, −1)√((1−ρ)/2), stable
    iff ρ < ½; and for |ρ| < ½ four saddles with uv = −ρ/2, u² + v² = ½.

    Args:
        lam: eigenvalue λ of G₁₁, positive.
        gamma: eigenvalue γ of G₂₂, positive.
        kappa: eigenvalue κ of G₁₂.

    Raises:
        UserError: |κ| > √(λγ).

    Source: not in the papers; Skean et al. 2024, FroSSL, appendix D has only the first pair.

    >>> points, stable = frossl_fixed_points(1.0, 1.0, 0.9)
    >>> len(points), points[stable]
    (5, tensor([[ 0.9747,  0.9747],
            [-0.9747, -0.9747]], dtype=torch.float64))
    """
    if lam <= 0 or gamma <= 0 or abs(kappa) > math.sqrt(lam * gamma) * (1 + 1e-12):
        raise UserError(f"λ = {lam}, γ = {gamma}, κ = {kappa}; expected λ, γ > 0 and |κ| ≤ √(λγ), as all two views have")
    rho = max(-1.0, min(1.0, kappa / math.sqrt(lam * gamma)))
    plus, minus = math.sqrt((1 + rho) / 2), math.sqrt((1 - rho) / 2)
    half = [(plus, plus)] * (plus > 0) + [(minus, -minus)] * (minus > 0)
    if abs(rho) < 0.5:  # u + v and u − v from their squares, (1 ∓ 2ρ)/2
        total, difference = math.sqrt((1 - 2 * rho) / 2), math.sqrt((1 + 2 * rho) / 2)
        half += [((total + difference) / 2, (total - difference) / 2), ((total - difference) / 2, (total + difference) / 2)]
    scale = torch.tensor([lam, gamma], dtype=torch.float64).rsqrt()
    points = torch.tensor([(0.0, 0.0)] + [(sign * u, sign * v) for u, v in half for sign in (1, -1)], dtype=torch.float64) * scale
    growth = torch.full((len(points), 2, 2), 2 * kappa, dtype=torch.float64)  # the Jacobian of the flow, symmetric
    growth.diagonal(dim1=1, dim2=2).copy_(2 * scale**-2 - 12 * scale**-4 * points**2)
    return points, (torch.linalg.eigvalsh(growth) < 0).all(-1)


def frossl_curvature(lam: Float[Tensor, " M"], kappa: Float[Tensor, " M"], *, dimensions: int, shared: bool = False) -> float:
    """The largest eigenvalue of the Hessian of `frossl_loss` where the first D modes are at their fixed point and the rest at 0, λ = γ.

    Gradient descent is stable there up to a learning rate of 2 / curvature. A pair of weights W_ij, W_ji, i ≤ D, has the Hessian
    [[4b_j² + c_ij, 4b_ib_j], [4b_ib_j, 4b_i² + c_ji]] with b_j² = λ_j(1 + ρ_j)/2 (0 where j > D) and c_ij = 2λ_j(ρ_i + ρ_j) where the two
    networks move oppositely; shared weights have c_ij = 2λ_j(ρ_i − ρ_j), and all doubled. For ρ = 1 that is 12λ₁, or 16λ₁ shared.

    Args:
        lam: all eigenvalues λ of G₁₁ and G₂₂, those of the learnt modes first.
        kappa: the eigenvalues κ ≥ 0 of G₁₂.
        dimensions: D.
        shared: one network for both views.

    Raises:
        UserError: fewer modes than dimensions.

    Source: not in the papers.

    >>> frossl_curvature(torch.tensor([2.0, 1.0]), torch.tensor([2.0, 1.0]), dimensions=1)
    24.0
    """
    if dimensions > len(lam):
        raise UserError(f"{dimensions} dimensions and {len(lam)} modes; expected at least as many modes as dimensions")
    rho, learnt = kappa / lam, torch.arange(len(lam), device=lam.device) < dimensions
    b = (lam * (1 + rho) / 2).sqrt() * learnt
    i = slice(dimensions)
    sign = -1 if shared else 1
    first = 4 * b**2 + 2 * lam * (rho[i, None] + sign * rho)  # (D, M), of W_ij
    second = 4 * b[i, None] ** 2 + 2 * lam[i, None] * (rho + sign * rho[i, None])
    second = torch.where(learnt, second, first)  # there is no W_ji where j > D
    top = (first + second) / 2 + (((first - second) / 2) ** 2 + (4 * b[i, None] * b) ** 2).sqrt()
    return (2 if shared else 1) * top.max().item()


def barlow_curvature(kappa: Float[Tensor, " D"], *, shared: bool = False) -> float:
    """The largest eigenvalue of the Hessian of `barlow_loss` at its balanced minimum, 4 max κ over the learnt modes, or 8 max κ shared.

    Gradient descent is stable there up to a learning rate of 2 / curvature: at κ = λ that is thrice FroSSL's limit for
    two networks and twice for shared weights, while FroSSL's flow is twice as fast.

    Args:
        kappa: the eigenvalues κ > 0 of G₁₂ of the learnt modes.
        shared: one network for both views.

    Source: not in the papers.

    >>> barlow_curvature(torch.tensor([2.0, 1.0]))
    8.0
    """
    return (8 if shared else 4) * kappa.max().item()


@dataclass(frozen=True)
class Aligned:
    """Moments that one basis diagonalises: λ_j, γ_j, κ_j along v_j, ordered by λ + γ + 2κ, as small shared weights learn them.

    >>> aligned(torch.diag(torch.tensor([1.0, 2.0])).expand(2, 2, 2, 2)).lam
    tensor([2., 1.])
    """

    V: Float[Tensor, "M M"]
    lam: Float[Tensor, " M"]
    gamma: Float[Tensor, " M"]
    kappa: Float[Tensor, " M"]

    def weights(self, s: Float[Tensor, "B D"]) -> Float[Tensor, "B D M"]:
        """The aligned weights W_v = diag(s_v) Vᵀ on the first D modes, for s of one (shared) or two networks."""
        return s[:, :, None] * self.V.mT[: s.shape[1]]


def aligned(G: Float[Tensor, "2 2 M M"]) -> Aligned:
    """The common eigenvectors of G₁₁, G₂₂ and G₁₂, for which the flow decouples into modes.

    Args:
        G: moments.

    Raises:
        UserError: there are none: G₁₂ is not symmetric, or the matrices do not commute. (Also where λ + γ + 2κ is the same for two modes
            that differ otherwise, since the eigenvectors are those of the sum.)

    Source: Skean et al. 2024, FroSSL, proposition D.1, corrected: that G₁₁ and G₂₂ share their eigenvectors is not enough, G₁₂ must too.

    >>> aligned(torch.eye(2, dtype=torch.float64).expand(2, 2, 2, 2)).kappa
    tensor([1., 1.], dtype=torch.float64)
    """
    V = torch.linalg.eigh(G.sum((0, 1))).eigenvectors.flip(-1)
    D = V.mT @ G @ V
    diagonal = D.diagonal(dim1=2, dim2=3)
    off = (D - diagonal.diag_embed()).abs().max() / G.abs().max()
    if off > 1e3 * len(V) * torch.finfo(G.dtype).eps:
        raise UserError(
            f"no basis diagonalises G11, G22 and G12 (off by {off:.2g} of the largest entry); use the flow in the weights instead"
        )
    return Aligned(V=V, lam=diagonal[0, 0], gamma=diagonal[1, 1], kappa=diagonal[0, 1])
