"""Weights and outputs under a trace loss with orthonormal weights, compared with autograd, integration and each
other."""

from itertools import islice

import pytest
import torch
from dynamics_helpers import close, convergence_order, randn, symmetric, vector
from scipy.integrate import solve_ivp

from fullrank.errors import UserError
from fullrank_papers.theory.contrastive_pairs import eigenbasis, pair_matrix
from fullrank_papers.theory.flow import gradient
from fullrank_papers.theory.nonlinear import outputs as network_outputs
from fullrank_papers.theory.objectives import contrastive_linear
from fullrank_papers.theory.trace import (
    FLOWS,
    canonical_outputs,
    embed,
    euler_outputs,
    integrate_outputs,
    orthonormal_weights,
    output_vector_field,
    projected_gradient_descent,
    projected_gradient_step,
    scaled_loss,
    stability_limit,
    trace_loss,
    trace_loss_gradients,
    weight_vector_field,
)

flows = pytest.mark.parametrize("flow", FLOWS)


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
    W1, W2 = orthonormal_weights(4, hidden=6, outputs=2, generator=rng)
    A = W1.mT @ W2
    naive = sum(A[i, k] * C[i, j] * A[j, k] for i in range(4) for j in range(4) for k in range(2))
    close(trace_loss(W1, W2, C), naive)
    close(scaled_loss(3 * W1, W2 / 7, C), naive)
    assert (
        trace_loss(W1, W2, -torch.eye(4, dtype=torch.float64)) < 0
    )  # the squared norm that the paper prints is never negative


def test_gradients_are_those_of_autograd(rng, C):
    W1, W2 = (randn(rng, 5, k).requires_grad_() for k in (4, 2))
    expected = torch.autograd.grad(trace_loss(W1, W2, C), (W1, W2))
    for G, expectation in zip(trace_loss_gradients(W1.detach(), W2.detach(), C), expected, strict=True):
        close(G, expectation)


@widths
def test_initial_weights_have_orthonormal_columns(rng, hidden):
    for W in orthonormal_weights(4, hidden=hidden, outputs=3, generator=rng):
        close(W.mT @ W, torch.eye(W.shape[1], dtype=torch.float64))


@flows
@widths
def test_the_velocity_of_the_outputs_is_that_of_the_weights(rng, C, hidden, flow):
    eigenvalues, V = eigenbasis(C)
    W1, W2 = orthonormal_weights(4, hidden=hidden, outputs=3, generator=rng)
    U1, U2 = weight_vector_field(W1, W2, C, flow=flow)
    close(V.mT @ (U1.mT @ W2 + W1.mT @ U2), output_vector_field(outputs(W1, W2, V), eigenvalues, flow=flow))


@flows
def test_velocities_are_tangent_and_lower_the_loss(rng, C, flow):
    W1, W2 = orthonormal_weights(4, hidden=6, outputs=3, generator=rng)
    U1, U2 = weight_vector_field(W1, W2, C, flow=flow)
    for W, U in ((W1, U1), (W2, U2)):
        close(W.mT @ U + U.mT @ W, torch.zeros(W.shape[1], W.shape[1], dtype=torch.float64))
    G1, G2 = trace_loss_gradients(W1, W2, C)
    assert (G1 * U1).sum() + (G2 * U2).sum() < 0


def test_the_polar_velocity_is_the_projected_gradient_and_the_horizontal_one_is_not(rng, C):
    W1, W2 = orthonormal_weights(4, hidden=6, outputs=3, generator=rng)
    skew = randn(rng, 4, 4)
    normal = randn(rng, 6, 6) @ W1
    tangent = W1 @ (skew - skew.mT) + normal - W1 @ (W1.mT @ normal)  # any direction along the constraint
    G1, _ = trace_loss_gradients(W1, W2, C)
    slope = (G1 * tangent).sum()
    close((-weight_vector_field(W1, W2, C, flow="polar")[0] * tangent).sum(), slope)
    assert not torch.isclose((-weight_vector_field(W1, W2, C)[0] * tangent).sum(), slope, rtol=0.01)


def test_the_horizontal_flow_freezes_a_square_first_layer_and_the_others_do_not(rng, C):
    W1, W2 = orthonormal_weights(4, hidden=4, outputs=2, generator=rng)
    assert weight_vector_field(W1, W2, C)[0].norm() < 1e-12
    assert weight_vector_field(W1, W2, C, flow="polar")[0].norm() > 0.1


@flows
@widths
def test_integrated_outputs_are_those_of_the_integrated_weights(rng, C, hidden, flow):
    eigenvalues, V = eigenbasis(C)
    W1, W2 = orthonormal_weights(4, hidden=hidden, outputs=2, generator=rng)
    t = vector(0, 0.1, 0.3)

    def velocity(_, y):
        weights = (torch.as_tensor(piece).view(hidden, -1) for piece in (y[: 4 * hidden], y[4 * hidden :]))
        return torch.cat([U.flatten() for U in weight_vector_field(*weights, C, flow=flow)]).numpy()

    start = torch.cat([W1.flatten(), W2.flatten()]).numpy()
    rows = torch.as_tensor(
        solve_ivp(velocity, (0, 0.3), start, method="DOP853", t_eval=t.numpy(), rtol=1e-11, atol=1e-13).y.T
    )
    trained = torch.stack(
        [outputs(row[: 4 * hidden].view(hidden, 4), row[4 * hidden :].view(hidden, 2), V) for row in rows]
    )
    close(integrate_outputs(trained[0], eigenvalues, t, flow=flow), trained, 1e-9)


def test_integration_ends_at_the_requested_time_within_the_tolerance(rng):
    q0, eigenvalues = ball(rng, 3, 2), vector(-1, 0.5, 2)
    close(integrate_outputs(q0, eigenvalues, vector(0)), q0[None])
    rough, fine = (integrate_outputs(q0, eigenvalues, vector(0.7), rtol=tolerance)[0] for tolerance in (1e-3, 1e-12))
    assert 1e-10 < (rough - fine).norm() < 1e-2


@flows
def test_training_does_not_depend_on_the_width(rng, C, flow):
    W1, W2 = orthonormal_weights(4, hidden=5, outputs=2, generator=rng)
    isometry = torch.linalg.qr(randn(rng, 60, 5)).Q
    narrow, wide = (W1, W2), (isometry @ W1, isometry @ W2)  # weights of any width that make the same outputs are such
    for _ in range(20):
        narrow, wide = (
            projected_gradient_step(*weights, C, learning_rate=0.05, flow=flow) for weights in (narrow, wide)
        )
    close(narrow[0].mT @ narrow[1], wide[0].mT @ wide[1], 1e-10)


def test_with_one_output_the_horizontal_flow_is_equation_10(rng):
    q, eigenvalues = ball(rng, 4, 1), vector(-2, -1, 1, 3)
    Lq = torch.diag(eigenvalues) @ q
    close(
        output_vector_field(q, eigenvalues),
        -2 * ((1 - q.mT @ q) * Lq + (torch.eye(4, dtype=torch.float64) - q @ q.mT) @ Lq),
    )


@flows
@pytest.mark.parametrize("z", [1, 2])
def test_the_flow_keeps_the_outputs_in_the_unit_ball_and_lowers_the_loss(rng, z, flow):
    eigenvalues = vector(-2, -1, 1, 3)
    q = integrate_outputs(
        ball(rng, 4, z, largest=0.999), eigenvalues, torch.linspace(0, 1, 20, dtype=torch.float64), flow=flow
    )
    assert torch.linalg.svdvals(q).max() <= 1 + 1e-10
    assert (q * (eigenvalues[:, None] * q)).sum((1, 2)).diff().max() < 0


@flows
def test_one_output_conserves_a_quantity_for_each_pair_of_eigenvalues(rng, flow):
    q0, eigenvalues, (_, b) = ball(rng, 3, 1, largest=0.5), vector(-1, 0.5, 2), FLOWS[flow]
    q = integrate_outputs(q0, eigenvalues, torch.linspace(0, 0.5, 6, dtype=torch.float64), flow=flow)[..., 0]
    rest = b / 8 * torch.log1p(-q.square().sum(1))
    for i, j in ((0, 1), (1, 2)):
        low, high = eigenvalues[i], eigenvalues[j]
        conserved = high * q[:, i].abs().log() - low * q[:, j].abs().log() - (high - low) * rest
        close(conserved, conserved[:1].expand(6), 1e-9)


@flows
def test_orthonormal_outputs_stay_orthonormal(rng, flow):
    q0 = torch.linalg.qr(randn(rng, 4, 2)).Q
    velocity = output_vector_field(q0, vector(-2, -1, 1, 3), flow=flow)
    close(q0.mT @ velocity + velocity.mT @ q0, torch.zeros(2, 2, dtype=torch.float64))


@pytest.mark.parametrize("spectrum", [(-2, -1, 1, 3), (0.5, 1, 2, 3), (-3, -2, -1, -0.5)])
def test_the_closed_form_of_the_canonical_flow_equals_its_integrated_equation(rng, spectrum):
    eigenvalues, t = vector(*spectrum), vector(0, 0.1, 0.5, 1)
    q0 = ball(rng, 4, 1)
    close(canonical_outputs(q0, eigenvalues, t), integrate_outputs(q0, eigenvalues, t, flow="canonical"), 1e-9)
    q0 = ball(rng, 4, 3)
    ode, closed = integrate_outputs(q0, eigenvalues, t, flow="canonical"), canonical_outputs(q0, eigenvalues, t)
    close(closed @ closed.mT, ode @ ode.mT, 1e-8)
    close(closed[0], q0)


def test_the_closed_form_reaches_its_limits_without_overflow(rng):
    q0, late = ball(rng, 3, 1), vector(1e4)
    close(canonical_outputs(q0, vector(-2, 1, 3), late)[0, :, 0], q0[0].sign() * vector(1, 0, 0))
    close(canonical_outputs(q0, vector(0.5, 1, 3), late)[0, :, 0], vector(0, 0, 0))


def test_the_closed_form_has_the_limit_of_its_start_or_is_an_error(rng):
    eigenvalues, late = vector(-1, -0.5, 2), vector(1e3)
    for start, end in (
        ((0, -0.4, 0.3), (0, -1, 0)),
        ((0, 0, 0.3), (0, 0, 0)),
        ((0, 0, 1), (0, 0, 1)),
        ((0, 0, 0), (0, 0, 0)),
    ):
        close(canonical_outputs(vector(*start)[:, None], eigenvalues, late)[0, :, 0], vector(*end))
    with pytest.raises(UserError, match="too small for any float"):
        canonical_outputs(ball(rng, 3, 2), eigenvalues, late)


def test_the_closed_form_keeps_small_outputs_after_others_have_converged(rng):
    q, eigenvalues = ball(rng, 4, 3), vector(-3, -1.5, -1, 1)
    at_once = canonical_outputs(q, eigenvalues, vector(5))[0]  # e^{4·2·5} is beyond 1e16
    for _ in range(40):
        q = canonical_outputs(q, eigenvalues, vector(1 / 8))[0]
    close(at_once @ at_once.mT, q @ q.mT)


@flows
def test_outputs_turn_and_grow_at_the_rates_of_the_linearisation(flow):
    eigenvalues, (_, b), epsilon = vector(-1, 2), FLOWS[flow], 1e-7
    turned = output_vector_field(vector(1, epsilon)[:, None], eigenvalues, flow=flow)
    shorter = output_vector_field(vector(1 - epsilon, 0)[:, None], eigenvalues, flow=flow)
    close(turned[1, 0] / epsilon, torch.tensor(-b * 3.0).double(), 1e-6)
    close(shorter[0, 0] / epsilon, torch.tensor(8.0).double(), 1e-6)


@flows
def test_the_discretisation_is_of_first_order(rng, flow):
    q0, eigenvalues = ball(rng, 4, 2), vector(-1, -0.5, 0.5, 1)
    exact = integrate_outputs(q0, eigenvalues, vector(0, 0.5), flow=flow)[-1]
    steps = [0.02, 0.01, 0.005, 0.0025]
    errors = [
        (euler_outputs(q0, eigenvalues, learning_rate=h, steps=round(0.5 / h), flow=flow)[-1] - exact).norm().item()
        for h in steps
    ]
    assert convergence_order(errors, steps) == pytest.approx(1, abs=0.05)


@flows
def test_projected_descent_follows_its_flow_to_first_order_and_no_other(rng, C, flow):
    eigenvalues, V = eigenbasis(C)
    W1, W2 = orthonormal_weights(4, hidden=6, outputs=3, generator=rng)
    q0, steps = outputs(W1, W2, V), [1e-2, 5e-3, 2.5e-3]
    moved = [outputs(*projected_gradient_step(W1, W2, C, learning_rate=h, flow=flow), V) for h in steps]
    for other in FLOWS:
        errors = [
            (q - q0 - h * output_vector_field(q0, eigenvalues, flow=other)).norm().item()
            for q, h in zip(moved, steps, strict=True)
        ]
        assert convergence_order(errors, steps) == pytest.approx(2 if other == flow else 1, abs=0.15)


def test_plain_descent_with_a_qr_factorisation_follows_no_flow(rng, C):
    eigenvalues, V = eigenbasis(C)
    W1, W2 = orthonormal_weights(4, hidden=6, outputs=3, generator=rng)
    q0, steps = outputs(W1, W2, V), [1e-2, 5e-3, 2.5e-3]

    def orthonormal(W):
        Q, R = torch.linalg.qr(W)
        return Q * R.diagonal().sign()

    G1, G2 = trace_loss_gradients(W1, W2, C)
    moved = [outputs(orthonormal(W1 - h * G1), orthonormal(W2 - h * G2), V) for h in steps]
    for flow in FLOWS:
        follows = [q0 + h * output_vector_field(q0, eigenvalues, flow=flow) for h in steps]
        errors = [
            (q @ q.mT - p @ p.mT).norm().item() for q, p in zip(moved, follows, strict=True)
        ]  # free of any rotation of the outputs
        assert convergence_order(errors, steps) == pytest.approx(1, abs=0.15)


def test_the_printed_sign_of_gradient_descent_is_ascent(rng, C):
    W1, W2 = orthonormal_weights(4, hidden=6, outputs=3, generator=rng)
    before = trace_loss(W1, W2, C)
    assert trace_loss(*projected_gradient_step(W1, W2, C, learning_rate=1e-3), C) < before
    assert trace_loss(*projected_gradient_step(W1, W2, -C, learning_rate=1e-3), C) > before  # + η


@flows
def test_projected_descent_stays_on_the_constraint_and_finds_the_minimum(rng, flow):
    C = torch.diag(vector(-2, -1, 1, 3))
    W1, W2 = orthonormal_weights(4, hidden=8, outputs=3, generator=rng)
    for _ in range(600):
        W1, W2 = projected_gradient_step(W1, W2, C, learning_rate=0.05, flow=flow)
    close(W1.mT @ W1, torch.eye(4, dtype=torch.float64))
    close(trace_loss(W1, W2, C), torch.tensor(-3.0).double(), 1e-8)


@flows
@pytest.mark.parametrize(
    ("spectrum", "z"),
    [((-2, 1), 1), ((-0.5, 4), 1), ((-2, -1, 1), 2), ((-3, -2.5), 2), ((-0.5, 3), 2), ((1, 5), 1), ((1, 5), 2)],
)
def test_steps_below_the_stable_bound_return_to_the_minimum_and_steps_above_leave_it(rng, spectrum, z, flow):
    eigenvalues = vector(*spectrum)
    bound = stability_limit(eigenvalues, outputs=z, flow=flow)
    alive = min(z, int((eigenvalues < 0).sum()))
    optimum = torch.diag((torch.arange(len(eigenvalues)) < alive).double())[:, :z]
    start = optimum + 1e-6 * randn(rng, *optimum.shape)

    def distance(factor):
        q = start
        for _ in range(200):
            q = q + factor * bound * output_vector_field(q, eigenvalues, flow=flow)
        return (q @ q.mT - optimum @ optimum.mT).norm()

    assert distance(0.95) < 1e-8
    assert not distance(1.05) < 1e-3


def test_the_bound_of_the_horizontal_flow_is_the_smaller_of_two_and_a_third_where_outputs_vanish():
    assert stability_limit(vector(-1, 2), outputs=1) == pytest.approx(min(1 / 4, 1 / 3))
    assert stability_limit(vector(-3, 2), outputs=1) == pytest.approx(min(1 / 12, 1 / 5))
    assert stability_limit(vector(-0.1, 5), outputs=2) == pytest.approx(1 / 10)
    assert stability_limit(vector(1, 5), outputs=1) == pytest.approx(1 / 10)
    assert stability_limit(vector(0, 0), outputs=1) == float("inf")


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
    q0 = outputs(*orthonormal_weights(4, hidden=hidden, outputs=z, generator=rng), torch.eye(4, dtype=torch.float64))
    t, limit = vector(0, 0.3, 3, 30), stability_limit(eigenvalues, outputs=z, hidden=hidden, flow=flow)
    integrated = integrate_outputs(q0, eigenvalues, t, flow=flow)
    stepped = euler_outputs(q0, eigenvalues, learning_rate=0.9 * limit, steps=600, flow=flow)
    found = [integrated, stepped] + ([canonical_outputs(q0, eigenvalues, t)] if flow == "canonical" else [])
    for path in found:
        close(path[0], q0)
        close(torch.linalg.svdvals(path)[:, :forced], torch.ones(len(path), forced, dtype=torch.float64), 1e-11)
        close(path[-1] @ path[-1].mT, forced_limit(spectrum, hidden, z), 1e-6)
    if flow == "canonical":
        closed = canonical_outputs(q0, eigenvalues, t)
        close(closed @ closed.mT, integrated @ integrated.mT, 1e-8)


@flows
@FORCED
def test_forced_outputs_are_those_of_the_trained_weights(rng, spectrum, hidden, z, flow):
    eigenvalues, W = vector(*spectrum), orthonormal_weights(4, hidden=hidden, outputs=z, generator=rng)
    C, errors, steps = eigenvalues.diag(), [], [0.02, 0.01, 0.005]
    t, q0 = vector(0, 1), W[0].mT @ W[1]
    for h in steps:
        w = W
        for _ in range(round(1 / h)):
            w = projected_gradient_step(*w, C, learning_rate=h, flow=flow)
        trained = w[0].mT @ w[1]
        stepped = euler_outputs(q0, eigenvalues, learning_rate=h, steps=round(1 / h), flow=flow)[-1]
        errors.append(
            max(
                (trained - stepped).norm(), (trained - integrate_outputs(q0, eigenvalues, t, flow=flow)[-1]).norm()
            ).item()
        )
    assert errors[-1] < 0.02
    assert convergence_order(errors, steps) == pytest.approx(1, abs=0.2)


@flows
@FORCED
def test_steps_below_the_stability_limit_of_a_width_reach_the_minimum_and_others_are_an_error(
    rng, spectrum, hidden, z, flow
):
    eigenvalues = vector(*spectrum)
    limit = stability_limit(eigenvalues, outputs=z, hidden=hidden, flow=flow)
    start = outputs(*orthonormal_weights(4, hidden=hidden, outputs=z, generator=rng), torch.eye(4, dtype=torch.float64))
    start = integrate_outputs(start, eigenvalues, vector(5), flow=flow)[0]  # near the minimum, in a general direction
    q = euler_outputs(start, eigenvalues, learning_rate=0.95 * limit, steps=400, flow=flow)[-1]
    close(q @ q.mT, forced_limit(spectrum, hidden, z), 1e-8)
    with pytest.raises(UserError, match="stability limit"):
        euler_outputs(start, eigenvalues, learning_rate=limit, steps=1, flow=flow)


def test_the_length_of_an_output_on_the_sphere_does_not_limit_the_learning_rate():
    assert stability_limit(vector(1, 5), outputs=1, hidden=2) == pytest.approx(
        1 / 4
    )  # the output turns, and cannot vanish
    assert stability_limit(vector(-3, -2.9), outputs=1, hidden=2) == pytest.approx(1 / 0.1)  # nor can it be too short
    assert stability_limit(vector(1, 5), outputs=2, hidden=3) == pytest.approx(1 / 10)  # one of two outputs vanishes
    assert stability_limit(vector(1, 5), outputs=1, hidden=3) == stability_limit(vector(1, 5), outputs=1)
    with pytest.raises(UserError, match="cannot have orthonormal columns"):
        stability_limit(vector(1, 5), outputs=1, hidden=1)
    with pytest.raises(UserError, match="outputs = 0"):
        stability_limit(vector(1, 5), outputs=0)


@pytest.mark.parametrize("flow", FLOWS)
def test_an_output_just_inside_the_sphere_still_vanishes_along_a_positive_eigenvalue(flow):
    q0, eigenvalues = vector(0.6, 0.8)[:, None] * (1 - 1e-7), vector(1, 2)
    close(integrate_outputs(q0, eigenvalues, vector(12), flow=flow)[0], torch.zeros(2, 1, dtype=torch.float64), 1e-6)


def test_new_points_are_embedded_as_the_network_does(rng, C):
    _, V = eigenbasis(C)
    W1, W2 = orthonormal_weights(4, hidden=6, outputs=2, generator=rng)
    X = randn(rng, 5, 4)
    close(embed(X, outputs(W1, W2, V), V), X @ W1.mT @ W2)


def test_impossible_widths_learning_rates_outputs_and_flows_are_errors(rng):
    with pytest.raises(UserError, match="cannot have orthonormal columns: 3 hidden units"):
        orthonormal_weights(4, hidden=3, outputs=2, generator=rng)
    with pytest.raises(UserError, match="use at least 2 hidden units"):
        projected_gradient_step(torch.ones(1, 2), torch.ones(1, 1), torch.eye(2), learning_rate=0.1)
    with pytest.raises(UserError, match=r"stability limit 0\.25"):
        euler_outputs(vector(0.5)[:, None], vector(-1), learning_rate=0.5, steps=1)
    for refused in (
        lambda q: integrate_outputs(q, vector(1), vector(1)),
        lambda q: euler_outputs(q, vector(-1), learning_rate=0.1, steps=1),
    ):
        with pytest.raises(UserError, match="q0 has length 2"):
            refused(vector(2)[:, None])
    with pytest.raises(UserError, match="unknown flow 'polr'"):
        output_vector_field(vector(0.5)[:, None], vector(-1), flow="polr")
    with pytest.raises(UserError, match="cannot have orthonormal columns"):
        projected_gradient_descent(lambda W: W[0].sum(), (torch.ones(2, 3).double(),), learning_rate=0.1)
    with pytest.raises(UserError, match="float32"):
        projected_gradient_descent(lambda W: W[0].sum(), (torch.ones(3, 2),), learning_rate=0.1)


@pytest.mark.usefixtures("no_shape_checks")
def test_wrong_shapes_are_errors():
    with pytest.raises(UserError, match="do not match"):
        trace_loss(torch.ones(3, 2), torch.ones(4, 1), torch.eye(2))
    with pytest.raises(UserError, match="do not match"):
        output_vector_field(torch.ones(3, 2), torch.ones(4))


@pytest.fixture
def X(rng):
    return randn(rng, 3, 8, 3)


@pytest.fixture
def start(rng):
    return orthonormal_weights(3, hidden=7, outputs=2, generator=rng)


def contrastive(X, activation="linear"):
    return lambda W: sum(contrastive_linear(*network_outputs(*W, X, activation=activation)).values())


def test_on_the_contrastive_loss_projected_gradient_descent_repeats_the_projected_step(X, start):
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
    assert convergence_order(errors, steps) == pytest.approx(2, abs=0.1)


def test_projected_gradient_descent_ends_in_the_eigenvectors(X, start):
    C = pair_matrix(*X)
    ((W1, W2),) = islice(projected_gradient_descent(contrastive(X), start, learning_rate=0.05), 400, 401)
    eigenvalues, _ = eigenbasis(C)
    close(trace_loss(W1, W2, C), eigenvalues[:2].clamp(max=0).sum(), 1e-6)


def test_many_networks_at_once_are_trained_independently(X, rng):
    starts = [orthonormal_weights(3, hidden=7, outputs=2, generator=rng) for _ in range(3)]
    together = tuple(torch.stack(layers) for layers in zip(*starts, strict=True))
    loss = contrastive(X, "tanh")
    *_, last = islice(
        projected_gradient_descent(
            lambda W: sum(loss(pair) for pair in zip(*W, strict=True)), together, learning_rate=0.01
        ),
        6,
    )
    for k, alone in enumerate(starts):
        *_, expected = islice(projected_gradient_descent(loss, alone, learning_rate=0.01), 6)
        close(last[0][k], expected[0])
        close(last[1][k], expected[1])
