"""Modes of two linear networks, compared with autograd, integrated flows, Hessians, and gradient descent."""

import itertools
import math

import pytest
import torch
from dynamics_helpers import close, integrate, moments_from_blocks, orthogonal, seeded_randn, vector
from torch import Tensor

from fullrank.errors import UserError
from fullrank_papers.theory.two_view import (
    BARLOW,
    FROSSL,
    TwoViewLoss,
    frossl_loss,
    frossl_vector_field,
    gradient_descent,
    moments,
    small_random_weights,
)
from fullrank_papers.theory.two_view_modes import (
    LogisticModes,
    barlow_curvature,
    barlow_mode_vector_field,
    barlow_modes,
    curvature,
    frossl_barlow_step_ratio,
    frossl_curvature,
    frossl_mode_vector_field,
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


@both_objectives
def test_aligned_weights_stay_aligned_and_follow_the_vector_field_of_the_modes(name):
    lam, gamma, kappa = vector(3, 2, 1, 0.5), vector(2, 2.5, 1, 0.4), vector(2, 1.5, 0.3, 0.1)
    G, s = aligned_moments(lam, gamma, kappa), seeded_randn(2, 3, seed=5)
    rate = (
        frossl_mode_vector_field(s, lam[:3], gamma[:3], kappa[:3])
        if name == "frossl"
        else barlow_mode_vector_field(s, kappa[:3])
    )
    close(LOSSES[name].vector_field(aligned_weights(s, 4), G), aligned_weights(rate, 4))


def test_weights_with_different_left_singular_vectors_rotate():
    # proposition D.1 needs U₁ = U₂
    G = aligned_moments(vector(3, 2, 1), vector(3, 2, 1), vector(2, 1, 0.5))
    W = aligned_weights(vector(0.3, 0.2).expand(2, 2), 3)
    W = torch.stack([W[0], BASES[2] @ W[1]])
    moved = W[0] + 1e-3 * frossl_vector_field(W, G)[0]
    assert (moved @ G[0, 0] @ moved.mT)[0, 1].abs() > 1e-5


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
    assert frossl_mode_vector_field(end, lam, lam, kappa).abs().max() < 1e-12
    torch.testing.assert_close(lam * end[0] ** 2, (1 + kappa / lam) / 2)


def test_without_noise_the_closed_form_is_the_one_of_the_true_equation_and_not_the_printed_one():
    lam, t = vector(1), vector(0.5, 1, 3)
    s = frossl_modes(lam, lam).singular_values(t, vector(0.1))[:, 0]
    torch.testing.assert_close(s, vector(0.5962, 0.9838, 1.0), rtol=0, atol=5e-5)
    torch.testing.assert_close(s**2, 1 / (1 + 99 * torch.exp(-8 * t)))
    assert s.diff().min() > 0  # eq. 18 gives .0365, .0134, 2.5e-4


@pytest.mark.parametrize("make", [lambda: frossl_modes(vector(3, 1), vector(2, 1)), lambda: barlow_modes(vector(2, 1))])
def test_learning_times_are_when_the_fraction_is_reached(make):
    mode: LogisticModes = make()
    for fraction in (0.1, 0.5, 0.9):
        T = mode.learning_times(vector(0.05, 0.1), fraction=fraction)
        reached = mode.singular_values(T, vector(0.05, 0.1)).diagonal() ** 2
        torch.testing.assert_close(reached, fraction * mode.limit)


@pytest.mark.parametrize("shared", [False, True])
def test_barlow_takes_exactly_twice_the_time_without_noise(shared):
    lam, s0 = vector(5, 1, 0.1), vector(0.3, 0.1, 1e-4)
    for fraction in (0.1, 0.9):
        slow, fast = (
            mode.learning_times(s0, fraction=fraction)
            for mode in (barlow_modes(lam, shared=shared), frossl_modes(lam, lam, shared=shared))
        )
        torch.testing.assert_close(slow / fast, 2 * torch.ones(3, dtype=torch.float64), rtol=1e-12, atol=0)


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
        return frossl_mode_vector_field(s[:, None], scale[:1], scale[1:], rho * scale.prod().sqrt()[None])[:, 0]

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


def test_fixed_points_are_all_that_random_starts_of_newtons_method_find():
    lam, gamma, kappa = 2.0, 0.5, 0.3
    points = frossl_fixed_points(kappa) / vector(lam, gamma).sqrt()
    s = 2 * seeded_randn(2, 400)
    for _ in range(100):
        jacobian = torch.full((400, 2, 2), 2 * kappa, dtype=torch.float64)
        jacobian[:, 0, 0], jacobian[:, 1, 1] = 2 * lam - 12 * lam**2 * s[0] ** 2, 2 * gamma - 12 * gamma**2 * s[1] ** 2
        ones = torch.ones(400, dtype=torch.float64)
        s = s - torch.linalg.solve(jacobian, frossl_mode_vector_field(s, lam * ones, gamma * ones, kappa * ones).mT).mT
    distances = (s.mT[:, None] - points).norm(dim=-1)
    assert distances.min(1).values.max() < 1e-9
    assert set(distances.argmin(1).tolist()) == set(range(9))


def test_asymmetric_spectra_end_at_the_fixed_point_but_not_with_equal_singular_values():
    lam, gamma, kappa = vector(2), vector(0.5), vector(0.6)
    s = integrate(
        lambda s: frossl_mode_vector_field(s, lam, gamma, kappa), vector(0.1, 0.1)[:, None], vector(0, 0.2, 40)
    )[:, :, 0]
    close(s[-1], frossl_fixed_points(0.6)[1] / torch.cat([lam, gamma]).sqrt(), 1e-8)
    assert (s[1, 0] - s[1, 1]).abs() > 1e-3


def test_barlow_conserves_the_difference_of_squares():
    kappa, s0 = vector(2, 1), torch.stack([vector(0.1, 0.5), vector(0.4, -0.1)])
    s = integrate(lambda s: barlow_mode_vector_field(s, kappa), s0, vector(0, 1, 5))
    difference = s[:, 0] ** 2 - s[:, 1] ** 2
    torch.testing.assert_close(difference, difference[:1].expand(3, 2), rtol=0, atol=1e-10)
    torch.testing.assert_close(kappa * s[-1, 0] * s[-1, 1], torch.ones(2, dtype=torch.float64), rtol=0, atol=1e-4)


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
def test_gradient_descent_converges_below_the_stability_limit_only(name):
    lam = vector(2, 1)
    G = aligned_moments(lam, lam, lam)
    curvature = frossl_curvature(lam, lam, dimensions=2) if name == "frossl" else barlow_curvature(lam)
    W = aligned_weights(lam.rsqrt().expand(2, 2), 2) + 1e-6 * seeded_randn(2, 2, 2)
    below, above = (
        gradient_descent(LOSSES[name], W, G, learning_rate=share * 2 / curvature, steps=300, every=300).loss
        for share in (0.95, 1.05)
    )
    assert below[-1] < below[0] * 1e-2
    assert above[-1] > above[0] * 1e2


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


def test_shared_eigenvectors_of_both_variances_do_not_align_the_views():
    X = seeded_randn(2, 30, 3)
    G = moments(X @ torch.linalg.inv(torch.linalg.cholesky(X.mT @ X)).mT)  # every basis diagonalises G₁₁ = G₂₂ = I
    close(G[[0, 1], [0, 1]], torch.eye(3, dtype=torch.float64).expand(2, 3, 3))
    assert (G[0, 1] - G[0, 1].mT).abs().max() > 0.1  # but no orthogonal basis diagonalises G₁₂, which is not symmetric


def flipped(lam: Tensor, rho: Tensor, flips: tuple[int, ...]) -> Tensor:
    """Aligned weights of two networks at a fixed point, in the basis of the modes: (s, −s) for the modes `flips`, (s,
    s) for the others."""
    sign = torch.ones(len(lam), dtype=torch.float64)
    sign[list(flips)] = -1
    s = ((1 + sign * rho) / (2 * lam)).sqrt()
    return torch.stack([s.diag(), (sign * s).diag()])


@pytest.mark.parametrize(
    ("rho", "flips", "dimensions", "is_minimum"),
    [
        ((0.3, 0.3, 0.3), (1,), 3, True),
        ((0.9, 0.8, 0.3), (2,), 3, True),
        ((0.9, 0.8, 0.55), (2,), 3, False),  # its own mode is unstable from ρ = ½ on
        ((0.4, 0.3, 0.2), (1,), 3, False),  # the flip moves on to the least correlated mode
        ((0.3, 0.3, 0.3), (0, 1), 3, False),  # two flips are turned away, as a rotation by π
        ((0.3, 0.3, 0.3), (1,), 2, False),  # a mode that is not learned yet takes over
        ((0.3, 0.3, 0.3), (), 3, True),
    ],
)
def test_a_flip_is_a_minimum_only_of_the_least_correlated_mode_below_a_half_with_all_modes_learned(
    rho, flips, dimensions, is_minimum
):
    lam, rho = vector(3, 2, 1), vector(*rho)
    G = moments_from_blocks(lam.diag(), (rho * lam).diag(), lam.diag())
    W = flipped(lam, rho, flips)[:, :dimensions]
    assert frossl_vector_field(W, G).abs().max() < 1e-12
    assert bool(torch.linalg.eigvalsh(hessian(FROSSL, W, G))[0] > -1e-10) == is_minimum
    if flips and is_minimum:
        assert frossl_loss(W, G) > frossl_loss(flipped(lam, rho, ()), G) + 0.1


def test_small_random_weights_do_not_end_at_a_flipped_minimum():
    lam, rho = vector(1, 0.8, 0.6), vector(0.6, 0.5, 0.4)
    G = moments_from_blocks(lam.diag(), (rho * lam).diag(), lam.diag())
    least = ((1 - rho) * (3 + rho) / 2).sum()
    for seed in range(10):
        W = small_random_weights(torch.Generator().manual_seed(seed), networks=2, dimensions=3, inputs=3, scale=1e-3)
        path = gradient_descent(FROSSL, W, G, learning_rate=0.2, steps=400, every=400)
        torch.testing.assert_close(path.loss[-1], least, rtol=1e-6, atol=0)


def test_a_learned_mode_is_replaced_by_one_that_is_better_correlated():
    # the (+) direction of mode k, in the embedding of mode j, grows by 2λ_k(ρ_k − ρ_j): the end is canonical
    # correlation analysis
    lam, rho = vector(2, 1), vector(0.5, 0.8)
    G = moments_from_blocks(lam.diag(), (rho * lam).diag(), lam.diag())
    W = flipped(lam, rho, ())[:, :1]
    direction = vector(0, 1).expand(2, 1, 2)
    _, growth = torch.autograd.functional.jvp(lambda W: frossl_vector_field(W, G), W, direction)
    torch.testing.assert_close(growth, 2 * lam[1] * (rho[1] - rho[0]) * direction)


def test_impossible_modes_fractions_and_shares_are_errors():
    one = vector(1)
    with pytest.raises(UserError, match="κ is outside"):
        frossl_modes(one, 2 * one)
    with pytest.raises(UserError, match="κ = -1"):
        barlow_modes(-one)
    with pytest.raises(UserError, match="fraction is 1"):
        barlow_modes(one).learning_times(0.1 * one, fraction=1.0)
    with pytest.raises(UserError, match="above its fixed point"):
        barlow_modes(one).learning_times(2 * one)
    with pytest.raises(UserError, match="exceeds the 1 modes"):
        frossl_curvature(one, one, dimensions=2)
    with pytest.raises(UserError, match="share is 1"):
        frossl_barlow_step_ratio(one, one, share=1.0)


def steps_measured(
    objective: TwoViewLoss, W: Tensor, G: Tensor, *, learning_rate: float, levels: Tensor, most: int
) -> Tensor:
    """The first step at which each eigenvalue of view 1, in descending order, has reached its level."""
    reached = gradient_descent(objective, W, G, learning_rate=learning_rate, steps=most).eigenvalues[:, 0] >= levels
    assert reached[-1].all()
    return reached.double().argmax(0).double()


@both_objectives
@separate_and_shared
def test_curvature_is_the_largest_eigenvalue_of_the_hessian(name, networks):
    objective, G, W = LOSSES[name], moments(seeded_randn(2, 20, 5) / 4), seeded_randn(networks, 3, 5, seed=1)
    assert curvature(objective, W, G) == pytest.approx(
        torch.linalg.eigvalsh(hessian(objective, W, G))[-1].item(), rel=1e-10
    )


def test_at_its_own_stability_limit_barlow_needs_fewer_steps_though_its_flow_is_slower():
    # section 5.1's comparison is at equal learning rate, where FroSSL needs half the steps
    lam = vector(1, 0.5)
    G = moments_from_blocks(lam.diag(), lam.diag(), lam.diag())
    W = 0.01 * torch.eye(2, dtype=torch.float64).expand(2, 2, 2)

    def steps(objective, learning_rate):
        path = gradient_descent(objective, W, G, learning_rate=learning_rate, steps=1000).eigenvalues[:, 0, -1]
        return int((path > 0.9).nonzero()[0])

    ratio = steps(BARLOW, 0.02) / steps(FROSSL, 0.02)
    assert ratio == pytest.approx(2, abs=0.1)
    frossl = steps(FROSSL, 0.9 * 2 / frossl_curvature(lam, lam, dimensions=2))
    assert steps(BARLOW, 0.9 * 2 / barlow_curvature(lam)) < frossl


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


def test_steps_at_small_learning_rates_are_the_time_of_the_flow():
    mode, s0 = frossl_modes(vector(2, 1), vector(1, 1)), vector(1e-3, 1e-2)
    torch.testing.assert_close(
        1e-6 * steps_to_fraction(mode, s0, learning_rate=1e-6), mode.learning_times(s0), rtol=1e-5, atol=0
    )


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


@separate_and_shared
@pytest.mark.parametrize("rho", [1.0, 0.7, 0.3, 0.05])
def test_from_weights_of_a_thousandth_the_ratio_of_steps_is_that_of_descent_to_half_of_each_limit(networks, rho):
    lam, s0, shared, steps = vector(1, 0.5), 1e-3, networks == 1, {}
    kappa, share = rho * lam, 0.1
    G = moments_from_blocks(lam.diag(), kappa.diag(), lam.diag())
    for name, objective in LOSSES.items():
        mode, top = closed_form(name, lam, kappa, shared=shared)
        W, eta = s0 * torch.eye(2, dtype=torch.float64).expand(networks, 2, 2), 2 * share / top
        most = int(steps_to_fraction(mode, vector(s0, s0), learning_rate=eta).max()) + 9
        steps[name] = steps_measured(objective, W, G, learning_rate=eta, levels=lam * mode.limit / 2, most=most)
    measured = steps["frossl"] / steps["barlow"]
    ratio = frossl_barlow_step_ratio(lam, kappa, share=share, s0=vector(s0, s0), shared=shared)
    torch.testing.assert_close(measured, ratio, rtol=0.03, atol=0)
    if shared and rho < 1:
        assert measured.max() < 0.98  # FroSSL needs fewer steps
    elif rho > 0.1:
        assert measured.min() > 0.97
    else:
        assert measured.max() < 0.9


@separate_and_shared
def test_with_one_correlation_frossl_needs_as_many_steps_or_more_in_the_limit_of_small_weights_only(networks):
    lam, shared = vector(5, 1, 0.1), networks == 1
    for rho in (0.05, 0.5, 1.0):
        for share in (0.01, 0.5, 0.99):
            limit = frossl_barlow_step_ratio(lam, rho * lam, share=share, shared=shared)
            assert limit.min() > 1 - 1e-12
            near = [
                frossl_barlow_step_ratio(lam, rho * lam, share=share, s0=vector(s, s, s), shared=shared)
                for s in (1e-3, 1e-30, 1e-150)
            ]
            assert ((near[0] <= near[1] + 1e-12) & (near[1] <= near[2] + 1e-12) & (near[2] <= limit + 1e-12)).all()
            if rho == 1:
                torch.testing.assert_close(near[0], limit)  # exact for every start
    assert frossl_barlow_step_ratio(lam, 0.05 * lam, share=0.1, s0=vector(1e-3, 1e-3, 1e-3), shared=True).max() < 0.9
    assert frossl_barlow_step_ratio(lam, vector(5, 0.1, 0.1), share=0.5, shared=shared)[1] < 0.5


@pytest.mark.parametrize("rho", [0.1, 0.5, 1.0])
def test_at_a_small_share_the_ratio_of_steps_depends_on_the_correlation_alone(rho):
    lam = vector(5, 1, 0.1)
    ratio = frossl_barlow_step_ratio(lam, rho * lam, share=1e-6)
    torch.testing.assert_close(ratio, (1 + 2 * rho) / (1 + rho) * torch.ones(3, dtype=torch.float64), rtol=1e-5, atol=0)
    shared = frossl_barlow_step_ratio(lam, rho * lam, share=0.9, shared=True)
    torch.testing.assert_close(shared, torch.ones(3, dtype=torch.float64))
