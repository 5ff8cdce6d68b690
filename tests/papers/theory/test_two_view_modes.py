"""Modes of two linear networks, compared with autograd, integrated flows, Hessians, and gradient descent."""

import pytest
import torch
from dynamics_helpers import aligned_moments, basis, integrate, moments_from_blocks, vector
from torch import Tensor

from fullrank_papers.theory.two_view import BARLOW, FROSSL, TwoViewLoss, gradient_descent
from fullrank_papers.theory.two_view_modes import (
    LogisticModes,
    barlow_curvature,
    barlow_modes,
    frossl_barlow_step_ratio,
    frossl_curvature,
    frossl_modes,
    steps_to_fraction,
)

LOSSES = {"frossl": FROSSL, "barlow": BARLOW}


both_objectives = pytest.mark.parametrize("name", LOSSES)


separate_and_shared = pytest.mark.parametrize("networks", [2, 1], ids=["separate", "shared"])


def aligned_weights(s: Tensor, modes: int) -> Tensor:
    """W_v = diag(s_v) Vᵀ on the first of the modes, for s of one (shared) or two networks."""
    return s[:, :, None] * basis(modes).mT[: s.shape[1]]


def hessian(objective: TwoViewLoss, W: Tensor, G: Tensor) -> Tensor:
    return torch.autograd.functional.hessian(lambda W: objective.value(W, G), W).reshape(W.numel(), W.numel())


def closed_form(name: str, lam: Tensor, kappa: Tensor, *, shared: bool = False) -> tuple[LogisticModes, float]:
    """The modes of a loss, and the curvature at their limit."""
    if name == "frossl":
        return frossl_modes(lam, kappa, shared=shared), frossl_curvature(lam, kappa, dimensions=len(lam), shared=shared)
    return barlow_modes(kappa, shared=shared), barlow_curvature(kappa, shared=shared)


@both_objectives
@separate_and_shared
def test_closed_form_is_the_integrated_flow_of_the_weights(name, networks):
    lam, kappa, s0 = vector(3, 2, 1, 0.7), vector(2.5, 1, 0.9, 0.2), vector(0.1, -0.2, 1.5)
    G, t = aligned_moments(lam, kappa), torch.linspace(0, 2, 9, dtype=torch.float64)
    modes, _ = closed_form(name, lam[:3], kappa[:3], shared=networks == 1)
    W = integrate(lambda W: LOSSES[name].vector_field(W, G), aligned_weights(s0.expand(networks, 3), 4), t)
    predicted = torch.stack([aligned_weights(s.expand(networks, 3), 4) for s in modes.singular_values(t, s0)])
    torch.testing.assert_close(W, predicted, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("make", [lambda: frossl_modes(vector(3, 1), vector(2, 1)), lambda: barlow_modes(vector(2, 1))])
def test_learning_times_are_when_the_fraction_is_reached(make):
    mode: LogisticModes = make()
    for fraction in (0.1, 0.5, 0.9):
        T = mode.learning_times(vector(0.05, 0.1), fraction=fraction)
        reached = mode.singular_values(T, vector(0.05, 0.1)).diagonal() ** 2
        torch.testing.assert_close(reached, fraction * mode.limit)


@both_objectives
@separate_and_shared
@pytest.mark.parametrize("kappa", [(3, 2, 1, 0.5), (2.9, 0.2, 0.9, 0.1), (0.1, 2, 0.2, 0.5)])
def test_the_curvature_is_the_largest_eigenvalue_of_the_hessian(name, networks, kappa):
    lam, kappa, shared = vector(3, 2, 1, 0.5), vector(*kappa), networks == 1
    if name == "frossl":
        modes, top = frossl_modes(lam, kappa), frossl_curvature(lam, kappa, dimensions=2, shared=shared)
    else:
        kappa = kappa.sort(descending=True).values
        modes, top = barlow_modes(kappa), barlow_curvature(kappa[:2], shared=shared)
    W = aligned_weights(modes.limit.sqrt()[:2].expand(networks, 2), 4)
    H = hessian(LOSSES[name], W, aligned_moments(lam, kappa))
    assert top == pytest.approx(torch.linalg.eigvalsh(H)[-1].item(), rel=1e-10)


def steps_measured(
    objective: TwoViewLoss, W: Tensor, G: Tensor, *, learning_rate: float, levels: Tensor, most: int
) -> Tensor:
    """The first step at which each eigenvalue of view 1, in descending order, has reached its level."""
    reached = gradient_descent(objective, W, G, learning_rate=learning_rate, steps=most).eigenvalues[:, 0] >= levels
    assert reached[-1].all()
    return reached.double().argmax(0).double()


@both_objectives
@pytest.mark.parametrize("share", [0.05, 0.9])
def test_steps_to_fraction_are_those_of_gradient_descent(name, share):
    lam, kappa, s0 = vector(1, 0.5, 0.3), vector(0.9, 0.4, 0.25), vector(1e-4, 1e-4, 1e-4)
    mode, top = closed_form(name, lam, kappa, shared=False)
    G, eta = moments_from_blocks(lam.diag(), kappa.diag(), lam.diag()), 2 * share / top
    predicted = steps_to_fraction(mode, s0, learning_rate=eta)
    W, most = s0.diag().expand(2, 3, 3), int(predicted.max()) + 9
    measured = steps_measured(LOSSES[name], W, G, learning_rate=eta, levels=lam * mode.limit / 2, most=most)
    assert ((measured - predicted).abs() < 2).all()
    if share > 0.1:
        assert ((measured - mode.learning_times(s0) / eta).abs() > 2).any()  # what the flow alone would say


@separate_and_shared
@pytest.mark.parametrize(("share", "kappa"), [(0.3, (0.9, 0.3)), (0.9, (0.9, 0.3)), (0.9, (0.9, 0.05))])
def test_ratio_of_steps_is_that_of_descent_from_small_weights(networks, share, kappa):
    lam, kappa, s0 = vector(1, 0.5), vector(*kappa), 1e-40
    G, steps = moments_from_blocks(lam.diag(), kappa.diag(), lam.diag()), {}
    for name, objective in LOSSES.items():
        mode, top = closed_form(name, lam, kappa, shared=networks == 1)
        W, eta = s0 * torch.eye(2, dtype=torch.float64).expand(networks, 2, 2), 2 * share / top
        most = int(steps_to_fraction(mode, vector(s0, s0), learning_rate=eta).max()) + 9
        levels = (lam * mode.limit / 2).clamp(max=0.5)  # below all limits, whose order need not be that of the modes
        steps[name] = steps_measured(objective, W, G, learning_rate=eta, levels=levels, most=most)
    ratio = frossl_barlow_step_ratio(lam, kappa, share=share, shared=networks == 1)
    torch.testing.assert_close(steps["frossl"] / steps["barlow"], ratio, rtol=0.03, atol=0)
