"""Minima of the constrained trace loss and limits of its flows, compared with descent and integration."""

import pytest
import torch
from dynamics_helpers import close, orthogonal, randn, vector
from scipy.integrate import solve_ivp

from fullrank.errors import UserError
from fullrank_papers.theory.optimum import (
    forced_rank,
    formulations_are_equivalent,
    minimizing_weights,
    minimum_loss,
    output_limit,
    output_limit_projector,
)
from fullrank_papers.theory.trace import (
    FLOWS,
    orthonormal_weights,
    output_vector_field,
    projected_gradient_step,
    scaled_loss,
    trace_loss,
)

flows = pytest.mark.parametrize("flow", FLOWS)


SPECTRA = [(-1, 0.5, 1, 2), (-2, -1, 0.5, 1), (-4, -3, -2, -1), (0.5, 1, 2, 3)]


SIZES = [(h, z) for h in range(4, 9) for z in range(1, 6) if h >= z]


def rotated(eigenvalues, rng):
    V = orthogonal(rng, len(eigenvalues))
    C = V @ torch.diag(eigenvalues) @ V.mT
    return (C + C.mT) / 2


def ended(q0, eigenvalues, flow, t=60.0):
    right = lambda _, y: output_vector_field(torch.as_tensor(y).view_as(q0), eigenvalues, flow=flow).flatten().numpy()  # noqa: E731
    ode = solve_ivp(right, (0, t), q0.flatten().numpy(), method="DOP853", rtol=1e-11, atol=1e-13)
    return torch.as_tensor(ode.y[:, -1]).view_as(q0)


def test_the_printed_equivalence_fails_without_the_corrected_condition():
    C = vector(-1, 0.5, 1, 2)  # it has a negative eigenvalue, which is all that the paper asks for
    assert minimum_loss(C, hidden=4, outputs=2, formulation="bounded") == -1
    assert minimum_loss(C, hidden=4, outputs=2) == -0.5
    assert minimum_loss(C, hidden=4, outputs=3) == 0.5
    assert minimum_loss(C, hidden=7, outputs=3) == -1


@pytest.mark.parametrize("spectrum", SPECTRA)
@pytest.mark.parametrize(("hidden", "outputs"), SIZES)
def test_the_minimizer_is_orthonormal_and_attains_the_minimum(rng, spectrum, hidden, outputs):
    eigenvalues = vector(*spectrum)
    C = rotated(eigenvalues, rng)
    W1, W2 = minimizing_weights(C, hidden=hidden, outputs=outputs)
    for W in (W1, W2):
        close(W.mT @ W, torch.eye(W.shape[1], dtype=torch.float64), 1e-10)
    close(trace_loss(W1, W2, C), minimum_loss(eigenvalues, hidden=hidden, outputs=outputs), 1e-10)


@pytest.mark.parametrize("spectrum", SPECTRA)
@pytest.mark.parametrize(("hidden", "outputs"), SIZES)
def test_formulations_agree_exactly_when_they_are_equivalent(spectrum, hidden, outputs):
    eigenvalues = vector(*spectrum)
    values = [
        minimum_loss(eigenvalues, hidden=hidden, outputs=outputs, formulation=f)
        for f in ("scaled", "bounded", "product", "orthonormal")
    ]
    assert values[0] == values[1] == values[2] <= values[3]
    assert formulations_are_equivalent(eigenvalues, hidden=hidden, outputs=outputs) == (values[2] == values[3])
    negative = int((eigenvalues < 0).sum())
    assert formulations_are_equivalent(eigenvalues, hidden=hidden, outputs=outputs) == (
        hidden >= 4 + outputs - min(negative, 4, outputs)
    )


@pytest.mark.parametrize(("hidden", "outputs"), [(4, 2), (4, 3), (5, 2), (8, 3)])
def test_descent_from_random_weights_ends_at_the_minimum(rng, hidden, outputs):
    eigenvalues = vector(-1, 0.5, 1, 2)
    C = rotated(eigenvalues, rng)
    W1, W2 = orthonormal_weights(4, hidden=hidden, outputs=outputs, generator=rng)
    for _ in range(1500):
        W1, W2 = projected_gradient_step(W1, W2, C, learning_rate=0.05)
    close(trace_loss(W1, W2, C), minimum_loss(eigenvalues, hidden=hidden, outputs=outputs), 1e-6)


@pytest.mark.parametrize("hidden", [2, 4, 7])
def test_no_weights_have_a_scaled_loss_below_the_minimum_and_a_narrow_network_attains_it(rng, hidden):
    eigenvalues = vector(-2, -1, -0.5, 2)
    C = torch.diag(eigenvalues)
    least = minimum_loss(eigenvalues, hidden=hidden, outputs=3, formulation="scaled")
    for _ in range(200):
        assert scaled_loss(randn(rng, hidden, 4), randn(rng, hidden, 3), C) >= least
    close(scaled_loss(torch.eye(hidden, 4).double(), torch.eye(hidden, 3).double(), C), least)


def test_the_rank_that_orthonormal_columns_force_is_attained(rng):
    for hidden, outputs in SIZES:
        W1, W2 = orthonormal_weights(4, hidden=hidden, outputs=outputs, generator=rng)
        s = torch.linalg.svdvals(W1.mT @ W2)
        assert int((s > 1 - 1e-12).sum()) == forced_rank(4, hidden=hidden, outputs=outputs)


def test_frobenius_bounds_make_the_best_weights_of_rank_one(rng):
    eigenvalues, c1, c2 = vector(-2, -2, 1), 1.5, 0.5  # collapse in spite of a double eigenvalue
    C, least = torch.diag(eigenvalues), c1**2 * c2**2 * eigenvalues[0]
    W1, W2 = randn(rng, 5, 3), randn(rng, 5, 2)
    best = torch.inf
    for _ in range(3000):  # projected gradient descent on the two spheres
        W1, W2 = (W.detach().requires_grad_() for W in (c1 * W1 / W1.norm(), c2 * W2 / W2.norm()))
        loss = trace_loss(W1, W2, C)
        G1, G2 = torch.autograd.grad(loss, (W1, W2))
        best = loss.item()
        assert best >= least - 1e-12
        W1, W2 = W1 - 0.05 * G1, W2 - 0.05 * G2
    assert best == pytest.approx(least.item(), abs=1e-6)
    s = torch.linalg.svdvals(W1.mT @ W2)
    assert s[1] < 1e-3 * s[0]


@flows
@pytest.mark.parametrize(
    ("q0", "spectrum", "expected"),
    [
        ((0.1, 0.5, 0.3), (-1, 0.5, 2), (1, 0, 0)),
        ((-0.1, 0.5, 0.3), (-1, 0.5, 2), (-1, 0, 0)),  # the sign of the start
        ((0.0, -0.4, 0.3), (-2, -1, 2), (0, -1, 0)),  # orthogonal to e₁
        ((0.0, 0.4, 0.3), (-1, 1, 2), (0, 0, 0)),  # and no other negative eigenvalue
        ((0.3, 0.4, 0.3), (-1, -1, 2), (0.6, 0.8, 0)),  # a multiple eigenvalue
        ((0.3, 0.4, 0.3), (0.5, 1, 2), (0, 0, 0)),
    ],
)
def test_one_output_ends_at_its_limit(q0, spectrum, expected, flow):
    q0, eigenvalues = vector(*q0), vector(*spectrum)
    close(output_limit(q0, eigenvalues, b=FLOWS[flow][1]), vector(*expected))
    close(ended(q0[:, None], eigenvalues, flow)[:, 0], vector(*expected), 1e-8)


@flows
def test_one_output_ends_inside_the_ball_where_the_lowest_eigenvalue_is_zero(flow):
    q0, eigenvalues = vector(-0.3, 0.2, 0.6), vector(0, 0, 1)
    q = output_limit(q0, eigenvalues, b=FLOWS[flow][1])
    assert 0 < q.norm() < 1
    close(ended(q0[:, None], eigenvalues, flow)[:, 0], q, 1e-8)


@flows
def test_one_output_of_length_one_stays_so_even_if_all_eigenvalues_are_positive(flow):
    q0, eigenvalues = vector(-0.6, 0.8), vector(0.1, 1)
    close(output_limit(q0, eigenvalues), vector(-1, 0))
    close(
        ended(q0[:, None], eigenvalues, flow, t=7.0)[:, 0], vector(-1, 0), 1e-4
    )  # later, rounding errors leave the unstable sphere


def test_zero_outputs_stay_zero():
    close(output_limit(vector(0, 0), vector(-1, 1)), vector(0, 0))


@flows
@pytest.mark.parametrize(
    ("spectrum", "hidden", "outputs"), [((-2, -1, 0.5, 1), 9, 3), ((-3, -2, -1, 1), 9, 2), ((-1, 0.5, 1, 2), 5, 3)]
)
def test_several_outputs_end_on_the_lowest_eigenvectors(rng, spectrum, hidden, outputs, flow):
    W1, W2 = orthonormal_weights(4, hidden=hidden, outputs=outputs, generator=rng)
    C = torch.diag(vector(*spectrum))
    for _ in range(1500):  # on the weights: what they force to 1 is unstable for the outputs alone
        W1, W2 = projected_gradient_step(W1, W2, C, learning_rate=0.05, flow=flow)
    q = W1.mT @ W2
    close(q @ q.mT, output_limit_projector(vector(*spectrum), hidden=hidden, outputs=outputs), 1e-6)


def test_the_limit_of_several_outputs_does_not_depend_on_rounding(rng):
    found = torch.linalg.eigvalsh(rotated(vector(-1, 0, 0, 2), rng))
    assert (found[1:3] != 0).any()
    for outputs in (2, 3):
        with pytest.raises(UserError, match="zero or multiple"):
            output_limit_projector(found, hidden=9, outputs=outputs)
    close(output_limit_projector(found, hidden=9, outputs=1), torch.diag(vector(1, 0, 0, 0)))


def test_impossible_widths_outputs_and_limits_are_errors():
    with pytest.raises(UserError, match="cannot have orthonormal columns: 3 hidden units"):
        minimum_loss(vector(-1, 0, 1, 2), hidden=3, outputs=1)
    with pytest.raises(UserError, match="q0 has length 2"):
        output_limit(vector(2, 0), vector(-1, 1))
    for spectrum in ((-1, -1, 1), (-1, 0, 1)):
        with pytest.raises(UserError, match="zero or multiple"):
            output_limit_projector(vector(*spectrum), hidden=9, outputs=1 if spectrum[1] else 2)


@pytest.mark.usefixtures("no_shape_checks")
def test_an_unknown_formulation_is_an_error():
    with pytest.raises(UserError, match="unknown formulation 'frobenius'"):
        minimum_loss(vector(-1, 0), hidden=3, outputs=1, formulation="frobenius")
