"""Gradient flow and gradient descent of a general loss, compared with matrix exponentials and with each other."""

import numpy as np
import pytest
import torch
from dynamics_helpers import close_absolute, convergence_order, randn
from scipy.linalg import expm

from fullrank.errors import UserError
from fullrank_papers.theory.flow import gradient, gradient_descent, gradient_flow

TIMES = torch.tensor([0.0, 0.3, 1.0, 2.5], dtype=torch.float64)


@pytest.fixture
def quadratic(rng):
    """A quadratic ½ wᵀAw of 5 numbers, and a start."""
    A = randn(rng, 5, 5)
    A = A @ A.mT / 5
    return A, lambda p: p["w"] @ A @ p["w"] / 2, {"w": randn(rng, 5)}


def test_the_flow_of_a_quadratic_is_a_matrix_exponential(quadratic):
    A, loss, start = quadratic
    expected = torch.stack([torch.from_numpy(expm(-t * A.numpy())) @ start["w"] for t in TIMES.tolist()])
    close_absolute(gradient_flow(loss, start, TIMES)["w"], expected, 1e-9)
    close_absolute(gradient_flow(loss, start, TIMES, rtol=1e-12, atol=1e-14)["w"], expected, 1e-11)


def test_smaller_tolerances_give_smaller_errors(quadratic):
    A, loss, start = quadratic
    expected = torch.from_numpy(expm(-2.5 * A.numpy())) @ start["w"]
    errors = [
        (gradient_flow(loss, start, TIMES, rtol=tol, atol=tol)["w"][-1] - expected).norm().item()
        for tol in (1e-3, 1e-6, 1e-9)
    ]
    assert errors[0] > 10 * errors[1] > 100 * errors[2]


def test_gradient_descent_of_a_quadratic_is_a_matrix_power(quadratic):
    A, loss, start = quadratic
    step = torch.eye(5, dtype=torch.float64) - 0.1 * A
    path = gradient_descent(loss, start, learning_rate=0.1, steps=[0, 1, 7])["w"]
    close_absolute(path, torch.stack([torch.linalg.matrix_power(step, k) @ start["w"] for k in (0, 1, 7)]), 1e-14)


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


def test_the_loss_falls_at_the_rate_of_the_squared_gradient(quadratic):
    _, loss, start = quadratic
    t, h = 0.7, 1e-3
    before, now, after = gradient_flow(loss, start, torch.tensor([t - h, t, t + h], dtype=torch.float64), rtol=1e-12)[
        "w"
    ]
    slope = (loss({"w": after}) - loss({"w": before})) / (2 * h)
    close_absolute(slope, -gradient(loss, {"w": now})["w"].square().sum(), 1e-5)


def test_a_conserved_quantity_is_conserved(rng):
    """W2ᵀW2 − W1W1ᵀ of a two-layer linear network, by invariance of the loss under W1 → AW1, W2 → W2A⁻¹."""
    W1, W2, target = randn(rng, 3, 4, 4)
    path = gradient_flow(lambda p: (p["W2"] @ p["W1"] - target).square().sum(), {"W1": W1, "W2": W2}, TIMES)
    close_absolute(
        path["W2"].mT @ path["W2"] - path["W1"] @ path["W1"].mT, (W2.mT @ W2 - W1 @ W1.mT).expand(4, 4, 4), 1e-8
    )


def test_names_order_shapes_and_container_are_kept(rng):
    shapes = {"b": (3,), "a": (2, 3), "c": ()}
    start = {name: randn(rng, *shape) for name, shape in shapes.items()}

    def loss(p):
        return sum((k + 1) / 2 * p[name].square().sum() for k, name in enumerate(shapes))

    path = gradient_flow(loss, start, TIMES)
    assert {name: tuple(x.shape) for name, x in path.items()} == {name: (4, *shape) for name, shape in shapes.items()}
    for k, (name, x) in enumerate(start.items()):
        close_absolute(path[name], torch.stack([x * np.exp(-(k + 1) * t) for t in TIMES.tolist()]), 1e-9)
    assert isinstance(gradient_flow(lambda p: p[0].square().sum(), (start["a"],), TIMES), tuple)
    assert isinstance(
        gradient_descent(lambda p: p[0].square().sum(), (start["a"],), learning_rate=0.1, steps=[3]), tuple
    )


def test_the_start_and_unused_parameters_do_not_change():
    start = {"w": torch.ones(2, dtype=torch.float64, requires_grad=True), "v": torch.ones(3, dtype=torch.float64)}
    with torch.no_grad():
        path = gradient_flow(lambda p: p["w"].sum() ** 2, start, TIMES)
        steps = gradient_descent(lambda p: p["w"].sum() ** 2, start, learning_rate=0.1, steps=[5])
    assert torch.equal(path["v"], torch.ones(4, 3, dtype=torch.float64))
    assert torch.equal(steps["v"], torch.ones(1, 3, dtype=torch.float64))
    assert start["w"].grad is None
    assert torch.equal(start["w"], torch.ones(2, dtype=torch.float64))


def test_time_zero_is_the_start(quadratic):
    _, loss, start = quadratic
    assert torch.equal(gradient_flow(loss, start, TIMES[:1])["w"][0], start["w"])
    assert torch.equal(gradient_flow(loss, start, TIMES)["w"][0], start["w"])


def test_recording_more_often_changes_nothing(quadratic):
    _, loss, start = quadratic
    assert torch.equal(gradient_flow(loss, start, TIMES)["w"][[1, 3]], gradient_flow(loss, start, TIMES[[1, 3]])["w"])
    every = gradient_descent(loss, start, learning_rate=0.1, steps=range(9))["w"]
    assert torch.equal(every[[2, 8]], gradient_descent(loss, start, learning_rate=0.1, steps=[2, 8])["w"])


def test_no_gradient_is_computed_after_the_last_step(quadratic):
    _, loss, start = quadratic
    calls = []
    gradient_descent(lambda p: calls.append(1) or loss(p), start, learning_rate=0.1, steps=[0, 4])
    assert len(calls) == 4


def test_a_diverging_flow_is_an_error():
    """ẇ = 3w² from 1 is infinite at t = ⅓."""
    with pytest.raises(UserError, match="the flow diverges"):
        gradient_flow(
            lambda p: -p[0].pow(3).sum(), (torch.ones(1, dtype=torch.float64),), torch.tensor([0.1, 0.3, 1.0])
        )


def test_a_flow_with_an_infinite_velocity_at_the_start_is_an_error():
    with pytest.raises(UserError, match="velocity at t = 0"):
        gradient_flow(lambda p: (p[0] - 1).sqrt().log().sum(), (torch.zeros(1, dtype=torch.float64),), TIMES)


@pytest.mark.parametrize("times", [[], [0.0, 0.0], [1.0, 0.5], [-1.0, 1.0], [0.0, float("inf")]])
def test_times_ascend_from_zero(quadratic, times):
    _, loss, start = quadratic
    with pytest.raises(UserError, match="times must"):
        gradient_flow(loss, start, torch.tensor(times))


@pytest.mark.parametrize("steps", [[], [3, 3], [4, 2], [-1, 2]])
def test_steps_ascend_from_zero(quadratic, steps):
    _, loss, start = quadratic
    with pytest.raises(UserError, match="steps must"):
        gradient_descent(loss, start, learning_rate=0.1, steps=steps)


def test_parameters_must_be_float64(quadratic):
    _, loss, _ = quadratic
    for train in (
        lambda p: gradient_flow(loss, p, TIMES),
        lambda p: gradient_descent(loss, p, learning_rate=0.1, steps=[1]),
    ):
        with pytest.raises(UserError, match="float32"):
            train({"w": torch.ones(5)})


def test_a_loss_must_be_a_scalar(quadratic):
    _, loss, start = quadratic
    with pytest.raises(UserError, match="a dict instead of one number"):
        gradient_flow(lambda p: {"loss": loss(p)}, start, TIMES)
    with pytest.raises(UserError, match="a tensor of shape"):
        gradient(lambda p: p["w"], start)


def test_diverging_gradient_descent_is_an_error():
    start = {"w": torch.ones(2, dtype=torch.float64)}
    with pytest.raises(UserError, match="diverged before step 900"):
        gradient_descent(lambda p: p["w"].square().sum(), start, learning_rate=10.0, steps=[0, 900])
