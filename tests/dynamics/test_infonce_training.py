"""Training along the closed-form gradients is gradient descent on the loss itself."""

from itertools import chain, repeat

import pytest
import torch

from fullrank.dynamics.flow import descend
from fullrank.dynamics.infonce import linear_flow, relu_flow
from fullrank.dynamics.infonce_training import train
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
@pytest.mark.parametrize(("flow", "between"), [(linear_flow, lambda h: h), (relu_flow, torch.relu)], ids=["linear", "relu"])
def test_training_is_gradient_descent_on_the_loss(rng, shapes, flow, between):
    weights, x = [randn(rng, *shape) / 2 for shape in shapes], pairs(rng)
    actual = train(weights, repeat(x), learning_rate=0.02, steps=[0, 7, 20], flow=flow)
    expected = descend(
        lambda weights: sum(infonce_squared(network(weights, x, between)).values()), tuple(weights), learning_rate=0.02, steps=[0, 7, 20]
    )
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-12)


def test_each_step_takes_the_next_batch(rng):
    W, first, second = randn(rng, 3, 5), pairs(rng), pairs(rng)
    (path,) = train([W], iter([first, second]), learning_rate=0.02, steps=[1, 2])
    once = W + 0.02 * linear_flow([W], first)[0]
    torch.testing.assert_close(path, torch.stack([once, once + 0.02 * linear_flow([once], second)[0]]))


def test_training_that_cannot_be_is_refused(rng):
    W, x = randn(rng, 3, 5), pairs(rng)
    for steps in ([], [3, 3], [-1]):
        with pytest.raises(UserError, match="steps must ascend from 0"):
            train([W], repeat(x), learning_rate=0.1, steps=steps)
    with pytest.raises(UserError, match="the batches ended before step 5"):
        train([W], chain([x], [x]), learning_rate=0.1, steps=[2, 5])
    with pytest.raises(UserError, match="blow up at a learning rate of 1e\\+200"):
        train([W], repeat(x), learning_rate=1e200, steps=[5])
