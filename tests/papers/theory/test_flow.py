"""Gradient flow and gradient descent of a general loss, compared with matrix exponentials and with each other."""

import numpy as np
import pytest
import torch
from dynamics_helpers import close_absolute, convergence_order, randn
from scipy.linalg import expm

from fullrank_papers.theory.flow import gradient_descent, gradient_flow

TIMES = torch.tensor([0.0, 0.3, 1.0, 2.5], dtype=torch.float64)


@pytest.fixture
def quadratic(rng):
    """A quadratic ½ wᵀAw of 5 numbers, and a start."""
    A = randn(rng, 5, 5)
    A = A @ A.mT / 5
    return A, lambda p: p[0] @ A @ p[0] / 2, (randn(rng, 5),)


def test_the_flow_of_a_quadratic_is_a_matrix_exponential(quadratic):
    A, loss, start = quadratic
    expected = torch.stack([torch.from_numpy(expm(-t * A.numpy())) @ start[0] for t in TIMES.tolist()])
    close_absolute(gradient_flow(loss, start, TIMES)[0], expected, 1e-9)
    close_absolute(gradient_flow(loss, start, TIMES, rtol=1e-12, atol=1e-14)[0], expected, 1e-11)


def test_gradient_descent_of_a_quadratic_is_a_matrix_power(quadratic):
    A, loss, start = quadratic
    step = torch.eye(5, dtype=torch.float64) - 0.1 * A
    path = gradient_descent(loss, start, learning_rate=0.1, steps=[0, 1, 7])[0]
    close_absolute(path, torch.stack([torch.linalg.matrix_power(step, k) @ start[0] for k in (0, 1, 7)]), 1e-14)


def test_gradient_descent_converges_to_the_flow_at_order_one(rng):
    def loss(p):
        W1, W2 = p
        return (W2 @ W1 - target).square().sum() + (W1 @ W1.mT).square().sum() / 4

    W1, W2, target = randn(rng, 3, 4, 4) / 2
    rates = np.array([0.02, 0.01, 0.005, 0.0025])
    end = torch.cat(gradient_flow(loss, (W1, W2), torch.ones(1, dtype=torch.float64)))
    ends = [
        torch.cat(gradient_descent(loss, (W1, W2), learning_rate=rate, steps=[round(1 / rate)]))
        for rate in rates.tolist()
    ]
    errors = [(found - end).norm().item() for found in ends]
    assert convergence_order(errors, rates) == pytest.approx(1, abs=0.05)


def test_time_zero_is_the_start(quadratic):
    _, loss, start = quadratic
    assert torch.equal(gradient_flow(loss, start, TIMES[:1])[0][0], start[0])
    assert torch.equal(gradient_flow(loss, start, TIMES)[0][0], start[0])
