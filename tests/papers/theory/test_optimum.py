"""Minima of the constrained trace loss and limits of its flows, compared with descent and integration."""

import pytest
import torch
from dynamics_helpers import close, integrate, orthogonal, vector

from fullrank_papers.theory import trace
from fullrank_papers.theory.optimum import minimum_loss, output_limit, output_limit_projector

flows = pytest.mark.parametrize("flow", trace.FLOWS)


SPECTRA = [(-1, 0.5, 1, 2), (-2, -1, 0.5, 1), (-4, -3, -2, -1), (0.5, 1, 2, 3)]


def rotated(eigenvalues, rng):
    V = orthogonal(rng, len(eigenvalues))
    C = V @ torch.diag(eigenvalues) @ V.mT
    return (C + C.mT) / 2


def ended(q0, eigenvalues, flow):
    return integrate(lambda q: trace.output_vector_field(q, eigenvalues, flow=flow), q0, vector(0, 60))[-1]


@pytest.mark.parametrize("spectrum", SPECTRA)
@pytest.mark.parametrize(("hidden", "outputs"), [(4, 2), (4, 4), (5, 2), (6, 3), (8, 4)])
def test_formulations_agree_exactly_with_enough_hidden_units_for_the_outputs_that_vanish(spectrum, hidden, outputs):
    eigenvalues = vector(*spectrum)
    values = [
        minimum_loss(eigenvalues, hidden=hidden, outputs=outputs, formulation=f)
        for f in ("scaled", "bounded", "product", "orthonormal")
    ]
    assert values[0] == values[1] == values[2] <= values[3]
    negative = int((eigenvalues < 0).sum())
    assert (values[2] == values[3]) == (hidden >= 4 + outputs - min(negative, 4, outputs))


@pytest.mark.parametrize(("hidden", "outputs"), [(4, 2), (4, 3), (5, 2), (8, 3)])
def test_descent_from_random_weights_ends_at_the_minimum(rng, hidden, outputs):
    eigenvalues = vector(-1, 0.5, 1, 2)
    C = rotated(eigenvalues, rng)
    W1, W2 = trace.orthonormal_weights(4, hidden=hidden, outputs=outputs, generator=rng)
    for _ in range(1500):
        W1, W2 = trace.projected_gradient_step(W1, W2, C, learning_rate=0.05)
    close(trace.trace_loss(W1, W2, C), minimum_loss(eigenvalues, hidden=hidden, outputs=outputs), 1e-6)


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
    close(output_limit(q0, eigenvalues, b=trace.FLOWS[flow][1]), vector(*expected))
    close(ended(q0[:, None], eigenvalues, flow)[:, 0], vector(*expected), 1e-8)


@flows
def test_one_output_ends_inside_the_ball_where_the_lowest_eigenvalue_is_zero(flow):
    q0, eigenvalues = vector(-0.3, 0.2, 0.6), vector(0, 0, 1)
    q = output_limit(q0, eigenvalues, b=trace.FLOWS[flow][1])
    assert 0 < q.norm() < 1
    close(ended(q0[:, None], eigenvalues, flow)[:, 0], q, 1e-8)


@pytest.mark.parametrize(
    ("spectrum", "hidden", "outputs"), [((-2, -1, 0.5, 1), 9, 3), ((-3, -2, -1, 1), 9, 2), ((-1, 0.5, 1, 2), 5, 3)]
)
def test_several_outputs_end_on_the_lowest_eigenvectors(rng, spectrum, hidden, outputs):
    W1, W2 = trace.orthonormal_weights(4, hidden=hidden, outputs=outputs, generator=rng)
    C = torch.diag(vector(*spectrum))
    for _ in range(1500):  # on the weights: what they force to 1 is unstable for the outputs alone
        W1, W2 = trace.projected_gradient_step(W1, W2, C, learning_rate=0.05)
    q = W1.mT @ W2
    close(q @ q.mT, output_limit_projector(vector(*spectrum), hidden=hidden, outputs=outputs), 1e-6)
