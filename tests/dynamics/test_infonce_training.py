"""Training along the closed-form gradients is gradient descent on the loss itself."""

from itertools import chain, repeat

import pytest
import torch

from fullrank.dynamics.flow import gradient_descent
from fullrank.dynamics.infonce import linear_vector_field, relu_vector_field, train_infonce
from fullrank.errors import UserError
from fullrank.objectives import infonce_squared

SHAPES = {"one": [(3, 5)], "two": [(4, 5), (3, 4)], "four": [(4, 5), (6, 4), (3, 6), (4, 3)]}


def randn(rng, *shape):
    return torch.randn(*shape, generator=rng, dtype=torch.float64)


def pairs(rng, n=8, m=5):
    x = randn(rng, n, m)
    return torch.stack([x, x + 0.5 * randn(rng, n, m)])


def network(weights, x, between):
    for W in weights[:-1]:
        x = between(x @ W.mT)
    return x @ weights[-1].mT


@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize(("flow", "between"), [(linear_vector_field, lambda h: h), (relu_vector_field, torch.relu)], ids=["linear", "relu"])
def test_training_is_gradient_descent_on_the_loss(rng, shapes, flow, between):
    weights, x = [randn(rng, *shape) / 2 for shape in shapes], pairs(rng)
    actual = train_infonce(weights, repeat(x), learning_rate=0.02, steps=[0, 7, 20], vector_field=flow)
    expected = gradient_descent(
        lambda weights: sum(infonce_squared(network(weights, x, between)).values()), tuple(weights), learning_rate=0.02, steps=[0, 7, 20]
    )
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-12)


def test_each_step_takes_the_next_batch(rng):
    W, first, second = randn(rng, 3, 5), pairs(rng), pairs(rng)
    (path,) = train_infonce([W], iter([first, second]), learning_rate=0.02, steps=[1, 2])
    once = W + 0.02 * linear_vector_field([W], first)[0]
    torch.testing.assert_close(path, torch.stack([once, once + 0.02 * linear_vector_field([once], second)[0]]))


def test_training_that_cannot_be_is_refused(rng):
    W, x = randn(rng, 3, 5), pairs(rng)
    for steps in ([], [3, 3], [-1]):
        with pytest.raises(UserError, match="steps must ascend from 0"):
            train_infonce([W], repeat(x), learning_rate=0.1, steps=steps)
    with pytest.raises(UserError, match="the batches ended before step 5"):
        train_infonce([W], chain([x], [x]), learning_rate=0.1, steps=[2, 5])
    with pytest.raises(UserError, match="blow up at a learning rate of 1e\\+200"):
        train_infonce([W], repeat(x), learning_rate=1e200, steps=[5])
