"""Weights and outputs under a trace loss with orthonormal weights, compared with autograd, integration and each
other."""

from itertools import islice

import pytest
import torch
from dynamics_helpers import close, convergence_order, integrate, randn, symmetric, vector

from fullrank_papers.theory import trace
from fullrank_papers.theory.contrastive_pairs import eigenbasis
from fullrank_papers.theory.flow import gradient
from fullrank_papers.theory.nonlinear import outputs as network_outputs
from fullrank_papers.theory.objectives import contrastive_linear

flows = pytest.mark.parametrize("flow", trace.FLOWS)


widths = pytest.mark.parametrize("hidden", [4, 5, 40])  # h = d, h < d + z, wide


@pytest.fixture
def C(rng):
    return symmetric(rng, 4)


def outputs(W1, W2, V):
    return V.mT @ W1.mT @ W2


def ball(rng, d, z, largest=0.9):
    U, s, Vh = torch.linalg.svd(randn(rng, d, z), full_matrices=False)
    return U * (largest * s / s[0]) @ Vh


def test_the_loss_is_the_sum_of_quadratic_forms_of_the_outputs(rng, C):
    W1, W2 = trace.orthonormal_weights(4, hidden=6, outputs=2, generator=rng)
    A = W1.mT @ W2
    naive = sum(A[i, k] * C[i, j] * A[j, k] for i in range(4) for j in range(4) for k in range(2))
    close(trace.trace_loss(W1, W2, C), naive)
    close(trace.scaled_loss(3 * W1, W2 / 7, C), naive)
    assert (
        trace.trace_loss(W1, W2, -torch.eye(4, dtype=torch.float64)) < 0
    )  # the squared norm that the paper prints is never negative


def test_gradients_are_those_of_autograd(rng, C):
    W1, W2 = (randn(rng, 5, k).requires_grad_() for k in (4, 2))
    expected = torch.autograd.grad(trace.trace_loss(W1, W2, C), (W1, W2))
    for G, expectation in zip(trace.trace_loss_gradients(W1.detach(), W2.detach(), C), expected, strict=True):
        close(G, expectation)


@widths
def test_initial_weights_have_orthonormal_columns(rng, hidden):
    for W in trace.orthonormal_weights(4, hidden=hidden, outputs=3, generator=rng):
        close(W.mT @ W, torch.eye(W.shape[1], dtype=torch.float64))


@flows
@widths
def test_the_velocity_of_the_outputs_is_that_of_the_weights(rng, C, hidden, flow):
    eigenvalues, V = eigenbasis(C)
    W1, W2 = trace.orthonormal_weights(4, hidden=hidden, outputs=3, generator=rng)
    U1, U2 = trace.weight_vector_field(W1, W2, C, flow=flow)
    close(V.mT @ (U1.mT @ W2 + W1.mT @ U2), trace.output_vector_field(outputs(W1, W2, V), eigenvalues, flow=flow))


def test_the_polar_velocity_is_the_projected_gradient_and_the_horizontal_one_is_not(rng, C):
    W1, W2 = trace.orthonormal_weights(4, hidden=6, outputs=3, generator=rng)
    skew = randn(rng, 4, 4)
    normal = randn(rng, 6, 6) @ W1
    tangent = W1 @ (skew - skew.mT) + normal - W1 @ (W1.mT @ normal)  # any direction along the constraint
    G1, _ = trace.trace_loss_gradients(W1, W2, C)
    slope = (G1 * tangent).sum()
    close((-trace.weight_vector_field(W1, W2, C, flow="polar")[0] * tangent).sum(), slope)
    assert not torch.isclose((-trace.weight_vector_field(W1, W2, C)[0] * tangent).sum(), slope, rtol=0.01)


@flows
@widths
def test_integrated_outputs_are_those_of_the_integrated_weights(rng, C, hidden, flow):
    eigenvalues, V = eigenbasis(C)
    W1, W2 = trace.orthonormal_weights(4, hidden=hidden, outputs=2, generator=rng)
    t = vector(0, 0.1, 0.3)

    def velocity(W):
        return torch.cat(trace.weight_vector_field(*W.split((4, 2), 1), C, flow=flow), 1)

    path = integrate(velocity, torch.cat([W1, W2], 1), t)
    trained = torch.stack([outputs(*W.split((4, 2), 1), V) for W in path])
    close(trace.integrate_outputs(trained[0], eigenvalues, t, flow=flow), trained, 1e-9)


@pytest.mark.parametrize("spectrum", [(-2, -1, 1, 3), (0.5, 1, 2, 3), (-3, -2, -1, -0.5)])
def test_the_closed_form_of_the_canonical_flow_equals_its_integrated_equation(rng, spectrum):
    eigenvalues, t = vector(*spectrum), vector(0, 0.1, 0.5, 1)
    q0 = ball(rng, 4, 1)
    close(
        trace.canonical_outputs(q0, eigenvalues, t), trace.integrate_outputs(q0, eigenvalues, t, flow="canonical"), 1e-9
    )
    q0 = ball(rng, 4, 3)
    ode, closed = (
        trace.integrate_outputs(q0, eigenvalues, t, flow="canonical"),
        trace.canonical_outputs(q0, eigenvalues, t),
    )
    close(closed @ closed.mT, ode @ ode.mT, 1e-8)
    close(closed[0], q0)


@flows
def test_the_discretisation_is_of_first_order(rng, flow):
    q0, eigenvalues = ball(rng, 4, 2), vector(-1, -0.5, 0.5, 1)
    exact = trace.integrate_outputs(q0, eigenvalues, vector(0, 0.5), flow=flow)[-1]
    steps = [0.02, 0.01, 0.005, 0.0025]
    errors = [
        (trace.euler_outputs(q0, eigenvalues, learning_rate=h, steps=round(0.5 / h), flow=flow)[-1] - exact)
        .norm()
        .item()
        for h in steps
    ]
    assert convergence_order(errors, steps) == pytest.approx(1, abs=0.05)


def test_projected_descent_follows_the_polar_flow_to_first_order_and_no_other(rng, C):
    eigenvalues, V = eigenbasis(C)
    W1, W2 = trace.orthonormal_weights(4, hidden=6, outputs=3, generator=rng)
    q0, steps = outputs(W1, W2, V), [1e-2, 5e-3, 2.5e-3]
    moved = [outputs(*trace.projected_gradient_step(W1, W2, C, learning_rate=h), V) for h in steps]
    for other in trace.FLOWS:
        errors = [
            (q - q0 - h * trace.output_vector_field(q0, eigenvalues, flow=other)).norm().item()
            for q, h in zip(moved, steps, strict=True)
        ]
        assert convergence_order(errors, steps) == pytest.approx(2 if other == "polar" else 1, abs=0.15)


FORCED = pytest.mark.parametrize(
    ("spectrum", "hidden", "z"),
    [
        ((0.5, 1, 2, 3), 4, 1),
        ((0.5, 1, 2, 3), 4, 3),
        ((0.5, 1, 2, 3), 6, 3),
        ((-1, 0.5, 1, 2), 4, 2),
        ((-2, -1, 0.5, 1), 5, 3),
    ],
)
"""Orthonormality forces singular values of these outputs to 1: h = d, or h < d + z; along positive λ too."""


def forced_limit(spectrum, hidden, z):
    rank = max(min(z, sum(x < 0 for x in spectrum)), 4 + z - hidden)
    return torch.diag((torch.arange(4) < rank).double())


@flows
@FORCED
def test_forced_singular_values_stay_one_in_every_integrator(rng, spectrum, hidden, z, flow):
    eigenvalues, forced = vector(*spectrum), 4 + z - hidden
    q0 = outputs(
        *trace.orthonormal_weights(4, hidden=hidden, outputs=z, generator=rng), torch.eye(4, dtype=torch.float64)
    )
    t, limit = vector(0, 0.3, 3, 30), trace.stability_limit(eigenvalues, outputs=z, forced=forced, flow=flow)
    integrated = trace.integrate_outputs(q0, eigenvalues, t, flow=flow)
    stepped = trace.euler_outputs(q0, eigenvalues, learning_rate=0.9 * limit, steps=600, flow=flow)
    found = [integrated, stepped] + ([trace.canonical_outputs(q0, eigenvalues, t)] if flow == "canonical" else [])
    for path in found:
        close(path[0], q0)
        close(torch.linalg.svdvals(path)[:, :forced], torch.ones(len(path), forced, dtype=torch.float64), 1e-11)
        close(path[-1] @ path[-1].mT, forced_limit(spectrum, hidden, z), 1e-6)
    if flow == "canonical":
        closed = trace.canonical_outputs(q0, eigenvalues, t)
        close(closed @ closed.mT, integrated @ integrated.mT, 1e-8)


@pytest.fixture
def X(rng):
    return randn(rng, 3, 8, 3)


@pytest.fixture
def start(rng):
    return trace.orthonormal_weights(3, hidden=7, outputs=2, generator=rng)


def contrastive(X, activation="linear"):
    return lambda W: sum(contrastive_linear(*network_outputs(*W, X, activation=activation)).values())


@pytest.mark.parametrize("activation", ["tanh", "sigmoid"])
def test_one_step_moves_along_the_projected_gradient_to_first_order(X, start, activation):
    loss, steps, errors = contrastive(X, activation), [1e-2, 5e-3, 2.5e-3], []
    G = gradient(loss, start)
    for eta in steps:
        _, moved = islice(trace.projected_gradient_descent(loss, start, learning_rate=eta), 2)
        tangent = [W - eta * (g - W @ (W.mT @ g + g.mT @ W) / 2) for W, g in zip(start, G, strict=True)]
        errors.append(sum((one - other).norm().item() for one, other in zip(moved, tangent, strict=True)))
    assert convergence_order(errors, steps) == pytest.approx(2, abs=0.1)
