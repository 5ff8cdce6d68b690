import itertools
import math

import pytest
import torch
from scipy.integrate import solve_ivp
from torch import Tensor

from fullrank.dynamics.two_view import (
    BARLOW,
    FROSSL,
    barlow_field,
    descend,
    eigenvalues,
    frossl_field,
    frossl_loss,
    frossl_optimum,
    join_moments,
    moments,
    small_weights,
)
from fullrank.dynamics.two_view_modes import (
    Mode,
    aligned,
    barlow_curvature,
    barlow_mode,
    barlow_modes,
    frossl_curvature,
    frossl_fixed_points,
    frossl_mode,
    frossl_modes,
    frossl_shared_mode,
)
from fullrank.errors import UserError
from fullrank.objectives.theory import barlow_linear, frossl_linear

ACTUAL = {"frossl": (FROSSL, frossl_linear), "barlow": (BARLOW, barlow_linear)}
both_objectives = pytest.mark.parametrize("name", ACTUAL)
separate_and_shared = pytest.mark.parametrize("networks", [2, 1], ids=["separate", "shared"])


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64)


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
@separate_and_shared
def test_loss_from_moments_and_flow_are_those_of_the_loss_of_embeddings(name, networks):
    objective, actual = ACTUAL[name]
    X, W = normal(2, 20, 6) / 4, normal(networks, 3, 6, seed=1).requires_grad_()
    loss = sum(actual(X @ W.mT).values())
    (gradient,) = torch.autograd.grad(loss, W)
    torch.testing.assert_close(objective.loss(W.detach(), moments(X)), loss.detach(), rtol=1e-12, atol=0)
    torch.testing.assert_close(objective.field(W.detach(), moments(X)), -gradient, rtol=1e-12, atol=1e-12)


def test_the_printed_flow_of_frossl_is_not_the_gradient_and_lets_weights_decay():
    # eq. 12: without the minus of the descent, the linear terms have the wrong sign and the cross term a factor of 2
    G, W = moments(normal(2, 20, 6) / 4), 0.1 * normal(2, 3, 6, seed=1)

    def printed(W):
        A1, A2 = W[0] @ G[0, 0], W[1] @ G[1, 1]
        first = -2 * A1 - 4 * W[1] @ G[1, 0] - 4 * A1 @ W[0].mT @ A1
        return torch.stack([first, -2 * A2 - 4 * W[0] @ G[0, 1] - 4 * A2 @ W[1].mT @ A2])

    assert (printed(W) - frossl_field(W, G)).norm() > frossl_field(W, G).norm()
    assert (printed(W) * W).sum() < 0 < (frossl_field(W, G) * W).sum()


def test_moments_are_the_same_from_data_and_from_their_blocks():
    X = normal(2, 20, 4)
    torch.testing.assert_close(join_moments(X[0].T @ X[0], X[0].T @ X[1], X[1].T @ X[1]), moments(X))


@both_objectives
def test_aligned_weights_stay_aligned_and_follow_the_flow_of_the_modes(name):
    lam, gamma, kappa = vector(3, 2, 1, 0.5), vector(2, 2.5, 1, 0.4), vector(2, 1.5, 0.3, 0.1)
    basis, s = aligned(aligned_moments(lam, gamma, kappa)), normal(2, 3, seed=5)
    G = aligned_moments(lam, gamma, kappa)
    rate = frossl_modes(s, lam[:3], gamma[:3], kappa[:3]) if name == "frossl" else barlow_modes(s, kappa[:3])
    torch.testing.assert_close(ACTUAL[name][0].field(basis.weights(s), G), basis.weights(rate), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(torch.stack([basis.lam, basis.gamma, basis.kappa]), torch.stack([lam, gamma, kappa]))


def test_weights_with_different_left_singular_vectors_rotate_at_once():
    # proposition D.1 needs U₁ = U₂
    G = aligned_moments(vector(3, 2, 1), vector(3, 2, 1), vector(2, 1, 0.5))
    W = aligned(G).weights(vector(0.3, 0.2).expand(2, 2))
    W = torch.stack([W[0], orthogonal(2) @ W[1]])
    moved = W[0] + 1e-3 * frossl_field(W, G)[0]
    assert (moved @ G[0, 0] @ moved.mT)[0, 1].abs() > 1e-5


@both_objectives
@separate_and_shared
def test_closed_form_is_the_integrated_flow_of_the_weights(name, networks):
    lam, kappa, s0 = vector(3, 2, 1, 0.7), vector(2.5, 1, 0.9, 0.2), vector(0.1, -0.2, 1.5)
    G, t = aligned_moments(lam, lam, kappa), torch.linspace(0, 2, 9, dtype=torch.float64)
    basis, shared = aligned(G), networks == 1
    mode = frossl_mode(lam[:3], kappa[:3], shared=shared) if name == "frossl" else barlow_mode(kappa[:3], shared=shared)
    W = integrated(lambda W: ACTUAL[name][0].field(W, G), basis.weights(s0.expand(networks, 3)), t)
    predicted = torch.stack([basis.weights(s.expand(networks, 3)) for s in mode.singular_values(t, s0)])
    torch.testing.assert_close(W, predicted, rtol=1e-8, atol=1e-8)


def test_closed_form_of_shared_weights_holds_for_asymmetric_spectra():
    lam, gamma, kappa, s0 = vector(3, 1), vector(2, 1.5), vector(1, -0.5), vector(0.1, -0.2)
    G, t = aligned_moments(lam, gamma, kappa), torch.linspace(0, 2, 9, dtype=torch.float64)
    basis, mode = aligned(G), frossl_shared_mode(lam, gamma, kappa)
    W = integrated(lambda W: frossl_field(W, G), basis.weights(s0[None]), t)
    predicted = torch.stack([basis.weights(s[None]) for s in mode.singular_values(t, s0)])
    torch.testing.assert_close(W, predicted, rtol=1e-8, atol=1e-8)
    same = frossl_mode(lam, kappa, shared=True)
    torch.testing.assert_close(frossl_shared_mode(lam, lam, kappa).limit, same.limit)
    torch.testing.assert_close(frossl_shared_mode(lam, lam, kappa).rate, same.rate)


def test_closed_form_begins_at_s0_and_ends_at_its_fixed_point():
    lam, kappa, s0 = vector(3, 2), vector(3, 1), vector(0.1, -0.2)
    for mode in (frossl_mode(lam, kappa), barlow_mode(kappa)):
        s = mode.singular_values(vector(0, math.inf), s0)
        torch.testing.assert_close(s[0], s0, rtol=1e-12, atol=0)
        torch.testing.assert_close(s[1], s0.sign() * mode.limit.sqrt(), rtol=1e-12, atol=0)
    end = frossl_mode(lam, kappa).limit.sqrt().expand(2, 2)
    assert frossl_modes(end, lam, lam, kappa).abs().max() < 1e-12
    torch.testing.assert_close(lam * end[0] ** 2, (1 + kappa / lam) / 2)


def test_without_noise_the_closed_form_is_the_one_of_the_true_equation_and_not_the_printed_one():
    lam, t = vector(1), vector(0.5, 1, 3)
    s = frossl_mode(lam, lam).singular_values(t, vector(0.1))[:, 0]
    torch.testing.assert_close(s, vector(0.5962, 0.9838, 1.0), rtol=0, atol=5e-5)
    torch.testing.assert_close(s**2, 1 / (1 + 99 * torch.exp(-8 * t)))
    assert s.diff().min() > 0  # eq. 18 gives .0365, .0134, 2.5e-4


@pytest.mark.parametrize("make", [lambda: frossl_mode(vector(3, 1), vector(2, 1)), lambda: barlow_mode(vector(2, 1))])
def test_step_time_is_when_the_fraction_is_reached(make):
    mode: Mode = make()
    for fraction in (0.1, 0.5, 0.9):
        T = mode.step_time(vector(0.05, 0.1), fraction=fraction)
        reached = mode.singular_values(T, vector(0.05, 0.1)).diagonal() ** 2
        torch.testing.assert_close(reached, fraction * mode.limit)


@pytest.mark.parametrize("shared", [False, True])
def test_barlow_takes_exactly_twice_the_time_without_noise(shared):
    lam, s0 = vector(5, 1, 0.1), vector(0.3, 0.1, 1e-4)
    for fraction in (0.1, 0.9):
        slow, fast = (
            mode.step_time(s0, fraction=fraction) for mode in (barlow_mode(lam, shared=shared), frossl_mode(lam, lam, shared=shared))
        )
        torch.testing.assert_close(slow / fast, 2 * torch.ones(3, dtype=torch.float64), rtol=1e-12, atol=0)


def test_the_speed_up_tends_to_one_plus_one_over_rho_for_small_weights():
    rho, lam = 0.5, vector(2)
    ratios = [
        (barlow_mode(rho * lam).step_time(vector(s0)) / frossl_mode(lam, rho * lam).step_time(vector(s0))).item()
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
        return frossl_modes(s[:, None], vector(lam), vector(gamma), vector(kappa))[:, 0]

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
        s = s - torch.linalg.solve(growth, frossl_modes(s, lam * ones, gamma * ones, kappa * ones).mT).mT
    distances = (s.mT[:, None] - points).norm(dim=-1)
    assert distances.min(1).values.max() < 1e-9
    assert set(distances.argmin(1).tolist()) == set(range(9))


def test_asymmetric_spectra_end_at_the_fixed_point_but_not_with_equal_singular_values():
    lam, gamma, kappa = vector(2), vector(0.5), vector(0.6)
    s = integrated(lambda s: frossl_modes(s, lam, gamma, kappa), vector(0.1, 0.1)[:, None], vector(0, 0.2, 40))[:, :, 0]
    points, stable = frossl_fixed_points(2.0, 0.5, 0.6)
    torch.testing.assert_close(s[-1], points[stable][0], rtol=1e-8, atol=1e-8)
    assert (s[1, 0] - s[1, 1]).abs() > 1e-3


def test_barlow_conserves_the_difference_of_squares():
    kappa, s0 = vector(2, 1), torch.stack([vector(0.1, 0.5), vector(0.4, -0.1)])
    s = integrated(lambda s: barlow_modes(s, kappa), s0, vector(0, 1, 5))
    difference = s[:, 0] ** 2 - s[:, 1] ** 2
    torch.testing.assert_close(difference, difference[:1].expand(3, 2), rtol=0, atol=1e-10)
    torch.testing.assert_close(kappa * s[-1, 0] * s[-1, 1], torch.ones(2, dtype=torch.float64), rtol=0, atol=1e-4)


def test_barlow_conserves_the_difference_of_norms_of_any_weights():
    G, W = moments(normal(2, 20, 5) / 4), normal(2, 3, 5, seed=1)
    trajectory = integrated(lambda W: barlow_field(W, G), W, vector(0, 0.5, 1))
    difference = trajectory.square().sum((2, 3)).diff(dim=1)
    torch.testing.assert_close(difference, difference[:1].expand(3, 1), rtol=0, atol=1e-10)


@separate_and_shared
@pytest.mark.parametrize("kappa", [(3, 2, 1, 0.5), (2.9, 0.2, 0.9, 0.1), (0.1, 2, 0.2, 0.5)])
def test_curvature_of_frossl_is_the_largest_eigenvalue_of_its_hessian(networks, kappa):
    lam, kappa, shared = vector(3, 2, 1, 0.5), vector(*kappa), networks == 1
    V = orthogonal(4)
    W = frossl_mode(lam, kappa).limit.sqrt()[:2].expand(networks, 2)[:, :, None] * V.mT[:2]
    H = hessian(FROSSL, W, aligned_moments(lam, lam, kappa))
    assert frossl_curvature(lam, kappa, dimensions=2, shared=shared) == pytest.approx(torch.linalg.eigvalsh(H)[-1].item(), rel=1e-10)


@separate_and_shared
def test_curvature_of_barlow_is_the_largest_eigenvalue_of_its_hessian(networks):
    kappa = vector(3, 2, 1, 0.5)
    W = barlow_mode(kappa).limit.sqrt()[:2].expand(networks, 2)[:, :, None] * orthogonal(4).mT[:2]
    H = hessian(BARLOW, W, aligned_moments(kappa, kappa, kappa))
    assert barlow_curvature(kappa[:2], shared=networks == 1) == pytest.approx(torch.linalg.eigvalsh(H)[-1].item(), rel=1e-10)


@both_objectives
def test_descent_settles_below_the_stable_learning_rate_and_not_above(name):
    lam = vector(2, 1)
    G = aligned_moments(lam, lam, lam)
    curvature = frossl_curvature(lam, lam, dimensions=2) if name == "frossl" else barlow_curvature(lam)
    W = aligned(G).weights(lam.rsqrt().expand(2, 2)) + 1e-6 * normal(2, 2, 2)
    below, above = (
        descend(ACTUAL[name][0], W, G, learning_rate=share * 2 / curvature, steps=300, every=300).loss for share in (0.95, 1.05)
    )
    assert below[-1] < below[0] * 1e-2
    assert above[-1] > above[0] * 1e2


def test_at_its_own_stability_limit_barlow_needs_fewer_steps_though_its_flow_is_slower():
    # section 5.1's comparison is at equal learning rate, where FroSSL needs half the steps
    lam = vector(1, 0.5)
    G = aligned_moments(lam, lam, lam)
    W = aligned(G).weights(0.01 * torch.ones(2, 2, dtype=torch.float64))

    def steps(objective, learning_rate):
        path = descend(objective, W, G, learning_rate=learning_rate, steps=2000).eigenvalues[:, 0, -1]
        return int((path > 0.9).nonzero()[0])

    ratio = steps(BARLOW, 0.01) / steps(FROSSL, 0.01)
    assert ratio == pytest.approx(2, abs=0.1)
    frossl = steps(FROSSL, 0.9 * 2 / frossl_curvature(lam, lam, dimensions=2))
    assert steps(BARLOW, 0.9 * 2 / barlow_curvature(lam)) < frossl


@both_objectives
def test_descent_approaches_the_closed_form_with_order_one(name):
    lam, s0 = vector(2, 1), vector(0.1, 0.2)
    G, mode = aligned_moments(lam, lam, lam), frossl_mode(lam, lam) if name == "frossl" else barlow_mode(lam)
    exact = mode.singular_values(vector(0.4), s0)[0]
    errors = []
    for steps in (200, 400, 800):
        path = descend(ACTUAL[name][0], aligned(G).weights(s0.expand(2, 2)), G, learning_rate=0.4 / steps, steps=steps, every=steps)
        errors.append((path.eigenvalues[-1, 0].sort().values - (lam * exact**2).sort().values).norm().item())
    orders = [math.log2(a / b) for a, b in itertools.pairwise(errors)]
    assert orders == pytest.approx([1, 1], abs=0.05)


def test_descent_records_loss_and_eigenvalues_of_the_embeddings():
    X, W = normal(2, 20, 5) / 4, small_weights(generator(1), networks=2, dimensions=3, inputs=5, scale=0.1)
    path = descend(FROSSL, W, moments(X), learning_rate=1e-2, steps=7, every=3)
    torch.testing.assert_close(path.t, vector(0, 0.03, 0.06, 0.07))
    Z = X @ path.W.mT
    torch.testing.assert_close(path.loss[-1], sum(frossl_linear(Z).values()))
    torch.testing.assert_close(path.eigenvalues[-1], torch.linalg.svdvals(Z) ** 2)
    torch.testing.assert_close(path.eigenvalues[0], eigenvalues(W, moments(X)))


def test_small_weights_learn_one_mode_after_another_at_the_times_of_the_closed_form():
    lam, scale = vector(4, 2, 1, 0.1), 1e-4
    G = aligned_moments(lam, lam, lam)
    W = small_weights(generator(2), networks=2, dimensions=3, inputs=4, scale=scale)
    path = descend(FROSSL, W, G, learning_rate=2e-3, steps=3000)
    measured = vector(*(path.t[(path.eigenvalues[:, 0, j] > 0.5).nonzero()[0, 0]].item() for j in range(3)))
    # the size of each mode at the start is random: only the order of scale counts, an error of ln(factor of s₀²)/rate
    predicted = frossl_mode(lam[:3], lam[:3]).step_time(vector(scale, scale, scale) / 2)
    assert ((measured - predicted).abs() < math.log(25) / (8 * lam[:3])).all()


@pytest.mark.parametrize("correlated", [True, False])
def test_optimum_is_stationary_and_its_loss_is_that_of_the_canonical_correlations(correlated):
    X = normal(2, 30, 5) * vector(3, 2, 1, 0.5, 0.2) / 5
    X[1] = X[0] + 0.3 * X[1] if correlated else X[1]
    G = moments(X)
    W, rho = frossl_optimum(G, dimensions=3)
    assert frossl_field(W, G).abs().max() < 1e-11
    torch.testing.assert_close(frossl_loss(W, G), ((1 - rho) * (3 + rho) / 2).sum())
    Q = torch.linalg.qr(X).Q  # canonical correlations are the cosines of the principal angles
    torch.testing.assert_close(rho, torch.linalg.svdvals(Q[0].T @ Q[1])[:3])


def test_descent_from_small_weights_reaches_the_optimum():
    X = normal(2, 30, 4) * vector(1.5, 1.2, 1, 0.8) / 5
    X[1] = X[0] + 0.3 * X[1]
    G = moments(X)
    W, _ = frossl_optimum(G, dimensions=2)
    start = small_weights(generator(1), networks=2, dimensions=2, inputs=4, scale=1e-2)
    trained = descend(FROSSL, start, G, learning_rate=0.03, steps=20000, every=20000)
    torch.testing.assert_close(trained.loss[-1], frossl_loss(W, G), rtol=1e-8, atol=0)
    cosines = torch.linalg.svdvals(torch.linalg.qr(W[0].mT).Q.mT @ torch.linalg.qr(trained.W[0].mT).Q)
    assert cosines.min() > 1 - 1e-6


def test_shared_eigenvectors_of_both_variances_do_not_align_the_views():
    X = normal(2, 30, 3)
    X = X @ torch.linalg.inv(torch.linalg.cholesky(X.mT @ X)).mT  # both variances are I, G₁₂ is not symmetric
    with pytest.raises(UserError, match=r"no basis diagonalises .* use the flow in the weights"):
        aligned(moments(X))


def test_mistakes_are_named():
    W, G, one = normal(2, 3, 5), moments(normal(2, 20, 5)), vector(1)
    with pytest.raises(UserError, match=r"G2 is not symmetric .* but XᵀX is"):
        join_moments(torch.eye(3), torch.eye(3), torch.eye(3).cumsum(0))
    with pytest.raises(UserError, match=r"weights of 3 networks; give a tensor \(2, D, M\)"):
        frossl_field(normal(3, 3, 5), G)
    with pytest.raises(UserError, match=r"weights of 4 inputs and moments of 5"):
        barlow_field(normal(2, 3, 4), G)
    with pytest.raises(UserError, match=r"κ outside"):
        frossl_mode(one, 2 * one)
    with pytest.raises(UserError, match=r"λ \+ γ \+ 2κ is not positive"):
        frossl_shared_mode(one, one, -one)
    with pytest.raises(UserError, match=r"κ = -1; balanced modes"):
        barlow_mode(-one)
    with pytest.raises(UserError, match=r"\|κ\| ≤ √\(λγ\)"):
        frossl_fixed_points(1.0, 1.0, 1.5)
    with pytest.raises(UserError, match=r"fraction 1.0; expected one between 0 and 1"):
        barlow_mode(one).step_time(0.1 * one, fraction=1.0)
    with pytest.raises(UserError, match=r"starts at or above its fixed point"):
        barlow_mode(one).step_time(2 * one)
    with pytest.raises(UserError, match=r"2 dimensions and 1 modes"):
        frossl_curvature(one, one, dimensions=2)
    with pytest.raises(UserError, match=r"6 dimensions of data of rank 5"):
        frossl_optimum(G, dimensions=6)
    with pytest.raises(UserError, match=r"descent diverged by step 100 at learning rate 1.0; choose one below"):
        descend(FROSSL, W, G, learning_rate=1.0, steps=100, every=100)
