"""Networks under InfoNCE: vector fields against autograd of the loss, and what their flows conserve."""

import math

import pytest
import torch

from fullrank.dynamics.flow import gradient_flow
from fullrank.dynamics.infonce import (
    driven_vector_field,
    driving_matrix,
    embedding_vector_field,
    imbalances,
    linear_vector_field,
    relu_vector_field,
    softmax_weights,
    weighted_covariances,
)
from fullrank.errors import UserError
from fullrank.objectives import infonce_squared

DEPTHS = {"one": [(3, 5)], "two": [(4, 5), (3, 4)], "two wide": [(7, 5), (6, 7)], "four": [(4, 5), (6, 4), (3, 6), (4, 3)]}
every_depth = pytest.mark.parametrize("shapes", DEPTHS.values(), ids=DEPTHS.keys())


def randn(rng, *shape):
    return torch.randn(*shape, generator=rng, dtype=torch.float64)


def vector(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)


def pairs(rng, n=8, m=5):
    x = randn(rng, n, m)
    return torch.stack([x, x + 0.5 * randn(rng, n, m)])


def layers(rng, shapes):
    return [randn(rng, *shape) / 2 for shape in shapes]


def symmetric(rng, m):
    X = randn(rng, m, m)
    return X + X.mT


def loss(Z):
    return sum(infonce_squared(Z).values())


def relu_network(weights, x):
    for W in weights[:-1]:
        x = (x @ W.mT).relu()
    return x @ weights[-1].mT


def linear_network(weights, x):
    for W in weights:
        x = x @ W.mT
    return x


def descent(network, weights, x):
    weights = [W.clone().requires_grad_() for W in weights]
    return [-g for g in torch.autograd.grad(loss(network(weights, x)), weights)]


def distance(actual, expected):
    actual, expected = torch.cat([a.flatten() for a in actual]), torch.cat([e.flatten() for e in expected])
    return ((actual - expected).norm() / expected.norm()).item()


def test_softmax_weights_are_the_shares_of_the_denominators_written_as_loops(rng):
    z, positive = Z = pairs(rng, n=5, m=3)
    for i, row in enumerate(softmax_weights(Z)):
        terms = [math.exp(-sum((z[i] - (positive[i] if j == i else z[j])) ** 2) / 2) for j in range(5)]
        assert row.tolist() == pytest.approx([term / sum(terms) for term in terms], rel=1e-13)


def test_softmax_weights_survive_distances_that_no_exponential_holds(rng):
    alpha = softmax_weights(1e3 * pairs(rng))
    assert alpha.isfinite().all()
    assert alpha.sum(1).tolist() == pytest.approx([1.0] * 8)


def test_embeddings_move_against_the_gradient_of_the_loss(rng):
    Z = pairs(rng).requires_grad_()
    (gradient,) = torch.autograd.grad(loss(Z), Z)
    assert distance([embedding_vector_field(Z.detach())], [-gradient]) < 1e-12


def test_driving_matrix_is_eq_6_and_lemma_2_written_as_loops(rng):
    x, positive = views = pairs(rng)
    alpha = softmax_weights(pairs(rng))
    first, data, augmentation = torch.zeros(3, 5, 5, dtype=torch.float64)
    for i in range(8):
        shift = positive[i] - x[i]
        first -= (1 - alpha[i, i]) * torch.outer(shift, positive[i])
        augmentation += (1 - alpha[i, i]) * torch.outer(shift, shift)
        for j in range(8):
            data += alpha[i, j] * torch.outer(x[i] - x[j], x[i] - x[j])
            if j != i:
                first += torch.outer(alpha[i, j] * (positive[i] - x[j]) + alpha[j, i] * (x[i] - x[j]), x[i])
    assert distance(weighted_covariances(views, alpha), [data, augmentation]) < 1e-13
    assert distance([driving_matrix(views, alpha)], [first]) < 1e-13


def test_driving_matrix_loses_no_digits_to_a_distant_mean(rng):
    views, alpha = pairs(rng), softmax_weights(pairs(rng))
    assert distance([driving_matrix(views + 1e6, alpha)], [driving_matrix(views, alpha)]) < 1e-8


def test_uniform_weights_make_sums_that_are_2n_covariances_of_the_data(rng):
    x = pairs(rng)
    data, _ = weighted_covariances(x, torch.full((8, 8), 1 / 8, dtype=torch.float64))
    torch.testing.assert_close(data, 2 * 8 * torch.cov(x[0].mT, correction=0))


@every_depth
def test_linear_layers_move_against_the_gradient_of_the_loss(rng, shapes):
    weights, x = layers(rng, shapes), pairs(rng)
    assert distance(linear_vector_field(weights, x), descent(linear_network, weights, x)) < 1e-12


@every_depth
def test_relu_layers_move_against_the_gradient_of_the_loss(rng, shapes):
    weights, x = layers(rng, shapes), pairs(rng)
    assert distance(relu_vector_field(weights, x), descent(relu_network, weights, x)) < 1e-12


def test_two_layers_move_as_lemma_3_says(rng):
    (W1, W2), X = layers(rng, DEPTHS["two"]), symmetric(rng, 5)
    assert distance(driven_vector_field([W1, W2], X), [W2.mT @ W2 @ W1 @ X, W2 @ W1 @ X @ W1.mT]) < 1e-13


def velocity_of_imbalances(weights, gradient_flow):
    """A central difference, which is exact for what is quadratic in the weights."""
    ahead, behind = (imbalances([W + sign * v for W, v in zip(weights, gradient_flow, strict=True)]) for sign in (1, -1))
    return [(a - b) / 2 for a, b in zip(ahead, behind, strict=True)]


@every_depth
def test_imbalances_of_neighbours_do_not_move_in_a_linear_flow(rng, shapes):
    weights, x = layers(rng, shapes), pairs(rng)
    velocity = velocity_of_imbalances(weights, linear_vector_field(weights, x))
    assert len(velocity) == len(shapes) - 1
    assert all(v.abs().max() < 1e-12 for v in velocity)


def test_only_the_diagonal_of_the_imbalance_does_not_move_with_relu(rng):
    weights, x = layers(rng, DEPTHS["two"]), pairs(rng)
    (velocity,) = velocity_of_imbalances(weights, relu_vector_field(weights, x))
    assert velocity.diagonal().abs().max() < 1e-12
    assert velocity.abs().max() > 1e-2


def test_imbalance_is_conserved_along_the_integrated_flow_of_the_loss_which_falls(rng):
    x, start = pairs(rng), layers(rng, [(4, 5), (5, 4)])
    path = gradient_flow(lambda weights: loss(linear_network(weights, x)), tuple(start), vector(0.0, 0.3, 1.0))
    losses = [loss(linear_network(weights, x)).item() for weights in zip(*path, strict=True)]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.5 * losses[0]
    assert (imbalances([W[-1] for W in path])[0] - imbalances(start)[0]).abs().max() < 1e-9


def test_gradient_descent_drifts_from_the_imbalance_at_first_order_in_the_learning_rate(rng):
    x, start = pairs(rng), layers(rng, DEPTHS["two"])

    def drift(steps):
        weights = start
        for _ in range(steps):
            weights = [W + 0.2 / steps * v for W, v in zip(weights, linear_vector_field(weights, x), strict=True)]
        return (imbalances(weights)[0] - imbalances(start)[0]).norm()

    assert math.log2(drift(100) / drift(200)) == pytest.approx(1, abs=0.05)


def test_layers_that_do_not_fit_are_refused_by_name(rng):
    W1, W2 = layers(rng, DEPTHS["two"])
    with pytest.raises(UserError, match=r"W2 has shape \(4, 5\), but 3 dimensions enter it; give it the shape \(outputs, 3\)"):
        driven_vector_field([torch.zeros(3, 5, dtype=torch.float64), W1], symmetric(rng, 5))
    for refused in (
        lambda: linear_vector_field([W2], pairs(rng)),
        lambda: relu_vector_field([W2], pairs(rng)),
        lambda: imbalances([W1, W1]),
    ):
        with pytest.raises(UserError, match="dimensions enter it"):
            refused()
