"""The losses of the theory: their sums as loops, their optima, and the limits of their gradient flows."""

import math

import pytest
import torch
from dynamics_helpers import orthogonal

from fullrank.objectives.signature import tensor_names
from fullrank_papers.theory.objectives import THEORY

every_loss = pytest.mark.parametrize("name", THEORY)


def arguments(name, randn):
    return [randn(*((2, 5, 3) if tensor == "Z" else (5, 3))) for tensor in tensor_names(THEORY[name])]


def loss(name, tensors):
    return sum(THEORY[name](*tensors).values())


def dot(x, y):
    return sum(a * b for a, b in zip(x, y, strict=True))


def product_minus_identity(X, Y):
    """Compute ‖XᵀY − I‖_F² by loops."""
    columns = list(zip(*X, strict=True)), list(zip(*Y, strict=True))
    return sum((dot(x, y) - (i == j)) ** 2 for i, x in enumerate(columns[0]) for j, y in enumerate(columns[1]))


def half_distance(x, y):
    return sum((a - b) ** 2 for a, b in zip(x, y, strict=True)) / 2


def infonce_loops(Z):
    z, positive = Z
    total = 0.0
    for i in range(len(z)):
        own = math.exp(-half_distance(z[i], positive[i]))
        total -= math.log(own / (own + sum(math.exp(-half_distance(z[i], z[j])) for j in range(len(z)) if j != i)))
    return total


LOOPS = {
    "contrastive_linear": lambda U, P, M: sum(
        dot(u, [b - a for a, b in zip(p, m, strict=True)]) for u, p, m in zip(U, P, M, strict=True)
    ),
    "alignment_linear": lambda U, P: sum(-dot(u, p) for u, p in zip(U, P, strict=True)),
    "frossl_linear": lambda Z: sum(product_minus_identity(z, z) for z in Z) + 2 * sum(map(half_distance, *Z)),
    "barlow_linear": lambda Z: product_minus_identity(*Z),
    "infonce_squared": infonce_loops,
}


@every_loss
def test_equals_the_sum_of_the_equation(name, randn):
    tensors = arguments(name, randn)
    assert loss(name, tensors).item() == pytest.approx(LOOPS[name](*(t.tolist() for t in tensors)), abs=1e-10)


@every_loss
def test_gradient_equals_finite_differences(name, randn):
    assert torch.autograd.gradcheck(
        lambda *tensors: loss(name, tensors), [t.requires_grad_() for t in arguments(name, randn)]
    )


@pytest.mark.parametrize("name", ["frossl_linear", "barlow_linear"])
def test_is_zero_only_at_equal_views_with_orthonormal_columns(name, randn):
    Q = torch.linalg.qr(randn(9, 4)).Q.expand(2, 9, 4)
    assert loss(name, [Q]) < 1e-24
    assert loss(name, [Q + 0.1 * randn(2, 9, 4)]) > 1e-3


@pytest.mark.parametrize("name", ["frossl_linear", "barlow_linear", "infonce_squared"])
def test_is_invariant_to_a_joint_rotation_but_not_the_scale(name, randn, rng):
    Z = randn(2, 9, 4)
    assert loss(name, [Z @ orthogonal(rng, 4)]).item() == pytest.approx(loss(name, [Z]).item(), rel=1e-12)
    assert abs(loss(name, [2 * Z]) - loss(name, [Z])) > 1e-2
