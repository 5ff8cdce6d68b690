from itertools import islice

import numpy as np
import pytest
import torch

from fullrank.dynamics.contrastive_pairs import eigenbasis, pair_matrix
from fullrank.dynamics.flow import gradient
from fullrank.dynamics.nonlinear import outputs
from fullrank.dynamics.trace import orthonormal_weights, projected_gradient_descent, projected_gradient_step, trace_loss
from fullrank.errors import UserError
from fullrank.objectives.theory import contrastive_linear


@pytest.fixture
def X(rng):
    return torch.randn(3, 8, 3, dtype=torch.float64, generator=rng)


@pytest.fixture
def start(rng):
    return orthonormal_weights(3, hidden=7, outputs=2, generator=rng)


def contrastive(X, activation="linear"):
    return lambda W: sum(contrastive_linear(*outputs(*W, X, activation=activation)).values())


def close(x, y, tolerance=1e-12):
    torch.testing.assert_close(x, y, rtol=tolerance, atol=tolerance)


def test_on_the_contrastive_loss_it_is_the_projected_step_of_the_trace_loss(X, start):
    C, W = pair_matrix(*X), start
    for iterate in islice(projected_gradient_descent(contrastive(X), start, learning_rate=0.01), 5):
        for one, other in zip(iterate, W, strict=True):
            close(one, other)
        W = projected_gradient_step(*W, C, learning_rate=0.01)


@pytest.mark.parametrize("activation", ["tanh", "relu", "sigmoid"])
def test_weights_stay_orthonormal_and_the_loss_falls(X, start, activation):
    loss = contrastive(X, activation)
    path = list(islice(projected_gradient_descent(loss, start, learning_rate=0.01), 30))
    for W in path[-1]:
        close(W.mT @ W, torch.eye(W.shape[1], dtype=torch.float64))
    assert torch.stack([loss(W) for W in path]).diff().max() < 0


@pytest.mark.parametrize("activation", ["tanh", "sigmoid"])
def test_one_step_moves_along_the_projected_gradient_to_first_order(X, start, activation):
    loss, steps, errors = contrastive(X, activation), [1e-2, 5e-3, 2.5e-3], []
    G = gradient(loss, start)
    for eta in steps:
        _, moved = islice(projected_gradient_descent(loss, start, learning_rate=eta), 2)
        tangent = [W - eta * (g - W @ (W.mT @ g + g.mT @ W) / 2) for W, g in zip(start, G, strict=True)]
        errors.append(sum((one - other).norm().item() for one, other in zip(moved, tangent, strict=True)))
    assert np.polyfit(np.log(steps), np.log(errors), 1)[0] == pytest.approx(2, abs=0.1)


def test_it_ends_in_the_eigenvectors_of_the_trace_loss(X, start):
    C = pair_matrix(*X)
    ((W1, W2),) = islice(projected_gradient_descent(contrastive(X), start, learning_rate=0.05), 400, 401)
    eigenvalues, _ = eigenbasis(C)
    close(trace_loss(W1, W2, C), eigenvalues[:2].clamp(max=0).sum(), 1e-6)


def test_many_networks_at_once_are_trained_apart(X, rng):
    starts = [orthonormal_weights(3, hidden=7, outputs=2, generator=rng) for _ in range(3)]
    together = tuple(torch.stack(layers) for layers in zip(*starts, strict=True))
    loss = contrastive(X, "tanh")
    *_, last = islice(
        projected_gradient_descent(lambda W: sum(loss(pair) for pair in zip(*W, strict=True)), together, learning_rate=0.01), 6
    )
    for k, alone in enumerate(starts):
        *_, expected = islice(projected_gradient_descent(loss, alone, learning_rate=0.01), 6)
        close(last[0][k], expected[0])
        close(last[1][k], expected[1])


def test_bad_input_is_refused_before_the_first_step(start):
    with pytest.raises(UserError, match=r"a matrix of shape \(2, 3\) cannot have orthonormal columns; take at least 3 rows"):
        projected_gradient_descent(lambda W: W[0].sum(), (torch.ones(2, 3).double(),), learning_rate=0.1)
    with pytest.raises(UserError, match="float32"):
        projected_gradient_descent(lambda W: W[0].sum(), (start[0].float(),), learning_rate=0.1)
