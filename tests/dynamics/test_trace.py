import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp

from fullrank.dynamics.contrastive_pairs import eigenbasis
from fullrank.dynamics.trace import (
    FLOWS,
    canonical_outputs,
    discretised,
    embed,
    gradients,
    integrated,
    orthonormal_weights,
    output_flow,
    projected_step,
    scaled_loss,
    stable_step,
    trace_loss,
    weight_flow,
)
from fullrank.errors import UserError

flows = pytest.mark.parametrize("flow", FLOWS)
widths = pytest.mark.parametrize("hidden", [4, 5, 40])  # h = d, h < d + z, wide


@pytest.fixture
def C(rng):
    G = torch.randn(4, 4, dtype=torch.float64, generator=rng)
    return (G + G.mT) / 2


def numbers(*values):
    return torch.tensor(values, dtype=torch.float64)


def close(x, y, tolerance=1e-12):
    torch.testing.assert_close(x, y, rtol=tolerance, atol=tolerance)


def outputs(W1, W2, V):
    return V.mT @ W1.mT @ W2


def ball(rng, d, z, largest=0.9):
    U, s, Vh = torch.linalg.svd(torch.randn(d, z, dtype=torch.float64, generator=rng), full_matrices=False)
    return U * (largest * s / s[0]) @ Vh


def order(errors, steps):
    return np.polyfit(np.log(steps), np.log(errors), 1)[0]


def test_the_loss_is_the_sum_of_quadratic_forms_of_the_outputs(rng, C):
    W1, W2 = orthonormal_weights(4, hidden=6, outputs=2, generator=rng)
    A = W1.mT @ W2
    naive = sum(A[i, k] * C[i, j] * A[j, k] for i in range(4) for j in range(4) for k in range(2))
    close(trace_loss(W1, W2, C), naive)
    close(scaled_loss(3 * W1, W2 / 7, C), naive)
    assert trace_loss(W1, W2, -torch.eye(4, dtype=torch.float64)) < 0  # the squared norm that the paper prints is never negative


def test_gradients_are_those_of_autograd(rng, C):
    W1, W2 = (torch.randn(5, k, dtype=torch.float64, generator=rng).requires_grad_() for k in (4, 2))
    expected = torch.autograd.grad(trace_loss(W1, W2, C), (W1, W2))
    for G, expectation in zip(gradients(W1.detach(), W2.detach(), C), expected, strict=True):
        close(G, expectation)


@widths
def test_initial_weights_have_orthonormal_columns(rng, hidden):
    for W in orthonormal_weights(4, hidden=hidden, outputs=3, generator=rng):
        close(W.mT @ W, torch.eye(W.shape[1], dtype=torch.float64))


@flows
@widths
def test_the_outputs_move_as_the_weights_make_them(rng, C, hidden, flow):
    eigenvalues, V = eigenbasis(C)
    W1, W2 = orthonormal_weights(4, hidden=hidden, outputs=3, generator=rng)
    U1, U2 = weight_flow(W1, W2, C, flow=flow)
    close(V.mT @ (U1.mT @ W2 + W1.mT @ U2), output_flow(outputs(W1, W2, V), eigenvalues, flow=flow))


@flows
def test_velocities_are_tangent_and_lower_the_loss(rng, C, flow):
    W1, W2 = orthonormal_weights(4, hidden=6, outputs=3, generator=rng)
    U1, U2 = weight_flow(W1, W2, C, flow=flow)
    for W, U in ((W1, U1), (W2, U2)):
        close(W.mT @ U + U.mT @ W, torch.zeros(W.shape[1], W.shape[1], dtype=torch.float64))
    G1, G2 = gradients(W1, W2, C)
    assert (G1 * U1).sum() + (G2 * U2).sum() < 0


def test_the_polar_velocity_is_the_projected_gradient_and_the_horizontal_one_is_not(rng, C):
    W1, W2 = orthonormal_weights(4, hidden=6, outputs=3, generator=rng)
    skew = torch.randn(4, 4, dtype=torch.float64, generator=rng)
    normal = torch.randn(6, 6, dtype=torch.float64, generator=rng) @ W1
    tangent = W1 @ (skew - skew.mT) + normal - W1 @ (W1.mT @ normal)  # any direction along the constraint
    G1, _ = gradients(W1, W2, C)
    slope = (G1 * tangent).sum()
    close((-weight_flow(W1, W2, C, flow="polar")[0] * tangent).sum(), slope)
    assert not torch.isclose((-weight_flow(W1, W2, C)[0] * tangent).sum(), slope, rtol=0.01)


def test_the_horizontal_flow_freezes_a_square_first_layer_and_the_others_do_not(rng, C):
    W1, W2 = orthonormal_weights(4, hidden=4, outputs=2, generator=rng)
    assert weight_flow(W1, W2, C)[0].norm() < 1e-12
    assert weight_flow(W1, W2, C, flow="polar")[0].norm() > 0.1


@flows
@widths
def test_outputs_are_integrated_as_the_weights_would_be(rng, C, hidden, flow):
    eigenvalues, V = eigenbasis(C)
    W1, W2 = orthonormal_weights(4, hidden=hidden, outputs=2, generator=rng)
    t = numbers(0, 0.1, 0.3)

    def velocity(_, y):
        weights = (torch.as_tensor(piece).view(hidden, -1) for piece in (y[: 4 * hidden], y[4 * hidden :]))
        return torch.cat([U.flatten() for U in weight_flow(*weights, C, flow=flow)]).numpy()

    start = torch.cat([W1.flatten(), W2.flatten()]).numpy()
    rows = torch.as_tensor(solve_ivp(velocity, (0, 0.3), start, method="DOP853", t_eval=t.numpy(), rtol=1e-11, atol=1e-13).y.T)
    trained = torch.stack([outputs(row[: 4 * hidden].view(hidden, 4), row[4 * hidden :].view(hidden, 2), V) for row in rows])
    close(integrated(trained[0], eigenvalues, t, flow=flow), trained, 1e-9)


def test_integration_ends_where_it_is_asked_to(rng):
    q0, eigenvalues = ball(rng, 3, 2), numbers(-1, 0.5, 2)
    close(integrated(q0, eigenvalues, numbers(0)), q0[None])
    rough, fine = (integrated(q0, eigenvalues, numbers(0.7), rtol=tolerance)[0] for tolerance in (1e-3, 1e-12))
    assert 1e-10 < (rough - fine).norm() < 1e-2


@flows
def test_training_does_not_see_the_width(rng, C, flow):
    W1, W2 = orthonormal_weights(4, hidden=5, outputs=2, generator=rng)
    isometry = torch.linalg.qr(torch.randn(60, 5, dtype=torch.float64, generator=rng)).Q
    narrow, wide = (W1, W2), (isometry @ W1, isometry @ W2)  # weights of any width that make the same outputs are such
    for _ in range(20):
        narrow, wide = (projected_step(*weights, C, step=0.05, flow=flow) for weights in (narrow, wide))
    close(narrow[0].mT @ narrow[1], wide[0].mT @ wide[1], 1e-10)


def test_with_one_output_the_horizontal_flow_is_equation_10(rng):
    q, eigenvalues = ball(rng, 4, 1), numbers(-2, -1, 1, 3)
    Lq = torch.diag(eigenvalues) @ q
    close(output_flow(q, eigenvalues), -2 * ((1 - q.mT @ q) * Lq + (torch.eye(4, dtype=torch.float64) - q @ q.mT) @ Lq))


@flows
@pytest.mark.parametrize("z", [1, 2])
def test_the_flow_keeps_the_outputs_in_the_unit_ball_and_lowers_the_loss(rng, z, flow):
    eigenvalues = numbers(-2, -1, 1, 3)
    q = integrated(ball(rng, 4, z, largest=0.999), eigenvalues, torch.linspace(0, 1, 20, dtype=torch.float64), flow=flow)
    assert torch.linalg.svdvals(q).max() <= 1 + 1e-10
    assert (q * (eigenvalues[:, None] * q)).sum((1, 2)).diff().max() < 0


@flows
def test_one_output_conserves_a_quantity_for_each_pair_of_eigenvalues(rng, flow):
    q0, eigenvalues, (_, b) = ball(rng, 3, 1, largest=0.5), numbers(-1, 0.5, 2), FLOWS[flow]
    q = integrated(q0, eigenvalues, torch.linspace(0, 0.5, 6, dtype=torch.float64), flow=flow)[..., 0]
    rest = b / 8 * torch.log1p(-q.square().sum(1))
    for i, j in ((0, 1), (1, 2)):
        low, high = eigenvalues[i], eigenvalues[j]
        kept = high * q[:, i].abs().log() - low * q[:, j].abs().log() - (high - low) * rest
        close(kept, kept[:1].expand(6), 1e-9)


@flows
def test_orthonormal_outputs_stay_orthonormal(rng, flow):
    q0 = torch.linalg.qr(torch.randn(4, 2, dtype=torch.float64, generator=rng)).Q
    velocity = output_flow(q0, numbers(-2, -1, 1, 3), flow=flow)
    close(q0.mT @ velocity + velocity.mT @ q0, torch.zeros(2, 2, dtype=torch.float64))


@pytest.mark.parametrize("spectrum", [(-2, -1, 1, 3), (0.5, 1, 2, 3), (-3, -2, -1, -0.5)])
def test_the_closed_form_of_the_canonical_flow_equals_its_integrated_equation(rng, spectrum):
    eigenvalues, t = numbers(*spectrum), numbers(0, 0.1, 0.5, 1)
    q0 = ball(rng, 4, 1)
    close(canonical_outputs(q0, eigenvalues, t), integrated(q0, eigenvalues, t, flow="canonical"), 1e-9)
    q0 = ball(rng, 4, 3)
    ode, closed = integrated(q0, eigenvalues, t, flow="canonical"), canonical_outputs(q0, eigenvalues, t)
    close(closed @ closed.mT, ode @ ode.mT, 1e-8)
    close(closed[0], q0)


def test_the_closed_form_reaches_its_limits_without_overflow(rng):
    q0, late = ball(rng, 3, 1), numbers(1e4)
    close(canonical_outputs(q0, numbers(-2, 1, 3), late)[0, :, 0], q0[0].sign() * numbers(1, 0, 0))
    close(canonical_outputs(q0, numbers(0.5, 1, 3), late)[0, :, 0], numbers(0, 0, 0))


def test_the_closed_form_ends_where_the_start_lets_it_and_says_when_it_cannot_tell(rng):
    eigenvalues, late = numbers(-1, -0.5, 2), numbers(1e3)
    for start, end in (((0, -0.4, 0.3), (0, -1, 0)), ((0, 0, 0.3), (0, 0, 0)), ((0, 0, 1), (0, 0, 1)), ((0, 0, 0), (0, 0, 0))):
        close(canonical_outputs(numbers(*start)[:, None], eigenvalues, late)[0, :, 0], numbers(*end))
    with pytest.raises(UserError, match=r"by t = 1000 some outputs are too small .* `limit_projector`"):
        canonical_outputs(ball(rng, 3, 2), eigenvalues, late)


def test_the_closed_form_keeps_what_is_small_where_other_outputs_have_long_ended(rng):
    q, eigenvalues = ball(rng, 4, 3), numbers(-3, -1.5, -1, 1)
    at_once = canonical_outputs(q, eigenvalues, numbers(5))[0]  # e^{4·2·5} is beyond 1e16
    for _ in range(40):
        q = canonical_outputs(q, eigenvalues, numbers(1 / 8))[0]
    close(at_once @ at_once.mT, q @ q.mT)


@flows
def test_outputs_turn_and_grow_at_the_rates_of_the_linearisation(flow):
    eigenvalues, (_, b), epsilon = numbers(-1, 2), FLOWS[flow], 1e-7
    turned = output_flow(numbers(1, epsilon)[:, None], eigenvalues, flow=flow)
    shorter = output_flow(numbers(1 - epsilon, 0)[:, None], eigenvalues, flow=flow)
    close(turned[1, 0] / epsilon, torch.tensor(-b * 3.0).double(), 1e-6)
    close(shorter[0, 0] / epsilon, torch.tensor(8.0).double(), 1e-6)


@flows
def test_the_discretisation_is_of_first_order(rng, flow):
    q0, eigenvalues = ball(rng, 4, 2), numbers(-1, -0.5, 0.5, 1)
    exact = integrated(q0, eigenvalues, numbers(0, 0.5), flow=flow)[-1]
    steps = [0.02, 0.01, 0.005, 0.0025]
    errors = [(discretised(q0, eigenvalues, step=h, steps=round(0.5 / h), flow=flow)[-1] - exact).norm().item() for h in steps]
    assert order(errors, steps) == pytest.approx(1, abs=0.05)


@flows
def test_projected_descent_follows_its_flow_to_first_order_and_no_other(rng, C, flow):
    eigenvalues, V = eigenbasis(C)
    W1, W2 = orthonormal_weights(4, hidden=6, outputs=3, generator=rng)
    q0, steps = outputs(W1, W2, V), [1e-2, 5e-3, 2.5e-3]
    moved = [outputs(*projected_step(W1, W2, C, step=h, flow=flow), V) for h in steps]
    for other in FLOWS:
        errors = [(q - q0 - h * output_flow(q0, eigenvalues, flow=other)).norm().item() for q, h in zip(moved, steps, strict=True)]
        assert order(errors, steps) == pytest.approx(2 if other == flow else 1, abs=0.15)


def test_plain_descent_with_a_qr_factorisation_follows_no_flow(rng, C):
    eigenvalues, V = eigenbasis(C)
    W1, W2 = orthonormal_weights(4, hidden=6, outputs=3, generator=rng)
    q0, steps = outputs(W1, W2, V), [1e-2, 5e-3, 2.5e-3]

    def orthonormal(W):
        Q, R = torch.linalg.qr(W)
        return Q * R.diagonal().sign()

    G1, G2 = gradients(W1, W2, C)
    moved = [outputs(orthonormal(W1 - h * G1), orthonormal(W2 - h * G2), V) for h in steps]
    for flow in FLOWS:
        follows = [q0 + h * output_flow(q0, eigenvalues, flow=flow) for h in steps]
        errors = [(q @ q.mT - p @ p.mT).norm().item() for q, p in zip(moved, follows, strict=True)]  # free of any rotation of the outputs
        assert order(errors, steps) == pytest.approx(1, abs=0.15)


def test_the_printed_sign_of_gradient_descent_is_ascent(rng, C):
    W1, W2 = orthonormal_weights(4, hidden=6, outputs=3, generator=rng)
    before = trace_loss(W1, W2, C)
    assert trace_loss(*projected_step(W1, W2, C, step=1e-3), C) < before
    assert trace_loss(*projected_step(W1, W2, -C, step=1e-3), C) > before  # + η


@flows
def test_projected_descent_stays_on_the_constraint_and_finds_the_minimum(rng, flow):
    C = torch.diag(numbers(-2, -1, 1, 3))
    W1, W2 = orthonormal_weights(4, hidden=8, outputs=3, generator=rng)
    for _ in range(600):
        W1, W2 = projected_step(W1, W2, C, step=0.05, flow=flow)
    close(W1.mT @ W1, torch.eye(4, dtype=torch.float64))
    close(trace_loss(W1, W2, C), torch.tensor(-3.0).double(), 1e-8)


@flows
@pytest.mark.parametrize(
    ("spectrum", "z"),
    [((-2, 1), 1), ((-0.5, 4), 1), ((-2, -1, 1), 2), ((-3, -2.5), 2), ((-0.5, 3), 2), ((1, 5), 1), ((1, 5), 2)],
)
def test_steps_below_the_stable_bound_return_to_the_minimum_and_steps_above_leave_it(rng, spectrum, z, flow):
    eigenvalues = numbers(*spectrum)
    bound = stable_step(eigenvalues, outputs=z, flow=flow)
    alive = min(z, int((eigenvalues < 0).sum()))
    optimum = torch.diag((torch.arange(len(eigenvalues)) < alive).double())[:, :z]
    start = optimum + 1e-6 * torch.randn(optimum.shape, dtype=torch.float64, generator=rng)

    def distance(factor):
        q = start
        for _ in range(200):
            q = q + factor * bound * output_flow(q, eigenvalues, flow=flow)
        return (q @ q.mT - optimum @ optimum.mT).norm()

    assert distance(0.95) < 1e-8
    assert not distance(1.05) < 1e-3


def test_the_bound_of_the_horizontal_flow_is_the_smaller_of_two_and_a_third_where_outputs_vanish():
    assert stable_step(numbers(-1, 2), outputs=1) == pytest.approx(min(1 / 4, 1 / 3))
    assert stable_step(numbers(-3, 2), outputs=1) == pytest.approx(min(1 / 12, 1 / 5))
    assert stable_step(numbers(-0.1, 5), outputs=2) == pytest.approx(1 / 10)
    assert stable_step(numbers(1, 5), outputs=1) == pytest.approx(1 / 10)
    assert stable_step(numbers(0, 0), outputs=1) == float("inf")


def test_new_points_are_embedded_as_the_network_does(rng, C):
    _, V = eigenbasis(C)
    W1, W2 = orthonormal_weights(4, hidden=6, outputs=2, generator=rng)
    X = torch.randn(5, 4, dtype=torch.float64, generator=rng)
    close(embed(X, outputs(W1, W2, V), V), X @ W1.mT @ W2)


def test_bad_input_is_refused_with_a_remedy(rng):
    with pytest.raises(UserError, match=r"no orthonormal columns with 3 hidden units for 4 inputs and 2 outputs; take at least 4"):
        orthonormal_weights(4, hidden=3, outputs=2, generator=rng)
    with pytest.raises(UserError, match=r"take at least 2, or fewer inputs"):
        projected_step(torch.ones(1, 2), torch.ones(1, 1), torch.eye(2), step=0.1)
    with pytest.raises(UserError, match=r"step 0\.5 is not between 0 and the stable bound 0\.25"):
        discretised(numbers(0.5)[:, None], numbers(-1), step=0.5, steps=1)
    with pytest.raises(UserError, match=r"outputs of length 2 cannot come from orthonormal weights"):
        integrated(numbers(2)[:, None], numbers(1), numbers(1))
    with pytest.raises(UserError, match=r"outputs of length 2 cannot come from orthonormal weights"):
        discretised(numbers(2)[:, None], numbers(-1), step=0.1, steps=1)
    with pytest.raises(UserError, match=r"times must .*ascend"):
        integrated(numbers(0.5)[:, None], numbers(1), numbers(1, 0.5))
    with pytest.raises(UserError, match=r"unknown flow 'polr'; choose from canonical, horizontal, polar; did you mean 'polar'"):
        output_flow(numbers(0.5)[:, None], numbers(-1), flow="polr")


@pytest.mark.usefixtures("unchecked")
def test_shapes_that_do_not_fit_are_refused():
    with pytest.raises(UserError, match=r"W1 \(3, 2\), W2 \(4, 1\) and C \(2, 2\) do not fit"):
        trace_loss(torch.ones(3, 2), torch.ones(4, 1), torch.eye(2))
    with pytest.raises(UserError, match=r"outputs \(3, 2\) and 4 eigenvalues do not fit"):
        output_flow(torch.ones(3, 2), torch.ones(4))
