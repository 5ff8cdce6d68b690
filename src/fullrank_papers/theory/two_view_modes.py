"""The modes of two linear networks under FroSSL's or the Barlow Twins loss: closed forms, learning times, stability
limits.

If the singular vectors of the weights are aligned with the data's, mode j has the eigenvalues λ_j of G₁₁, γ_j of G₂₂
and κ_j of G₁₂ (`lam`, `gamma`, `kappa`), those of the D learned modes first. s are signed singular values, s0 those at
t = 0. With `shared`, both views have one network. η is the learning rate, `fraction` f a share of the limit, between 0
and 1. Time is learning rate × step of the losses of `two_view`, which are sums over the samples.

The curvature that drives a flow also limits the learning rate to 2 / curvature, so a faster flow may need more steps.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from fullrank.errors import UserError
from fullrank_papers.theory.sharpness import sharpness
from fullrank_papers.theory.two_view import TwoViewLoss


@dataclass(frozen=True)
class LogisticModes:
    """K balanced aligned singular values s₁ = s₂ = s with logistic squares: y = s², y′ = rate · y (1 − y/limit).

    Source: Skean et al. 2023, FroSSL, eq. 18, corrected: the printed formula solves another equation, and decays to 0
    if λ = γ.

    Attributes:
        limit: The stable fixed point of s².
        rate: The growth rate of a small s².

    >>> one = torch.ones(1, dtype=torch.float64)
    >>> frossl_modes(one, one).singular_values(torch.tensor([0.0, 0.5, float("inf")], dtype=torch.float64), 0.1 * one)
    tensor([[0.1000],
            [0.5962],
            [1.0000]], dtype=torch.float64)
    """

    limit: Float[Tensor, " K"]
    rate: Float[Tensor, " K"]

    def singular_values(self, t: Float[Tensor, " T"], s0: Float[Tensor, " K"]) -> Float[Tensor, "T K"]:
        """Return s(t), with s² = limit / (1 + (limit/s₀² − 1) exp(−rate · t)); s₀ is not 0, and t = ∞ gives the fixed
        point.

        Args:
            t: times, learning rate × step; ∞ gives the fixed point.
            s0: singular values at t = 0, signed and not 0.
        """
        y = self.limit / (1 + (self.limit / s0**2 - 1) * torch.exp(-self.rate * t[:, None]))
        return s0.sign() * y.sqrt()

    def learning_times(self, s0: Float[Tensor, " K"], *, fraction: float = 0.5) -> Float[Tensor, " K"]:
        """Return the time when s² reaches this fraction of its limit, T = ln [(limit/s₀² − 1) f/(1 − f)] / rate.

        It is negative if s₀² is above that fraction.

        Raises:
            UserError: s₀ is not below the fixed point.
        """
        if bool((s0**2 >= self.limit).any()):
            raise UserError(f"a mode starts above its fixed point ({self.limit.min():.3g} is the lowest s²); lower s0")
        return ((self.limit / s0**2 - 1) * fraction / (1 - fraction)).log() / self.rate


def frossl_modes(lam: Float[Tensor, " K"], kappa: Float[Tensor, " K"], *, shared: bool = False) -> LogisticModes:
    """Return FroSSL's balanced modes if λ = γ: limit (λ + κ)/(2λ²), rate 4(λ + κ), or twice the rate for a shared
    network.

    The eigenvalues of the embeddings converge to λs² = (1 + ρ)/2 with ρ = κ/λ.

    κ is in (−λ, λ]; other values are impossible for two views, or no mode grows.

    Source: Skean et al. 2023, FroSSL, proposition D.1, corrected: it needs one U for both networks, and κ = λ means no
    noise.

    >>> frossl_modes(torch.ones(1), torch.ones(1)).limit
    tensor([1.])
    """
    return LogisticModes(limit=(lam + kappa) / (2 * lam**2), rate=(8 if shared else 4) * (lam + kappa))


def barlow_modes(kappa: Float[Tensor, " K"], *, shared: bool = False) -> LogisticModes:
    """Return Barlow Twins' balanced modes for κ > 0: limit 1/κ, rate 4κ, or 8κ for a shared network. At κ = λ the rate
    is half FroSSL's, to the same limit.

    Source: Simon et al. 2023, On the Stepwise Nature of Self-Supervised Learning (shared); half the rate for two
    networks.

    >>> s0 = torch.full((1,), 0.1)
    >>> barlow_modes(torch.ones(1)).learning_times(s0) / frossl_modes(torch.ones(1), torch.ones(1)).learning_times(s0)
    tensor([2.])
    """
    return LogisticModes(limit=1 / kappa, rate=(8 if shared else 4) * kappa)


def frossl_curvature(
    lam: Float[Tensor, " M"], kappa: Float[Tensor, " M"], *, dimensions: int, shared: bool = False
) -> float:
    """Return the largest Hessian eigenvalue of `frossl_loss`, λ = γ, with the first D modes at their fixed point and
    the others at 0.

    Gradient descent is stable there up to a learning rate of 2 / curvature. A pair of weights W_ij, W_ji, i ≤ D, has
    the Hessian [[4b_j² + c_ij, 4b_ib_j], [4b_ib_j, 4b_i² + c_ji]] with b_j² = λ_j(1 + ρ_j)/2 (0 for j > D) and c_ij =
    2λ_j(ρ_i + ρ_j) if the two networks move oppositely; shared weights have c_ij = 2λ_j(ρ_i − ρ_j), and everything is
    doubled. For ρ = 1 the result is 12λ₁, or 16λ₁ shared.

    Source: not in the papers.

    >>> frossl_curvature(torch.tensor([2.0, 1.0]), torch.tensor([2.0, 1.0]), dimensions=1)
    24.0
    """
    rho, learned = kappa / lam, torch.arange(len(lam), device=lam.device) < dimensions
    b = (lam * (1 + rho) / 2).sqrt() * learned
    i = slice(dimensions)
    sign = -1 if shared else 1
    first = 4 * b**2 + 2 * lam * (rho[i, None] + sign * rho)  # (D, M), of W_ij
    second = 4 * b[i, None] ** 2 + 2 * lam[i, None] * (rho + sign * rho[i, None])
    second = torch.where(learned, second, first)  # there is no W_ji for j > D
    top = (first + second) / 2 + (((first - second) / 2) ** 2 + (4 * b[i, None] * b) ** 2).sqrt()
    return (2 if shared else 1) * top.max().item()


def barlow_curvature(kappa: Float[Tensor, " D"], *, shared: bool = False) -> float:
    """Return the largest Hessian eigenvalue of `barlow_loss` at its balanced minimum, 4 max κ over the learned modes,
    or 8 max κ shared.

    Gradient descent is stable there up to a learning rate of 2 / curvature. At κ = λ that is three times FroSSL's limit
    for two networks and twice for shared weights, while FroSSL's flow is twice as fast.

    Source: not in the papers.

    >>> barlow_curvature(torch.tensor([2.0, 1.0]))
    8.0
    """
    return (8 if shared else 4) * kappa.max().item()


def curvature(loss: TwoViewLoss, W: Float[Tensor, "B D M"], G: Float[Tensor, "2 2 _ _"]) -> float:
    """Return the largest Hessian eigenvalue of the loss at any weights, by Lanczos' method.

    Gradient descent is stable near a minimum up to a learning rate of 2 / curvature. `frossl_curvature` and
    `barlow_curvature` are the closed forms for aligned modes.

    >>> from fullrank_papers.theory.two_view import FROSSL
    >>> G = torch.eye(2, dtype=torch.float64).expand(2, 2, 2, 2)
    >>> round(curvature(FROSSL, torch.eye(2, dtype=torch.float64).expand(2, 2, 2), G), 6)
    12.0
    """
    x = W.detach().requires_grad_()
    return sharpness(loss.value(x, G), [x], tolerance=0.0)


def steps_to_fraction(
    modes: LogisticModes, s0: Float[Tensor, " K"], *, learning_rate: float, fraction: float = 0.5
) -> Float[Tensor, " K"]:
    """Return the number of steps from s(0) to this fraction of the limit, T · rate / (2 log(1 + η · rate/2)), T of
    `modes.learning_times`.

    A step multiplies a small s by 1 + η · rate/2, and the flow by exp(η · rate/2). The same factor is used up to the
    limit; the result is off by a step or two.

    Raises:
        UserError: s₀ is not below the fixed point.

    Source: not in the papers.

    >>> steps_to_fraction(barlow_modes(torch.ones(1)), torch.tensor([1e-3]), learning_rate=0.01)
    tensor([348.8302])
    """
    return modes.learning_times(s0, fraction=fraction) * modes.rate / (2 * torch.log1p(learning_rate * modes.rate / 2))


def frossl_barlow_step_ratio(
    lam: Float[Tensor, " D"],
    kappa: Float[Tensor, " D"],
    *,
    share: float,
    s0: Float[Tensor, " D"] | None = None,
    fraction: float = 0.5,
    shared: bool = False,
) -> Float[Tensor, " D"]:
    """Return FroSSL's number of steps divided by Barlow Twins', each at the same share of its own stability limit.

    Steps are counted from s₀ to the same fraction f of each loss's own limit (`steps_to_fraction`). The ratio is the
    product of

        log(1 + η · rate/2) of Barlow Twins over that of FroSSL, with η = 2 · share / curvature
        log[(limit/s₀² − 1) f/(1 − f)] of FroSSL over that of Barlow Twins

    With one ρ for all modes, the first factor tends, as the share tends to 0, to (1 + 2ρ)/(1 + ρ) for two networks,
    from 3/2 at ρ = 1 down to 1, and to 1 for shared weights; it is never below 1. The second factor is 1 at ρ = 1. At ρ
    < 1 it is below 1, since FroSSL's limit of s² is the lower one, and it tends to 1 only as s₀ → 0, like 1/log(1/s₀).
    So *with ρ < 1 FroSSL can need fewer steps*. At equal learning rate, as s₀ → 0, FroSSL needs 1/(1 + 1/ρ) of Barlow
    Twins' steps.

    Where ρ differs from mode to mode, the ratio can be far below 1 for a mode that is less correlated than the others:
    Barlow Twins learns it at κ, with a limit set by the largest κ.

    Args:
        lam: λ.
        kappa: κ, above 0 and at most λ.
        share: learning rate divided by the stability limit, between 0 and 1.
        s0: s at t = 0; by default the limit s₀ → 0, where the second factor is 1.
        fraction: f.
        shared: whether both views have one network.

    Raises:
        UserError: s₀ is not below the fixed points.

    Source: not in the papers; Skean et al. 2023, FroSSL, section 5.1 compares at equal learning rate.

    >>> frossl_barlow_step_ratio(torch.ones(1), torch.ones(1), share=1e-4)
    tensor([1.5000])
    >>> frossl_barlow_step_ratio(torch.ones(2), torch.tensor([1.0, 0.1]), share=1e-4)
    tensor([1.5000, 0.2727])
    >>> kappa, s0 = torch.tensor([0.05]), torch.tensor([1e-3])
    >>> frossl_barlow_step_ratio(torch.ones(1), kappa, share=0.1, s0=s0, shared=True)
    tensor([0.7835])
    """

    def steps(modes: LogisticModes, top: float) -> Float[Tensor, " D"]:
        if s0 is None:
            return 1 / torch.log1p(share / top * modes.rate)
        return steps_to_fraction(modes, s0, learning_rate=2 * share / top, fraction=fraction)

    frossl_top = frossl_curvature(lam, kappa, dimensions=len(lam), shared=shared)
    frossl = steps(frossl_modes(lam, kappa, shared=shared), frossl_top)
    return frossl / steps(barlow_modes(kappa, shared=shared), barlow_curvature(kappa, shared=shared))
