"""Gradient descent of two linear networks counted in steps, each objective at a share of its own stability limit.

A flow may be twice as fast and yet need more steps, since the same curvature that drives it bounds the learning rate, 2 / curvature.
"""

import numpy as np
import torch
from jaxtyping import Float
from scipy.sparse.linalg import LinearOperator, eigsh
from torch import Tensor

from fullrank.dynamics.two_view import TwoViewLoss
from fullrank.dynamics.two_view_modes import LogisticModes, barlow_curvature, barlow_modes, frossl_curvature, frossl_modes
from fullrank.errors import UserError


def curvature(objective: TwoViewLoss, W: Float[Tensor, "B D M"], G: Float[Tensor, "2 2 _ _"]) -> float:
    """The largest eigenvalue of the Hessian of the loss at any weights, by Lanczos' method.

    Gradient descent is stable near a minimum up to a learning rate of 2 / curvature. `frossl_curvature` and `barlow_curvature` have it in
    closed form where modes are aligned.

    Args:
        objective: `FROSSL` or `BARLOW`.
        W: weights, float64.
        G: moments (2, 2, M, M).

    >>> from fullrank.dynamics.two_view import FROSSL
    >>> G = torch.eye(2, dtype=torch.float64).expand(2, 2, 2, 2)
    >>> round(curvature(FROSSL, torch.eye(2, dtype=torch.float64).expand(2, 2, 2), G), 6)
    12.0
    """

    def product(v: np.ndarray) -> np.ndarray:
        direction = torch.from_numpy(v).to(W).reshape(W.shape)
        x = W.detach().requires_grad_()
        (slope,) = torch.autograd.grad(objective.loss(x, G), x, create_graph=True)
        return torch.autograd.grad(slope, x, direction)[0].cpu().flatten().numpy()

    size = W.numel()
    start = np.random.default_rng(0).standard_normal(size)
    operator = LinearOperator((size, size), matvec=product, dtype=np.float64)  # pyright: ignore[reportCallIssue]
    return float(eigsh(operator, k=1, which="LA", v0=start, return_eigenvectors=False)[0])


def steps_to_fraction(mode: LogisticModes, s0: Float[Tensor, " K"], *, learning_rate: float, fraction: float = 0.5) -> Float[Tensor, " K"]:
    """Steps of gradient descent from s(0) to this fraction of the limit, T · rate / (2 log(1 + η · rate/2)) with T of `LogisticModes.step_times`.

    A step multiplies a small s by 1 + η · rate/2, where the flow has exp(η · rate/2). The same factor is used up to the
    limit, which is off by a step or two.

    Args:
        mode: balanced aligned modes.
        s0: singular values at step 0.
        learning_rate: η.
        fraction: f, between 0 and 1.

    Raises:
        UserError: s₀ is not below the fixed point, the fraction is not between 0 and 1.

    Source: not in the papers.

    >>> steps_to(barlow_mode(torch.ones(1)), torch.tensor([1e-3]), learning_rate=0.01)
    tensor([348.8302])
    """
    return mode.step_times(s0, fraction=fraction) * mode.rate / (2 * torch.log1p(learning_rate * mode.rate / 2))


def frossl_barlow_step_ratio(
    lam: Float[Tensor, " D"], kappa: Float[Tensor, " D"], *, share: float, shared: bool = False
) -> Float[Tensor, " D"]:
    """How many steps FroSSL needs for one of Barlow's, from small weights, each at this share of its own stability limit.

    The ratio of log(1 + η · rate/2), Barlow's over FroSSL's, with η = 2 · share / curvature. With one ρ for all modes it tends, as the
    share tends to 0, to

        (1 + 2ρ)/(1 + ρ) for two networks, from 3/2 at ρ = 1 down to 1;   1 for shared weights

    and is never below 1, though at equal learning rate FroSSL needs 1/(1 + 1/ρ) of Barlow's steps. Where ρ differs from mode to mode, it
    can be far below 1 for a mode that is less correlated than the others: Barlow learns it at κ, against a limit set by the largest κ.

    Args:
        lam: eigenvalues λ of G₁₁ and G₂₂ of the learnt modes.
        kappa: eigenvalues κ of G₁₂ of the same.
        share: of 2 / curvature, between 0 and 1.
        shared: one network for both views.

    Raises:
        UserError: the share is not between 0 and 1; not 0 < κ ≤ λ.

    Source: not in the papers; Skean et al. 2024, FroSSL, section 5.1 compares at equal learning rate.

    >>> frossl_steps_over_barlow(torch.ones(1), torch.ones(1), share=1e-4)
    tensor([1.5000])
    >>> frossl_steps_over_barlow(torch.ones(2), torch.tensor([1.0, 0.1]), share=1e-4)
    tensor([1.5000, 0.2727])
    """
    if not 0 < share < 1:
        raise UserError(f"share {share} of the stability limit; expected one between 0 and 1, since nothing settles beyond")
    frossl, barlow = (
        torch.log1p(share / top * mode.rate)
        for top, mode in (
            (frossl_curvature(lam, kappa, dimensions=len(lam), shared=shared), frossl_modes(lam, kappa, shared=shared)),
            (barlow_curvature(kappa, shared=shared), barlow_modes(kappa, shared=shared)),
        )
    )
    return barlow / frossl
