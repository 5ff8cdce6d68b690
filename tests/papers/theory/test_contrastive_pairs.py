"""Trace losses over pairs and their unconstrained flow, compared with the actual losses and the integrated equation."""

import math

import pytest
import torch
from dynamics_helpers import close, integrate, orthogonal, randn, symmetric, vector

from fullrank.errors import UserError
from fullrank_papers.theory.contrastive_pairs import eigenbasis, pair_matrix, unconstrained_weights
from fullrank_papers.theory.infonce import driven_vector_field
from fullrank_papers.theory.objectives import alignment_linear, contrastive_linear


def total(terms):
    return sum(terms.values())


def test_the_trace_is_the_loss_of_the_objectives_and_not_with_the_printed_sign(rng):
    X, X_pos, X_neg, A = randn(rng, 7, 4), randn(rng, 7, 4), randn(rng, 7, 4), randn(rng, 4, 3)
    trace = lambda C: torch.trace(A.mT @ C @ A)  # noqa: E731
    close(trace(pair_matrix(X, X_pos, X_neg)), total(contrastive_linear(X @ A, X_pos @ A, X_neg @ A)))
    close(trace(pair_matrix(X, X_pos)), total(alignment_linear(X @ A, X_pos @ A)))
    assert trace(-pair_matrix(X, X_pos)) != total(alignment_linear(X @ A, X_pos @ A))


@pytest.mark.parametrize("average", [False, True])
def test_several_pairs_equal_the_sum_over_them(rng, average):
    n, p, q = 5, 2, 3
    X, X_pos, X_neg = randn(rng, n, 4), randn(rng, n, p, 4), randn(rng, n, q, 4)
    C = torch.zeros(4, 4, dtype=torch.float64)
    for i in range(n):
        for j in range(q):
            C += torch.outer(X[i], X_neg[i, j]) / (n * q if average else 1)
        for j in range(p):
            C -= torch.outer(X[i], X_pos[i, j]) / (n * p if average else 1)
    close(pair_matrix(X, X_pos, X_neg, average=average), (C + C.mT) / 2)


def test_in_expectation_the_matrix_is_minus_the_covariance_and_not_the_second_moment(rng):
    X = randn(rng, 6, 3) + 2
    C = pair_matrix(
        X, X, X.expand(6, 6, 3), average=True
    )  # every sample as the negative of every anchor: the exact expectation
    close(C, -torch.cov(X.mT, correction=0))
    assert not torch.allclose(C, -X.mT @ X / 6)


def test_more_negatives_than_positives_make_an_eigenvalue_positive_unless_averaged(rng):
    X = randn(rng, 6, 3) + 2
    X_neg = X.expand(6, 6, 3)
    assert eigenbasis(pair_matrix(X, X, X_neg))[0][-1] > 1
    assert eigenbasis(pair_matrix(X, X, X_neg, average=True))[0][-1] < 0


def test_the_unconstrained_flow_is_minus_the_gradient_of_the_loss(rng):
    X, X_pos, X_neg = randn(rng, 7, 4), randn(rng, 7, 4), randn(rng, 7, 4)
    Theta = randn(rng, 3, 4).requires_grad_()
    (gradient,) = torch.autograd.grad(
        total(contrastive_linear(X @ Theta.mT, X_pos @ Theta.mT, X_neg @ Theta.mT)), Theta
    )
    C = pair_matrix(X, X_pos, X_neg)
    flow, (zero, one) = (
        (lambda t: unconstrained_weights(Theta.detach(), C, t)),
        torch.tensor([0.0, 1.0], dtype=torch.float64),
    )
    close(torch.autograd.functional.jvp(flow, zero, one)[1], -gradient, 1e-11)


def test_the_unconstrained_flow_equals_its_integrated_equation(rng):
    Theta0, C, t = randn(rng, 2, 4), symmetric(rng, 4), vector(0, 0.2, 0.7)
    close(unconstrained_weights(Theta0, C, t), integrate(lambda Theta: -2 * Theta @ C, Theta0, t), 1e-9)


def test_gradient_descent_converges_to_the_unconstrained_flow_at_first_order(rng):
    Theta0, X, t = randn(rng, 3, 5), symmetric(rng, 5), vector(1)[0]

    def error(steps):
        Theta = Theta0
        for _ in range(steps):
            Theta = Theta + t / steps * driven_vector_field([Theta], X)[0]
        return (Theta - unconstrained_weights(Theta0, -X / 2, t)).norm()

    assert math.log2(error(400) / error(800)) == pytest.approx(1, abs=0.05)


def test_as_many_singular_values_vanish_as_x_has_negative_eigenvalues_and_the_others_diverge(rng):
    Q, rates = orthogonal(rng, 5), vector(1.0, 0.7, 0.3, -0.4, -1.0)
    early, late = (
        torch.linalg.svdvals(W).log()
        for W in unconstrained_weights(randn(rng, 5, 5), Q * (-rates / 2) @ Q.mT, vector(7, 9))
    )
    assert ((late - early) / 2).tolist() == pytest.approx(rates.tolist(), abs=0.05)


def test_positive_x_does_not_save_the_effective_rank():
    X = torch.diag(vector(1.0, 0.8, 0.4, 0.2))
    s = torch.linalg.svdvals(unconstrained_weights(torch.eye(4, dtype=torch.float64), -X / 2, vector(0, 20)))
    assert torch.special.entr(s / s.sum(1, keepdim=True)).sum(1).exp().tolist() == pytest.approx([4.0, 1.0], abs=0.1)


def test_the_rows_become_collinear_at_the_rate_of_the_gap_with_unequal_sizes(rng):
    eigenvalues = torch.tensor([-0.5, 0.3, 1.0], dtype=torch.float64)
    V = torch.linalg.qr(randn(rng, 3, 3)).Q
    Theta0 = randn(rng, 2, 3)
    times = torch.tensor([5.0, 6.0], dtype=torch.float64)
    Theta = unconstrained_weights(Theta0, V @ torch.diag(eigenvalues) @ V.mT, times)
    s = torch.linalg.svdvals(Theta)
    close((s[0, 1] / s[0, 0] / (s[1, 1] / s[1, 0])).log(), torch.tensor(2 * 0.8).double(), 1e-3)
    last = Theta[1] / Theta[1].norm()
    first = Theta0 @ V[:, :1] @ V[:, :1].mT
    close(last, first / first.norm(), 1e-4)
    assert not torch.allclose(last[0], last[1], atol=0.1)  # the paper prints equal components


def test_the_unconstrained_flow_diverges_or_vanishes_with_the_sign_of_the_eigenvalue():
    C = torch.diag(torch.tensor([-1.0, 1.0], dtype=torch.float64))
    Theta = unconstrained_weights(torch.eye(2, dtype=torch.float64), C, torch.tensor(20.0).double())
    assert Theta[0, 0] > 1e17
    assert Theta[1, 1] < 1e-17


def test_a_multiple_lowest_eigenvalue_leaves_its_multiplicity_of_dimensions(rng):
    C = torch.diag(torch.tensor([-1.0, -1.0, 1.0, 2.0], dtype=torch.float64))
    s = torch.linalg.svdvals(unconstrained_weights(randn(rng, 3, 4), C, torch.tensor(10.0).double()))
    assert s[1] / s[0] > 1e-3
    assert s[2] / s[0] < 1e-12


@pytest.mark.usefixtures("no_shape_checks")
def test_wrong_shapes_and_asymmetric_matrices_are_errors():
    with pytest.raises(UserError, match="do not match"):
        pair_matrix(torch.ones(3, 2), torch.ones(4, 2))
    for C, reason in (
        (torch.ones(2, 3), "shape"),
        (torch.full((2, 2), float("nan")), "NaN"),
        (torch.ones(2, 2).triu(), "differ by up to 1"),
    ):
        with pytest.raises(UserError, match=reason):
            eigenbasis(C)
