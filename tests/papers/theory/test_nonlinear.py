"""Nonlinear networks compared with linear ones, against random weights, other quadratures and autograd."""

import math

import pytest
import torch
from dynamics_helpers import close, convergence_order, randn
from scipy.special import roots_jacobi

from fullrank.errors import UserError
from fullrank_papers.theory.flow import gradient
from fullrank_papers.theory.nonlinear import (
    ACTIVATIONS,
    aligned_gain,
    curvature_bound,
    initial_difference,
    outputs,
    tangent_kernel,
    theorem1_bound,
)
from fullrank_papers.theory.objectives import alignment_linear, contrastive_linear
from fullrank_papers.theory.trace import orthonormal_weights

everywhere = pytest.mark.parametrize("activation", ACTIVATIONS)


RATES = {"tanh": -1.5, "shifted_sigmoid": -1.5, "shifted_softplus": -1, "relu": -0.5, "sigmoid": 0}


CURVATURES = {"tanh": 4 / math.sqrt(27), "shifted_sigmoid": 2 / math.sqrt(27), "shifted_softplus": 0.5}


def differences(activation, rng, *, d, h, z, draws, norm=1.5):
    """|u^φ(x) − u^I(x)| at random starts."""
    x = randn(rng, d)
    x *= norm / x.norm()
    starts = [orthonormal_weights(d, hidden=h, outputs=z, generator=rng) for _ in range(draws)]
    return torch.stack([(outputs(*W, x, activation=activation) - outputs(*W, x)).norm() for W in starts])


def rate(values, widths):
    return convergence_order(values, widths)


@everywhere
def test_outputs_are_sums_over_the_units(rng, activation):
    W1, W2, X = (randn(rng, *shape) for shape in ((5, 3), (5, 2), (4, 3)))
    phi = ACTIVATIONS[activation]
    for i, x in enumerate(X):
        for j in range(2):
            naive = sum(W2[k, j] * phi(W1[k] @ x) for k in range(5))
            torch.testing.assert_close(outputs(W1, W2, X, activation=activation)[i, j], naive)


@pytest.mark.parametrize("activation", CURVATURES)
def test_activations_of_the_theorem_have_value_0_slope_1_and_their_curvature(activation):
    a = torch.linspace(-8, 8, 40001, dtype=torch.float64)
    value = ACTIVATIONS[activation](a)
    slope = value.diff() / a.diff()
    assert abs(value[20000]) < 1e-15
    assert slope[19999:20001].mean() == pytest.approx(1, abs=1e-7)
    assert (slope.diff() / a.diff()[0]).abs().max() == pytest.approx(CURVATURES[activation], rel=1e-5)


@everywhere
@pytest.mark.parametrize(("d", "h", "z"), [(2, 6, 1), (5, 9, 3), (20, 30, 2)])
def test_the_difference_at_the_start_is_that_of_random_weights_in_the_mean_square(rng, activation, d, h, z):
    squares = differences(activation, rng, d=d, h=h, z=z, draws=200).square()
    expected = initial_difference(activation, norm=1.5, hidden=h, outputs=z) ** 2
    error = 4 * squares.std() / math.sqrt(len(squares))
    assert squares.mean().item() == pytest.approx(expected, abs=max(error.item(), 1e-15))


@pytest.mark.parametrize("activation", ["tanh", "sigmoid", "shifted_softplus"])
@pytest.mark.parametrize("hidden", [2, 3, 7, 100])
def test_the_quadrature_equals_one_of_another_family(activation, hidden):
    nodes, weights = roots_jacobi(
        60, (hidden - 3) / 2, (hidden - 3) / 2
    )  # the density of a coordinate s is as (1 − s²)^((h−3)/2)
    g = 1.5 * torch.from_numpy(nodes)
    value, mean = ACTIVATIONS[activation](g), lambda f: (f.numpy() @ weights) / weights.sum()
    difference = math.sqrt(2 * mean((value - g) ** 2))
    assert initial_difference(activation, norm=1.5, hidden=hidden, outputs=2) == pytest.approx(difference, rel=1e-9)
    assert aligned_gain(activation, norm=1.5, hidden=hidden) == pytest.approx(
        hidden * mean(g * value) / 1.5**2, rel=1e-9
    )


@pytest.mark.parametrize("activation", RATES)
def test_the_difference_falls_at_the_rate_of_the_activation(activation):
    widths = [1000, 10000, 100000]
    values = [initial_difference(activation, norm=1.0, hidden=h, outputs=2) for h in widths]
    assert rate(values, widths) == pytest.approx(RATES[activation], abs=2e-3)


def test_the_constants_are_those_of_the_expansion():
    z, norm, h = 3, 0.7, 10**6
    leading = {
        "tanh": math.sqrt(15 * z) / 3 * norm**3 * h**-1.5,
        "shifted_sigmoid": math.sqrt(15 * z) / 12 * norm**3 * h**-1.5,
        "shifted_softplus": math.sqrt(3 * z) / 4 * norm**2 / h,
        "relu": math.sqrt(z / 2) * norm * h**-0.5,
        "sigmoid": math.sqrt(z) / 2,
    }
    for activation, value in leading.items():
        assert initial_difference(activation, norm=norm, hidden=h, outputs=z) == pytest.approx(value, rel=1e-4)


def test_relu_stays_at_a_constant_share_of_the_outputs_and_sigmoid_does_not_grow():
    for h in (10, 100, 10000):
        assert initial_difference("relu", norm=2.0, hidden=h, outputs=2) / (2 * math.sqrt(2 / h)) == pytest.approx(
            math.sqrt(1 / 2)
        )
    assert initial_difference("sigmoid", norm=2.0, hidden=2000, outputs=2) < initial_difference(
        "sigmoid", norm=2.0, hidden=10, outputs=2
    )


def test_weights_scaled_with_the_width_stay_nonlinear():
    scaled = [initial_difference("tanh", norm=math.sqrt(h), hidden=h, outputs=1) for h in (100, 10000)]
    assert scaled[1] == pytest.approx(scaled[0], rel=0.01)  # W1 times √h
    assert scaled[1] > 0.4


@pytest.mark.parametrize("activation", CURVATURES)
def test_the_bounds_hold_and_only_ours_falls_faster_than_the_outputs(rng, activation):
    curvature = CURVATURES[activation]
    for h in (10, 100, 1000):
        found = differences(activation, rng, d=4, h=h, z=2, draws=20)
        ours = curvature_bound(norm=1.5, hidden=h, outputs=2, curvature=curvature)
        assert initial_difference(activation, norm=1.5, hidden=h, outputs=2) <= ours
        assert found.max() < theorem1_bound(norm=1.5, inputs=4, hidden=h, curvature=curvature)
    relative = {
        bound: [
            bound(norm=1.5, hidden=h, curvature=curvature, **extra) / (1.5 * math.sqrt(2 / h))
            for h in (10, 1000, 100000)
        ]
        for bound, extra in ((curvature_bound, {"outputs": 2}), (theorem1_bound, {"inputs": 4}))
    }
    assert relative[curvature_bound] == sorted(relative[curvature_bound], reverse=True)
    assert relative[curvature_bound][-1] < 0.01
    assert relative[theorem1_bound] == sorted(relative[theorem1_bound])
    assert relative[theorem1_bound][0] > 1


def test_the_curvature_bound_is_attained_by_a_parabola():
    h, c, norm = 50, 0.3, 1.2
    g = (
        norm
        * torch.nn.functional.normalize(
            torch.randn(20000, h, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        )[:, 0]
    )
    assert math.sqrt(2 * (c / 2 * g**2).square().mean()) == pytest.approx(
        curvature_bound(norm=norm, hidden=h, outputs=2, curvature=c), rel=0.03
    )


@everywhere
def test_aligned_layers_multiply_the_linear_outputs_by_the_gain_in_the_mean(rng, activation):
    x, h, draws = torch.tensor([1.0, -0.5, 0.3], dtype=torch.float64), 12, 2000
    A = torch.linalg.qr(torch.randn(3, 2, dtype=torch.float64, generator=rng)).Q
    first = [orthonormal_weights(3, hidden=h, outputs=1, generator=rng)[0] for _ in range(draws)]
    values = torch.stack([outputs(W1, W1 @ A, x, activation=activation) for W1 in first])
    expected = aligned_gain(activation, norm=x.norm().item(), hidden=h) * (A.mT @ x)
    error = 4 * values.std(0) / math.sqrt(draws) + 1e-12
    assert ((values.mean(0) - expected).abs() < error).all()


def test_after_training_the_rate_of_tanh_is_one_and_the_gain_of_relu_is_a_half():
    widths = [100, 1000, 10000]
    lost = [1 - aligned_gain("tanh", norm=1.0, hidden=h) for h in widths]
    assert rate(lost, widths) == pytest.approx(-1, abs=0.02)
    assert lost[-1] * (widths[-1] + 2) == pytest.approx(1, abs=1e-3)
    assert [aligned_gain("relu", norm=1.0, hidden=h) for h in widths] == pytest.approx([0.5] * 3)
    assert aligned_gain("sigmoid", norm=1.0, hidden=10**6) == pytest.approx(0.25, rel=1e-5)


def test_unknown_activations_and_too_few_units_are_errors():
    with pytest.raises(UserError, match="unknown activation 'tang'"):
        outputs(torch.eye(2), torch.eye(2), torch.eye(2), activation="tang")
    with pytest.raises(UserError, match="hidden = 1"):
        initial_difference("tanh", norm=1.0, hidden=1, outputs=1)
    with pytest.raises(UserError, match="no 3 orthonormal columns"):
        initial_difference("tanh", norm=1.0, hidden=2, outputs=3)


def diagonal(K, z):
    return torch.eye(z, dtype=torch.float64)[:, :, None, None] * K


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_tangent_kernel_has_the_products_of_autograd_gradients(rng, activation):
    W1, W2, X, Y = randn(rng, 5, 3), randn(rng, 5, 2), randn(rng, 4, 3), randn(rng, 3, 3)
    K = tangent_kernel(W1, W2, X, Y, activation=activation)
    slope = lambda x, j: gradient(lambda W: outputs(*W, x, activation=activation)[j], (W1, W2))  # noqa: E731
    for i, x in enumerate(X):
        for k, y in enumerate(Y):
            for a in range(2):
                for b in range(2):
                    close(K[a, b, i, k], sum((f * g).sum() for f, g in zip(slope(x, a), slope(y, b), strict=True)))


@pytest.mark.parametrize("hidden", [4, 6, 50])
def test_orthonormal_linear_layers_have_twice_the_kernel_of_one_at_every_width(rng, hidden):
    X = randn(rng, 5, 4)
    W1, W2 = orthonormal_weights(4, hidden=hidden, outputs=3, generator=rng)
    close(tangent_kernel(W1, W2, X, X), diagonal(2 * X @ X.mT, 3))


def test_the_first_layer_has_its_part_across_outputs_unless_columns_are_orthogonal(rng):
    W1, W2, X = randn(rng, 6, 4), randn(rng, 6, 2), randn(rng, 3, 4)
    K = tangent_kernel(W1, W2, X, X)
    close(K[0, 1], (W2[:, 0] @ W2[:, 1]) * (X @ X.mT))  # the paper's proof has 0
    close(K[1, 1], (W2[:, 1] @ W2[:, 1]) * (X @ X.mT) + X @ W1.mT @ W1 @ X.mT)


def test_gaussian_layers_converge_to_it_with_the_root_of_the_width(rng):
    X = randn(rng, 3, 4)
    limit = diagonal(2 * X @ X.mT, 2)

    def error(hidden):
        draws = [(randn(rng, hidden, 4) / hidden**0.5, randn(rng, hidden, 2) / hidden**0.5) for _ in range(20)]
        return torch.stack([(tangent_kernel(*W, X, X) - limit).square().sum() for W in draws]).mean().sqrt()

    assert error(100) / error(10000) == pytest.approx(10, rel=0.3)


@pytest.mark.parametrize("activation", ["tanh", "shifted_sigmoid"])
def test_wide_networks_of_units_with_value_0_and_slope_1_have_the_linear_kernel_at_the_start(rng, activation):
    X = randn(rng, 3, 4)
    W1, W2 = orthonormal_weights(4, hidden=4000, outputs=2, generator=rng)
    close(tangent_kernel(W1, W2, X, X, activation=activation), diagonal(2 * X @ X.mT, 2), 0.02)
    relu = tangent_kernel(W1, W2, X, X, activation="relu")
    assert (relu[0, 0] - 2 * X @ X.mT).abs().max() > 0.5


@pytest.mark.parametrize("activation", ["linear", "tanh", "relu"])
def test_outputs_move_through_the_kernel_alone_for_any_loss(rng, activation):
    X, new = randn(rng, 3, 5, 4), randn(rng, 2, 4)
    W = randn(rng, 6, 4), randn(rng, 6, 2)
    for loss in (lambda U: sum(contrastive_linear(*U).values()), lambda U: sum(alignment_linear(*U[:2]).values())):
        slopes = gradient(lambda W, loss=loss: loss(outputs(*W, X, activation=activation)), W)
        _, moved = torch.autograd.functional.jvp(
            lambda *W: outputs(*W, new, activation=activation), W, tuple(-G for G in slopes)
        )
        (pull,) = gradient(lambda U, loss=loss: loss(U[0]), (outputs(*W, X, activation=activation),))
        K = tangent_kernel(*W, new, X.flatten(0, 1), activation=activation)
        close(moved, -torch.einsum("ljnm,mj->nl", K, pull.flatten(0, 1)), 1e-10)
