"""Modes of two linear networks, compared with autograd, integrated flows, Hessians, and gradient descent."""

import itertools
import math

import pytest
import torch
from dynamics_helpers import close, integrate, moments_from_blocks, orthogonal, seeded_randn, vector
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


BASES = {size: orthogonal(torch.Generator().manual_seed(3), size) for size in (2, 3, 4)}
"""The eigenvectors of the moments: neither the standard basis nor that of the weights."""


def aligned_moments(lam: Tensor, gamma: Tensor, kappa: Tensor) -> Tensor:
    V = BASES[len(lam)]
    G1, C, G2 = ((V * spectrum) @ V.mT for spectrum in (lam, kappa, gamma))
    return moments_from_blocks((G1 + G1.mT) / 2, C, (G2 + G2.mT) / 2)


def aligned_weights(s: Tensor, modes: int) -> Tensor:
    """W_v = diag(s_v) Vᵀ on the first of the modes, for s of one (shared) or two networks."""
    return s[:, :, None] * BASES[modes].mT[: s.shape[1]]


def hessian(objective: TwoViewLoss, W: Tensor, G: Tensor) -> Tensor:
    return torch.autograd.functional.hessian(lambda W: objective.value(W, G), W).reshape(W.numel(), W.numel())


def closed_form(name: str, lam: Tensor, kappa: Tensor, *, shared: bool = False) -> tuple[LogisticModes, float]:
    """The modes of a loss, and the curvature at their limit."""
    if name == "frossl":
        return frossl_modes(lam, kappa, shared=shared), frossl_curvature(lam, kappa, dimensions=len(lam), shared=shared)
    return barlow_modes(kappa, shared=shared), barlow_curvature(kappa, shared=shared)


def frossl_fixed_points(rho: float) -> Tensor:
    """All fixed points (u, v) of one mode of FroSSL, u = √λ s₁, v = √γ s₂, ρ = κ/√(λγ)."""
    plus, minus = math.sqrt((1 + rho) / 2), math.sqrt((1 - rho) / 2)
    half = [(plus, plus)] * (rho > -1) + [(minus, -minus)] * (rho < 1)
    if abs(rho) < 0.5:  # four saddles with uv = −ρ/2 and u² + v² = ½
        total, difference = math.sqrt((1 - 2 * rho) / 2), math.sqrt((1 + 2 * rho) / 2)
        half += [
            ((total + difference) / 2, (total - difference) / 2),
            ((total - difference) / 2, (total + difference) / 2),
        ]
    return torch.tensor([(0.0, 0.0)] + [(sign * u, sign * v) for u, v in half for sign in (1, -1)], dtype=torch.float64)


def singular_value_field(name: str, s: Tensor, lam: Tensor, gamma: Tensor, kappa: Tensor) -> Tensor:
    """The velocity of aligned singular values (2, K), by the equations of the derivation."""
    if name == "barlow":
        return 2 * kappa * s.flip(0) * (1 - kappa * s[0] * s[1])
    spectrum = torch.stack([lam, gamma])
    return 2 * (spectrum * s + kappa * s.flip(0) - 2 * spectrum**2 * s**3)


@both_objectives
def test_aligned_weights_stay_aligned_and_follow_the_vector_field_of_the_modes(name):
    lam, gamma, kappa = vector(3, 2, 1, 0.5), vector(2, 2.5, 1, 0.4), vector(2, 1.5, 0.3, 0.1)
    G, s = aligned_moments(lam, gamma, kappa), seeded_randn(2, 3, seed=5)
    rate = singular_value_field(name, s, lam[:3], gamma[:3], kappa[:3])
    close(LOSSES[name].vector_field(aligned_weights(s, 4), G), aligned_weights(rate, 4))


@both_objectives
@separate_and_shared
def test_closed_form_is_the_integrated_flow_of_the_weights(name, networks):
    lam, kappa, s0 = vector(3, 2, 1, 0.7), vector(2.5, 1, 0.9, 0.2), vector(0.1, -0.2, 1.5)
    G, t = aligned_moments(lam, lam, kappa), torch.linspace(0, 2, 9, dtype=torch.float64)
    modes, _ = closed_form(name, lam[:3], kappa[:3], shared=networks == 1)
    W = integrate(lambda W: LOSSES[name].vector_field(W, G), aligned_weights(s0.expand(networks, 3), 4), t)
    predicted = torch.stack([aligned_weights(s.expand(networks, 3), 4) for s in modes.singular_values(t, s0)])
    torch.testing.assert_close(W, predicted, rtol=1e-8, atol=1e-8)


def test_closed_form_begins_at_s0_and_ends_at_its_fixed_point():
    lam, kappa, s0 = vector(3, 2), vector(3, 1), vector(0.1, -0.2)
    for mode in (frossl_modes(lam, kappa), barlow_modes(kappa)):
        s = mode.singular_values(vector(0, math.inf), s0)
        torch.testing.assert_close(s[0], s0, rtol=1e-12, atol=0)
        torch.testing.assert_close(s[1], s0.sign() * mode.limit.sqrt(), rtol=1e-12, atol=0)
    end = frossl_modes(lam, kappa).limit.sqrt().expand(2, 2)
    assert singular_value_field("frossl", end, lam, lam, kappa).abs().max() < 1e-12
    torch.testing.assert_close(lam * end[0] ** 2, (1 + kappa / lam) / 2)


@pytest.mark.parametrize("make", [lambda: frossl_modes(vector(3, 1), vector(2, 1)), lambda: barlow_modes(vector(2, 1))])
def test_learning_times_are_when_the_fraction_is_reached(make):
    mode: LogisticModes = make()
    for fraction in (0.1, 0.5, 0.9):
        T = mode.learning_times(vector(0.05, 0.1), fraction=fraction)
        reached = mode.singular_values(T, vector(0.05, 0.1)).diagonal() ** 2
        torch.testing.assert_close(reached, fraction * mode.limit)


def test_the_speed_up_tends_to_one_plus_one_over_rho_for_small_weights():
    rho, lam = 0.5, vector(2)
    ratios = [
        (
            barlow_modes(rho * lam).learning_times(vector(s0)) / frossl_modes(lam, rho * lam).learning_times(vector(s0))
        ).item()
        for s0 in (1e-3, 1e-12, 1e-120)
    ]
    errors = [abs(ratio - (1 + 1 / rho)) for ratio in ratios]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.01


@pytest.mark.parametrize("rho", [-1.0, -0.7, -0.3, 0.0, 0.3, 0.49, 0.7, 1.0])
def test_fixed_points_are_zeros_of_the_vector_field_and_two_or_four_are_stable(rho):
    scale = vector(2.0, 0.5)  # λ and γ

    def field(s):
        return singular_value_field("frossl", s[:, None], *scale[:, None], rho * scale.prod().sqrt()[None])[:, 0]

    points = frossl_fixed_points(rho) / scale.sqrt()
    assert (
        len(points)
        == len(torch.unique(points.mul(1e9).round(), dim=0))
        == (9 if abs(rho) < 0.5 else 3 if abs(rho) == 1 else 5)
    )
    assert all(field(point).abs().max() < 1e-12 for point in points)
    stable = [
        bool((torch.linalg.eigvals(torch.autograd.functional.jacobian(field, point)).real < 0).all())
        for point in points
    ]
    assert stable == [False] + [rho > -0.5] * 2 * (rho > -1) + [rho < 0.5] * 2 * (rho < 1) + [False] * 4 * (
        abs(rho) < 0.5
    )


@separate_and_shared
@pytest.mark.parametrize("kappa", [(3, 2, 1, 0.5), (2.9, 0.2, 0.9, 0.1), (0.1, 2, 0.2, 0.5)])
def test_curvature_of_frossl_is_the_largest_eigenvalue_of_its_hessian(networks, kappa):
    lam, kappa, shared = vector(3, 2, 1, 0.5), vector(*kappa), networks == 1
    W = aligned_weights(frossl_modes(lam, kappa).limit.sqrt()[:2].expand(networks, 2), 4)
    H = hessian(FROSSL, W, aligned_moments(lam, lam, kappa))
    assert frossl_curvature(lam, kappa, dimensions=2, shared=shared) == pytest.approx(
        torch.linalg.eigvalsh(H)[-1].item(), rel=1e-10
    )


@separate_and_shared
def test_curvature_of_barlow_is_the_largest_eigenvalue_of_its_hessian(networks):
    kappa = vector(3, 2, 1, 0.5)
    W = aligned_weights(barlow_modes(kappa).limit.sqrt()[:2].expand(networks, 2), 4)
    H = hessian(BARLOW, W, aligned_moments(kappa, kappa, kappa))
    assert barlow_curvature(kappa[:2], shared=networks == 1) == pytest.approx(
        torch.linalg.eigvalsh(H)[-1].item(), rel=1e-10
    )


@both_objectives
def test_descent_approaches_the_closed_form_with_order_one(name):
    lam, s0 = vector(2, 1), vector(0.1, 0.2)
    G, mode = aligned_moments(lam, lam, lam), frossl_modes(lam, lam) if name == "frossl" else barlow_modes(lam)
    exact = mode.singular_values(vector(0.4), s0)[0]
    errors = []
    for steps in (200, 400, 800):
        path = gradient_descent(
            LOSSES[name], aligned_weights(s0.expand(2, 2), 2), G, learning_rate=0.4 / steps, steps=steps, every=steps
        )
        errors.append((path.eigenvalues[-1, 0].sort().values - (lam * exact**2).sort().values).norm().item())
    orders = [math.log2(a / b) for a, b in itertools.pairwise(errors)]
    assert orders == pytest.approx([1, 1], abs=0.05)


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
