"""Networks under InfoNCE: vector fields compared with autograd of the loss, conserved quantities."""

import math

import pytest
import torch
from dynamics_helpers import randn, relative_error, view_pairs

from fullrank_papers.theory import infonce
from fullrank_papers.theory.objectives import infonce_squared

DEPTHS = {
    "one": [(3, 5)],
    "two": [(4, 5), (3, 4)],
    "two wide": [(7, 5), (6, 7)],
    "four": [(4, 5), (6, 4), (3, 6), (4, 3)],
}


every_depth = pytest.mark.parametrize("shapes", DEPTHS.values(), ids=DEPTHS.keys())


def layers(rng, shapes):
    return [randn(rng, *shape) / 2 for shape in shapes]


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


def test_softmax_weights_equal_naive_loops(rng):
    z, positive = Z = view_pairs(rng, n=5, m=3)
    for i, row in enumerate(infonce.softmax_weights(Z)):
        terms = [math.exp(-sum((z[i] - (positive[i] if j == i else z[j])) ** 2) / 2) for j in range(5)]
        assert row.tolist() == pytest.approx([term / sum(terms) for term in terms], rel=1e-13)


def test_the_embedding_vector_field_is_minus_the_gradient_of_the_loss(rng):
    Z = view_pairs(rng).requires_grad_()
    (gradient,) = torch.autograd.grad(loss(Z), Z)
    assert relative_error([infonce.embedding_vector_field(Z.detach())], [-gradient]) < 1e-12


def test_driving_matrix_is_eq_6_and_lemma_2_written_as_loops(rng):
    x, positive = views = view_pairs(rng)
    alpha = infonce.softmax_weights(view_pairs(rng))
    first, data, augmentation = torch.zeros(3, 5, 5, dtype=torch.float64)
    for i in range(8):
        shift = positive[i] - x[i]
        first -= (1 - alpha[i, i]) * torch.outer(shift, positive[i])
        augmentation += (1 - alpha[i, i]) * torch.outer(shift, shift)
        for j in range(8):
            data += alpha[i, j] * torch.outer(x[i] - x[j], x[i] - x[j])
            if j != i:
                first += torch.outer(alpha[i, j] * (positive[i] - x[j]) + alpha[j, i] * (x[i] - x[j]), x[i])
    assert relative_error(infonce.weighted_covariances(views, alpha), [data, augmentation]) < 1e-13
    assert relative_error([infonce.driving_matrix(views, alpha)], [first]) < 1e-13


@every_depth
def test_the_vector_fields_are_minus_the_gradient_of_the_loss(rng, shapes):
    weights, x = layers(rng, shapes), view_pairs(rng)
    assert relative_error(infonce.linear_vector_field(weights, x), descent(linear_network, weights, x)) < 1e-12
    assert relative_error(infonce.relu_vector_field(weights, x), descent(relu_network, weights, x)) < 1e-12


def velocity_of_imbalances(weights, gradient_flow):
    """A central difference, which is exact for what is quadratic in the weights."""
    ahead, behind = (
        infonce.imbalances([W + sign * v for W, v in zip(weights, gradient_flow, strict=True)]) for sign in (1, -1)
    )
    return [(a - b) / 2 for a, b in zip(ahead, behind, strict=True)]


@every_depth
def test_imbalances_are_conserved_by_a_linear_flow(rng, shapes):
    weights, x = layers(rng, shapes), view_pairs(rng)
    velocity = velocity_of_imbalances(weights, infonce.linear_vector_field(weights, x))
    assert len(velocity) == len(shapes) - 1
    assert all(v.abs().max() < 1e-12 for v in velocity)
