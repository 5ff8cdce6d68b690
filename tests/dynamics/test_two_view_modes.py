import itertools
import math

import pytest
import torch
from scipy.integrate import solve_ivp
from torch import Tensor

from fullrank.dynamics.two_view import (
    BARLOW,
    FROSSL,
    frossl_loss,
    frossl_vector_field,
    gradient_descent,
    join_moments,
    moments,
    small_random_weights,
)
from fullrank.dynamics.two_view_modes import (
    LogisticModes,
    aligned,
    barlow_curvature,
    barlow_mode_vector_field,
    barlow_modes,
    frossl_curvature,
    frossl_fixed_points,
    frossl_mode_vector_field,
    frossl_modes,
    frossl_shared_mode,
)
from fullrank.errors import UserError

ACTUAL = {"frossl": FROSSL, "barlow": BARLOW}
both_objectives = pytest.mark.parametrize("name", ACTUAL)
separate_and_shared = pytest.mark.parametrize("networks", [2, 1], ids=["separate", "shared"])


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def vector(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def orthogonal(size: int, seed: int = 3) -> Tensor:
    return torch.linalg.qr(normal(size, size, seed=seed)).Q


def aligned_moments(lam: Tensor, gamma: Tensor, kappa: Tensor) -> Tensor:
    V = orthogonal(len(lam))
    G1, C, G2 = ((V * spectrum) @ V.mT for spectrum in (lam, kappa, gamma))
    return join_moments((G1 + G1.mT) / 2, C, (G2 + G2.mT) / 2)


def integrated(rhs, y0: Tensor, t: Tensor) -> Tensor:
    """The solution of y' = rhs(y) at the times t, of shape (T, *y0.shape)."""
    flow = lambda _, y: rhs(torch.from_numpy(y).reshape(y0.shape)).flatten().numpy()  # noqa: E731
    span = (0.0, t[-1].item())
    y = solve_ivp(flow, span, y0.flatten().numpy(), method="DOP853", t_eval=t.numpy(), rtol=1e-12, atol=1e-14).y
    return torch.from_numpy(y.T.copy()).reshape(-1, *y0.shape)


def hessian(objective, W: Tensor, G: Tensor) -> Tensor:
    H = torch.autograd.functional.hessian(lambda W: objective.loss(W, G), W)
    return H.reshape(W.numel(), W.numel())


@both_objectives
def test_aligned_weights_stay_aligned_and_follow_the_flow_of_the_modes(name):
    lam, gamma, kappa = vector(3, 2, 1, 0.5), vector(2, 2.5, 1, 0.4), vector(2, 1.5, 0.3, 0.1)
    basis, s = aligned(aligned_moments(lam, gamma, kappa)), normal(2, 3, seed=5)
    G = aligned_moments(lam, gamma, kappa)
    rate = frossl_mode_vector_field(s, lam[:3], gamma[:3], kappa[:3]) if name == "frossl" else barlow_mode_vector_field(s, kappa[:3])
    torch.testing.assert_close(ACTUAL[name].vector_field(basis.weights(s), G), basis.weights(rate), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(torch.stack([basis.lam, basis.gamma, basis.kappa]), torch.stack([lam, gamma, kappa]))


def test_weights_with_different_left_singular_vectors_rotate_at_once():
    # proposition D.1 needs U₁ = U₂
    G = aligned_moments(vector(3, 2, 1), vector(3, 2, 1), vector(2, 1, 0.5))
    W = aligned(G).weights(vector(0.3, 0.2).expand(2, 2))
    W = torch.stack([W[0], orthogonal(2) @ W[1]])
    moved = W[0] + 1e-3 * frossl_vector_field(W, G)[0]
    assert (moved @ G[0, 0] @ moved.mT)[0, 1].abs() > 1e-5


@both_objectives
@separate_and_shared
def test_closed_form_is_the_integrated_flow_of_the_weights(name, networks):
    lam, kappa, s0 = vector(3, 2, 1, 0.7), vector(2.5, 1, 0.9, 0.2), vector(0.1, -0.2, 1.5)
    G, t = aligned_moments(lam, lam, kappa), torch.linspace(0, 2, 9, dtype=torch.float64)
    basis, shared = aligned(G), networks == 1
    mode = frossl_modes(lam[:3], kappa[:3], shared=shared) if name == "frossl" else barlow_modes(kappa[:3], shared=shared)
    W = integrated(lambda W: ACTUAL[name].vector_field(W, G), basis.weights(s0.expand(networks, 3)), t)
    predicted = torch.stack([basis.weights(s.expand(networks, 3)) for s in mode.singular_values(t, s0)])
    torch.testing.assert_close(W, predicted, rtol=1e-8, atol=1e-8)


def test_closed_form_of_shared_weights_holds_for_asymmetric_spectra():
    lam, gamma, kappa, s0 = vector(3, 1), vector(2, 1.5), vector(1, -0.5), vector(0.1, -0.2)
    G, t = aligned_moments(lam, gamma, kappa), torch.linspace(0, 2, 9, dtype=torch.float64)
    basis, mode = aligned(G), frossl_shared_mode(lam, gamma, kappa)
    W = integrated(lambda W: frossl_vector_field(W, G), basis.weights(s0[None]), t)
    predicted = torch.stack([basis.weights(s[None]) for s in mode.singular_values(t, s0)])
    torch.testing.assert_close(W, predicted, rtol=1e-8, atol=1e-8)
    same = frossl_modes(lam, kappa, shared=True)
    torch.testing.assert_close(frossl_shared_mode(lam, lam, kappa).limit, same.limit)
    torch.testing.assert_close(frossl_shared_mode(lam, lam, kappa).rate, same.rate)


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
def test_step_time_is_when_the_fraction_is_reached(make):
    mode: LogisticModes = make()
    for fraction in (0.1, 0.5, 0.9):
        T = mode.step_times(vector(0.05, 0.1), fraction=fraction)
        reached = mode.singular_values(T, vector(0.05, 0.1)).diagonal() ** 2
        torch.testing.assert_close(reached, fraction * mode.limit)


@pytest.mark.parametrize("shared", [False, True])
def test_barlow_takes_exactly_twice_the_time_without_noise(shared):
    lam, s0 = vector(5, 1, 0.1), vector(0.3, 0.1, 1e-4)
    for fraction in (0.1, 0.9):
        slow, fast = (
            mode.step_times(s0, fraction=fraction) for mode in (barlow_modes(lam, shared=shared), frossl_modes(lam, lam, shared=shared))
        )
        torch.testing.assert_close(slow / fast, 2 * torch.ones(3, dtype=torch.float64), rtol=1e-12, atol=0)


def test_the_speed_up_tends_to_one_plus_one_over_rho_for_small_weights():
    rho, lam = 0.5, vector(2)
    ratios = [
        (barlow_modes(rho * lam).step_times(vector(s0)) / frossl_modes(lam, rho * lam).step_times(vector(s0))).item()
        for s0 in (1e-3, 1e-12, 1e-120)
    ]
    errors = [abs(ratio - (1 + 1 / rho)) for ratio in ratios]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.01


@pytest.mark.parametrize("rho", [-1.0, -0.7, -0.3, 0.0, 0.3, 0.49, 0.7, 1.0])
def test_fixed_points_are_zeros_of_the_flow_and_their_stability_is_that_of_the_flow(rho):
    lam, gamma = 2.0, 0.5
    kappa = rho * math.sqrt(lam * gamma)
    points, stable = frossl_fixed_points(lam, gamma, kappa)

    def rhs(s):
        return frossl_mode_vector_field(s[:, None], vector(lam), vector(gamma), vector(kappa))[:, 0]

    assert len(points) == len(torch.unique(points.mul(1e9).round(), dim=0)) == (9 if abs(rho) < 0.5 else 3 if abs(rho) == 1 else 5)
    assert stable.sum() == (4 if abs(rho) < 0.5 else 2)
    for point, is_stable in zip(points, stable, strict=True):
        assert rhs(point).abs().max() < 1e-12
        growth = torch.linalg.eigvals(torch.autograd.functional.jacobian(rhs, point)).real
        assert bool((growth < 0).all()) == bool(is_stable)


def test_fixed_points_are_all_that_random_starts_of_newtons_method_find():
    lam, gamma, kappa = 2.0, 0.5, 0.3
    points, _ = frossl_fixed_points(lam, gamma, kappa)
    s = 2 * normal(2, 400)
    for _ in range(100):
        growth = torch.full((400, 2, 2), 2 * kappa, dtype=torch.float64)
        growth[:, 0, 0], growth[:, 1, 1] = 2 * lam - 12 * lam**2 * s[0] ** 2, 2 * gamma - 12 * gamma**2 * s[1] ** 2
        ones = torch.ones(400, dtype=torch.float64)
        s = s - torch.linalg.solve(growth, frossl_mode_vector_field(s, lam * ones, gamma * ones, kappa * ones).mT).mT
    distances = (s.mT[:, None] - points).norm(dim=-1)
    assert distances.min(1).values.max() < 1e-9
    assert set(distances.argmin(1).tolist()) == set(range(9))


def test_asymmetric_spectra_end_at_the_fixed_point_but_not_with_equal_singular_values():
    lam, gamma, kappa = vector(2), vector(0.5), vector(0.6)
    s = integrated(lambda s: frossl_mode_vector_field(s, lam, gamma, kappa), vector(0.1, 0.1)[:, None], vector(0, 0.2, 40))[:, :, 0]
    points, stable = frossl_fixed_points(2.0, 0.5, 0.6)
    torch.testing.assert_close(s[-1], points[stable][0], rtol=1e-8, atol=1e-8)
    assert (s[1, 0] - s[1, 1]).abs() > 1e-3


def test_barlow_conserves_the_difference_of_squares():
    kappa, s0 = vector(2, 1), torch.stack([vector(0.1, 0.5), vector(0.4, -0.1)])
    s = integrated(lambda s: barlow_mode_vector_field(s, kappa), s0, vector(0, 1, 5))
    difference = s[:, 0] ** 2 - s[:, 1] ** 2
    torch.testing.assert_close(difference, difference[:1].expand(3, 2), rtol=0, atol=1e-10)
    torch.testing.assert_close(kappa * s[-1, 0] * s[-1, 1], torch.ones(2, dtype=torch.float64), rtol=0, atol=1e-4)


@separate_and_shared
@pytest.mark.parametrize("kappa", [(3, 2, 1, 0.5), (2.9, 0.2, 0.9, 0.1), (0.1, 2, 0.2, 0.5)])
def test_curvature_of_frossl_is_the_largest_eigenvalue_of_its_hessian(networks, kappa):
    lam, kappa, shared = vector(3, 2, 1, 0.5), vector(*kappa), networks == 1
    V = orthogonal(4)
    W = frossl_modes(lam, kappa).limit.sqrt()[:2].expand(networks, 2)[:, :, None] * V.mT[:2]
    H = hessian(FROSSL, W, aligned_moments(lam, lam, kappa))
    assert frossl_curvature(lam, kappa, dimensions=2, shared=shared) == pytest.approx(torch.linalg.eigvalsh(H)[-1].item(), rel=1e-10)


@separate_and_shared
def test_curvature_of_barlow_is_the_largest_eigenvalue_of_its_hessian(networks):
    kappa = vector(3, 2, 1, 0.5)
    W = barlow_modes(kappa).limit.sqrt()[:2].expand(networks, 2)[:, :, None] * orthogonal(4).mT[:2]
    H = hessian(BARLOW, W, aligned_moments(kappa, kappa, kappa))
    assert barlow_curvature(kappa[:2], shared=networks == 1) == pytest.approx(torch.linalg.eigvalsh(H)[-1].item(), rel=1e-10)


@both_objectives
def test_descent_settles_below_the_stable_learning_rate_and_not_above(name):
    lam = vector(2, 1)
    G = aligned_moments(lam, lam, lam)
    curvature = frossl_curvature(lam, lam, dimensions=2) if name == "frossl" else barlow_curvature(lam)
    W = aligned(G).weights(lam.rsqrt().expand(2, 2)) + 1e-6 * normal(2, 2, 2)
    below, above = (
        gradient_descent(ACTUAL[name], W, G, learning_rate=share * 2 / curvature, steps=300, every=300).loss for share in (0.95, 1.05)
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
        path = gradient_descent(ACTUAL[name], aligned(G).weights(s0.expand(2, 2)), G, learning_rate=0.4 / steps, steps=steps, every=steps)
        errors.append((path.eigenvalues[-1, 0].sort().values - (lam * exact**2).sort().values).norm().item())
    orders = [math.log2(a / b) for a, b in itertools.pairwise(errors)]
    assert orders == pytest.approx([1, 1], abs=0.05)


def test_shared_eigenvectors_of_both_variances_do_not_align_the_views():
    X = normal(2, 30, 3)
    X = X @ torch.linalg.inv(torch.linalg.cholesky(X.mT @ X)).mT  # both variances are I, G₁₂ is not symmetric
    with pytest.raises(UserError, match=r"no basis diagonalises .* use the flow in the weights"):
        aligned(moments(X))


def flipped(lam: Tensor, rho: Tensor, flips: tuple[int, ...]) -> Tensor:
    """Aligned weights of two networks at a fixed point, in the basis of the modes: (s, −s) for the modes `flips`, (s, s) for the others."""
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
        ((0.3, 0.3, 0.3), (1,), 2, False),  # a mode that is not learnt yet takes over
        ((0.3, 0.3, 0.3), (), 3, True),
    ],
)
def test_a_flip_is_a_minimum_only_of_the_least_correlated_mode_below_a_half_with_all_modes_learnt(rho, flips, dimensions, is_minimum):
    lam, rho = vector(3, 2, 1), vector(*rho)
    G = join_moments(lam.diag(), (rho * lam).diag(), lam.diag())
    W = flipped(lam, rho, flips)[:, :dimensions]
    assert frossl_vector_field(W, G).abs().max() < 1e-12
    assert bool(torch.linalg.eigvalsh(hessian(FROSSL, W, G))[0] > -1e-10) == is_minimum
    if flips and is_minimum:
        assert frossl_loss(W, G) > frossl_loss(flipped(lam, rho, ()), G) + 0.1


def test_small_random_weights_do_not_end_at_a_flipped_minimum():
    lam, rho = vector(1, 0.8, 0.6), vector(0.6, 0.5, 0.4)
    G = join_moments(lam.diag(), (rho * lam).diag(), lam.diag())
    least = ((1 - rho) * (3 + rho) / 2).sum()
    for seed in range(10):
        W = small_random_weights(torch.Generator().manual_seed(seed), networks=2, dimensions=3, inputs=3, scale=1e-3)
        path = gradient_descent(FROSSL, W, G, learning_rate=0.2, steps=400, every=400)
        torch.testing.assert_close(path.loss[-1], least, rtol=1e-6, atol=0)


def test_a_learnt_mode_gives_way_to_one_that_is_better_correlated():
    # the (+) direction of mode k, in the embedding of mode j, grows by 2λ_k(ρ_k − ρ_j): the end is canonical correlation analysis
    lam, rho = vector(2, 1), vector(0.5, 0.8)
    G = join_moments(lam.diag(), (rho * lam).diag(), lam.diag())
    W = flipped(lam, rho, ())[:, :1]
    direction = vector(0, 1).expand(2, 1, 2)
    _, growth = torch.autograd.functional.jvp(lambda W: frossl_vector_field(W, G), W, direction)
    torch.testing.assert_close(growth, 2 * lam[1] * (rho[1] - rho[0]) * direction)


def test_mistakes_are_named():
    one = vector(1)
    with pytest.raises(UserError, match=r"κ outside"):
        frossl_modes(one, 2 * one)
    with pytest.raises(UserError, match=r"λ \+ γ \+ 2κ is not positive"):
        frossl_shared_mode(one, one, -one)
    with pytest.raises(UserError, match=r"κ = -1; balanced modes"):
        barlow_modes(-one)
    with pytest.raises(UserError, match=r"\|κ\| ≤ √\(λγ\)"):
        frossl_fixed_points(1.0, 1.0, 1.5)
    with pytest.raises(UserError, match=r"fraction 1.0; expected one between 0 and 1"):
        barlow_modes(one).step_times(0.1 * one, fraction=1.0)
    with pytest.raises(UserError, match=r"starts at or above its fixed point"):
        barlow_modes(one).step_times(2 * one)
    with pytest.raises(UserError, match=r"2 dimensions and 1 modes"):
        frossl_curvature(one, one, dimensions=2)
