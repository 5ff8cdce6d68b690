"""Nonlinear networks compared with linear ones, against random weights, other quadratures and autograd."""

import math

import pytest
import torch
from dynamics_helpers import convergence_order, randn
from scipy.special import roots_jacobi

from fullrank_papers.theory import nonlinear
from fullrank_papers.theory.trace import orthonormal_weights

everywhere = pytest.mark.parametrize("activation", nonlinear.ACTIVATIONS)


CURVATURES = {"tanh": 4 / math.sqrt(27), "shifted_sigmoid": 2 / math.sqrt(27), "shifted_softplus": 0.5}


def differences(activation, rng, *, d, h, z, draws, norm=1.5):
    """|u^φ(x) − u^I(x)| at random starts."""
    x = randn(rng, d)
    x *= norm / x.norm()
    starts = [orthonormal_weights(d, hidden=h, outputs=z, generator=rng) for _ in range(draws)]
    return torch.stack(
        [(nonlinear.outputs(*W, x, activation=activation) - nonlinear.outputs(*W, x)).norm() for W in starts]
    )


@everywhere
@pytest.mark.parametrize(("d", "h", "z"), [(2, 6, 1), (5, 9, 3), (20, 30, 2)])
def test_the_difference_at_the_start_is_that_of_random_weights_in_the_mean_square(rng, activation, d, h, z):
    squares = differences(activation, rng, d=d, h=h, z=z, draws=200).square()
    expected = nonlinear.initial_difference(activation, norm=1.5, hidden=h, outputs=z) ** 2
    error = 4 * squares.std() / math.sqrt(len(squares))
    assert squares.mean().item() == pytest.approx(expected, abs=max(error.item(), 1e-15))


@pytest.mark.parametrize("activation", ["tanh", "sigmoid", "shifted_softplus"])
@pytest.mark.parametrize("hidden", [2, 3, 7, 100])
def test_the_quadrature_equals_one_of_another_family(activation, hidden):
    nodes, weights = roots_jacobi(
        60, (hidden - 3) / 2, (hidden - 3) / 2
    )  # the density of a coordinate s is as (1 − s²)^((h−3)/2)
    g = 1.5 * torch.from_numpy(nodes)
    value, mean = nonlinear.ACTIVATIONS[activation](g), lambda f: (f.numpy() @ weights) / weights.sum()
    difference = math.sqrt(2 * mean((value - g) ** 2))
    assert nonlinear.initial_difference(activation, norm=1.5, hidden=hidden, outputs=2) == pytest.approx(
        difference, rel=1e-9
    )
    assert nonlinear.aligned_gain(activation, norm=1.5, hidden=hidden) == pytest.approx(
        hidden * mean(g * value) / 1.5**2, rel=1e-9
    )


@pytest.mark.parametrize("activation", CURVATURES)
def test_the_bounds_hold_and_only_ours_falls_faster_than_the_outputs(rng, activation):
    curvature = CURVATURES[activation]
    for h in (10, 100, 1000):
        found = differences(activation, rng, d=4, h=h, z=2, draws=20)
        ours = nonlinear.curvature_bound(norm=1.5, hidden=h, outputs=2, curvature=curvature)
        assert nonlinear.initial_difference(activation, norm=1.5, hidden=h, outputs=2) <= ours
        assert found.max() < nonlinear.theorem1_bound(norm=1.5, inputs=4, hidden=h, curvature=curvature)
    relative = {
        bound: [
            bound(norm=1.5, hidden=h, curvature=curvature, **extra) / (1.5 * math.sqrt(2 / h))
            for h in (10, 1000, 100000)
        ]
        for bound, extra in ((nonlinear.curvature_bound, {"outputs": 2}), (nonlinear.theorem1_bound, {"inputs": 4}))
    }
    assert relative[nonlinear.curvature_bound] == sorted(relative[nonlinear.curvature_bound], reverse=True)
    assert relative[nonlinear.curvature_bound][-1] < 0.01
    assert relative[nonlinear.theorem1_bound] == sorted(relative[nonlinear.theorem1_bound])
    assert relative[nonlinear.theorem1_bound][0] > 1


@everywhere
def test_aligned_layers_multiply_the_linear_outputs_by_the_gain_in_the_mean(rng, activation):
    x, h, draws = torch.tensor([1.0, -0.5, 0.3], dtype=torch.float64), 12, 2000
    A = torch.linalg.qr(torch.randn(3, 2, dtype=torch.float64, generator=rng)).Q
    first = [orthonormal_weights(3, hidden=h, outputs=1, generator=rng)[0] for _ in range(draws)]
    values = torch.stack([nonlinear.outputs(W1, W1 @ A, x, activation=activation) for W1 in first])
    expected = nonlinear.aligned_gain(activation, norm=x.norm().item(), hidden=h) * (A.mT @ x)
    error = 4 * values.std(0) / math.sqrt(draws) + 1e-12
    assert ((values.mean(0) - expected).abs() < error).all()


def test_after_training_the_rate_of_tanh_is_one_and_the_gain_of_relu_is_a_half():
    widths = [100, 1000, 10000]
    lost = [1 - nonlinear.aligned_gain("tanh", norm=1.0, hidden=h) for h in widths]
    assert convergence_order(lost, widths) == pytest.approx(-1, abs=0.02)
    assert lost[-1] * (widths[-1] + 2) == pytest.approx(1, abs=1e-3)
    assert [nonlinear.aligned_gain("relu", norm=1.0, hidden=h) for h in widths] == pytest.approx([0.5] * 3)
    assert nonlinear.aligned_gain("sigmoid", norm=1.0, hidden=10**6) == pytest.approx(0.25, rel=1e-5)
