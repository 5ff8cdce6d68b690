import pytest
import torch
from torch import Tensor

from fullrank.dynamics.two_view import BARLOW, FROSSL, TwoViewLoss, gradient_descent, join_moments, moments
from fullrank.dynamics.two_view_modes import (
    LogisticModes,
    aligned,
    barlow_curvature,
    barlow_modes,
    curvature,
    frossl_barlow_step_ratio,
    frossl_curvature,
    frossl_modes,
    steps_to_fraction,
)
from fullrank.errors import UserError

OBJECTIVES = {"frossl": FROSSL, "barlow": BARLOW}
both_objectives = pytest.mark.parametrize("name", OBJECTIVES)
separate_and_shared = pytest.mark.parametrize("networks", [2, 1], ids=["separate", "shared"])


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def vector(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def diagonal_moments(lam: Tensor, kappa: Tensor) -> Tensor:
    return join_moments(lam.diag(), kappa.diag(), lam.diag())


def modes(name: str, lam: Tensor, kappa: Tensor, *, shared: bool) -> tuple[LogisticModes, float]:
    if name == "frossl":
        return frossl_modes(lam, kappa, shared=shared), frossl_curvature(lam, kappa, dimensions=len(lam), shared=shared)
    return barlow_modes(kappa, shared=shared), barlow_curvature(kappa, shared=shared)


def steps_measured(objective: TwoViewLoss, W: Tensor, G: Tensor, *, learning_rate: float, levels: Tensor, most: int) -> Tensor:
    """The first step at which each eigenvalue of view 1, in descending order, has reached its level."""
    reached = gradient_descent(objective, W, G, learning_rate=learning_rate, steps=most).eigenvalues[:, 0] >= levels
    assert reached[-1].all()
    return reached.double().argmax(0).double()


@both_objectives
@separate_and_shared
def test_curvature_is_the_largest_eigenvalue_of_the_hessian(name, networks):
    objective, G, W = OBJECTIVES[name], moments(normal(2, 20, 5) / 4), normal(networks, 3, 5, seed=1)
    H = torch.autograd.functional.hessian(lambda W: objective.loss(W, G), W).reshape(W.numel(), W.numel())
    assert curvature(objective, W, G) == pytest.approx(torch.linalg.eigvalsh(H)[-1].item(), rel=1e-10)


@both_objectives
@separate_and_shared
def test_curvature_at_aligned_fixed_points_is_the_closed_form(name, networks):
    lam, kappa = vector(3, 2, 1), vector(2.9, 1, 0.9)
    mode, top = modes(name, lam, kappa, shared=networks == 1)
    W = mode.limit.sqrt().diag().expand(networks, 3, 3)
    assert curvature(OBJECTIVES[name], W, diagonal_moments(lam, kappa)) == pytest.approx(top, rel=1e-10)


def test_at_its_own_stability_limit_barlow_needs_fewer_steps_though_its_flow_is_slower():
    # section 5.1's comparison is at equal learning rate, where FroSSL needs half the steps
    lam = vector(1, 0.5)
    G = diagonal_moments(lam, lam)
    W = aligned(G).weights(0.01 * torch.ones(2, 2, dtype=torch.float64))

    def steps(objective, learning_rate):
        path = gradient_descent(objective, W, G, learning_rate=learning_rate, steps=1000).eigenvalues[:, 0, -1]
        return int((path > 0.9).nonzero()[0])

    ratio = steps(BARLOW, 0.02) / steps(FROSSL, 0.02)
    assert ratio == pytest.approx(2, abs=0.1)
    frossl = steps(FROSSL, 0.9 * 2 / frossl_curvature(lam, lam, dimensions=2))
    assert steps(BARLOW, 0.9 * 2 / barlow_curvature(lam)) < frossl


@both_objectives
@pytest.mark.parametrize("share", [0.05, 0.9])
def test_steps_are_those_of_descent(name, share):
    lam, kappa, s0 = vector(1, 0.5, 0.3), vector(0.9, 0.4, 0.25), vector(1e-4, 1e-4, 1e-4)
    mode, top = modes(name, lam, kappa, shared=False)
    G, eta = diagonal_moments(lam, kappa), 2 * share / top
    predicted = steps_to_fraction(mode, s0, learning_rate=eta)
    W, most = aligned(G).weights(s0.expand(2, 3)), int(predicted.max()) + 9
    measured = steps_measured(OBJECTIVES[name], W, G, learning_rate=eta, levels=lam * mode.limit / 2, most=most)
    assert ((measured - predicted).abs() < 2).all()
    if share > 0.1:
        assert ((measured - mode.step_times(s0) / eta).abs() > 2).any()  # what the flow alone would say


def test_steps_at_small_learning_rates_are_the_time_of_the_flow():
    mode, s0 = frossl_modes(vector(2, 1), vector(1, 1)), vector(1e-3, 1e-2)
    torch.testing.assert_close(1e-6 * steps_to_fraction(mode, s0, learning_rate=1e-6), mode.step_times(s0), rtol=1e-5, atol=0)


@separate_and_shared
@pytest.mark.parametrize(("share", "kappa"), [(0.3, (0.9, 0.3)), (0.9, (0.9, 0.3)), (0.9, (0.9, 0.05))])
def test_ratio_of_steps_is_that_of_descent_from_small_weights(networks, share, kappa):
    lam, kappa, s0 = vector(1, 0.5), vector(*kappa), 1e-40
    G, steps = diagonal_moments(lam, kappa), {}
    for name, objective in OBJECTIVES.items():
        mode, top = modes(name, lam, kappa, shared=networks == 1)
        W, eta = s0 * torch.eye(2, dtype=torch.float64).expand(networks, 2, 2), 2 * share / top
        most = int(steps_to_fraction(mode, vector(s0, s0), learning_rate=eta).max()) + 9
        levels = (lam * mode.limit / 2).clamp(max=0.5)  # below all limits, whose order need not be that of the modes
        steps[name] = steps_measured(objective, W, G, learning_rate=eta, levels=levels, most=most)
    ratio = frossl_barlow_step_ratio(lam, kappa, share=share, shared=networks == 1)
    torch.testing.assert_close(steps["frossl"] / steps["barlow"], ratio, rtol=0.03, atol=0)


@separate_and_shared
def test_frossl_never_needs_fewer_steps_with_one_correlation_and_may_with_several(networks):
    lam, shared = vector(5, 1, 0.1), networks == 1
    for rho in (0.05, 0.5, 1.0):
        for share in (0.01, 0.5, 0.99):
            assert frossl_barlow_step_ratio(lam, rho * lam, share=share, shared=shared).min() > 1 - 1e-12
    assert frossl_barlow_step_ratio(lam, vector(5, 0.1, 0.1), share=0.5, shared=shared)[1] < 0.5


@pytest.mark.parametrize("rho", [0.1, 0.5, 1.0])
def test_at_a_small_share_the_ratio_of_steps_depends_on_the_correlation_alone(rho):
    lam = vector(5, 1, 0.1)
    ratio = frossl_barlow_step_ratio(lam, rho * lam, share=1e-6)
    torch.testing.assert_close(ratio, (1 + 2 * rho) / (1 + rho) * torch.ones(3, dtype=torch.float64), rtol=1e-5, atol=0)
    shared = frossl_barlow_step_ratio(lam, rho * lam, share=0.9, shared=True)
    torch.testing.assert_close(shared, torch.ones(3, dtype=torch.float64))


def test_a_share_beyond_the_stability_limit_is_refused():
    with pytest.raises(UserError, match=r"share 1.0 of the stability limit; expected one between 0 and 1"):
        frossl_barlow_step_ratio(vector(1), vector(1), share=1.0)
