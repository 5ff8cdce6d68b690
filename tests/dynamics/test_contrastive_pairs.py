import pytest
import torch
from scipy.integrate import solve_ivp

from fullrank.dynamics.contrastive_pairs import eigenbasis, pair_matrix, pairing, unconstrained_kernel, unconstrained_weights
from fullrank.errors import UserError
from fullrank.objectives.theory import alignment_linear, contrastive_linear


def normal(rng, *shape):
    return torch.randn(*shape, dtype=torch.float64, generator=rng)


def symmetric(rng, d):
    G = normal(rng, d, d)
    return (G + G.mT) / 2


def total(terms):
    return sum(terms.values())


def close(x, y, tolerance=1e-12):
    torch.testing.assert_close(x, y, rtol=tolerance, atol=tolerance)


def test_the_trace_is_the_loss_of_the_objectives_and_not_with_the_printed_sign(rng):
    X, X_pos, X_neg, A = normal(rng, 7, 4), normal(rng, 7, 4), normal(rng, 7, 4), normal(rng, 4, 3)
    trace = lambda C: torch.trace(A.mT @ C @ A)  # noqa: E731
    close(trace(pair_matrix(X, X_pos, X_neg)), total(contrastive_linear(X @ A, X_pos @ A, X_neg @ A)))
    close(trace(pair_matrix(X, X_pos)), total(alignment_linear(X @ A, X_pos @ A)))
    assert trace(-pair_matrix(X, X_pos)) != total(alignment_linear(X @ A, X_pos @ A))


@pytest.mark.parametrize("average", [False, True])
def test_several_pairs_equal_the_sum_over_them(rng, average):
    n, p, q = 5, 2, 3
    X, X_pos, X_neg = normal(rng, n, 4), normal(rng, n, p, 4), normal(rng, n, q, 4)
    C = torch.zeros(4, 4, dtype=torch.float64)
    for i in range(n):
        for j in range(q):
            C += torch.outer(X[i], X_neg[i, j]) / (n * q if average else 1)
        for j in range(p):
            C -= torch.outer(X[i], X_pos[i, j]) / (n * p if average else 1)
    close(pair_matrix(X, X_pos, X_neg, average=average), (C + C.mT) / 2)
    points = torch.cat([X, X_pos.flatten(0, 1), X_neg.flatten(0, 1)])
    close(points.mT @ pairing(n, p, q, average=average) @ points, (C + C.mT) / 2)


def test_pairing_without_negatives_is_the_alignment_loss(rng):
    X, X_pos = normal(rng, 5, 4), normal(rng, 5, 4)
    points = torch.cat([X, X_pos])
    close(points.mT @ pairing(5, 1, 0) @ points, pair_matrix(X, X_pos))


def test_in_expectation_the_matrix_is_minus_the_covariance_and_not_the_second_moment(rng):
    X = normal(rng, 6, 3) + 2
    C = pair_matrix(X, X, X.expand(6, 6, 3), average=True)  # every sample as the negative of every anchor: the exact expectation
    close(C, -torch.cov(X.mT, correction=0))
    assert not torch.allclose(C, -X.mT @ X / 6)


def test_more_negatives_than_positives_make_an_eigenvalue_positive_unless_averaged(rng):
    X = normal(rng, 6, 3) + 2
    X_neg = X.expand(6, 6, 3)
    assert eigenbasis(pair_matrix(X, X, X_neg))[0][-1] > 1
    assert eigenbasis(pair_matrix(X, X, X_neg, average=True))[0][-1] < 0


def test_the_free_flow_follows_the_gradient_of_the_loss(rng):
    X, X_pos, X_neg = normal(rng, 7, 4), normal(rng, 7, 4), normal(rng, 7, 4)
    Theta = normal(rng, 3, 4).requires_grad_()
    (gradient,) = torch.autograd.grad(total(contrastive_linear(X @ Theta.mT, X_pos @ Theta.mT, X_neg @ Theta.mT)), Theta)
    C = pair_matrix(X, X_pos, X_neg)
    flow, (zero, one) = (lambda t: unconstrained_weights(Theta.detach(), C, t)), torch.tensor([0.0, 1.0], dtype=torch.float64)
    close(torch.autograd.functional.jvp(flow, zero, one)[1], -gradient, 1e-11)


def test_the_free_flow_equals_its_integrated_equation_at_several_times(rng):
    Theta0, C, t = normal(rng, 2, 4), symmetric(rng, 4), torch.tensor([0.0, 0.2, 0.7], dtype=torch.float64)
    right = lambda _, y: (-2 * torch.as_tensor(y).view(2, 4) @ C).flatten().numpy()  # noqa: E731
    ode = solve_ivp(right, (0, 0.7), Theta0.flatten().numpy(), method="DOP853", t_eval=t.numpy(), rtol=1e-12, atol=1e-14)
    close(unconstrained_weights(Theta0, C, t).flatten(1), torch.as_tensor(ode.y.T), 1e-9)


def test_the_rows_become_collinear_at_the_rate_of_the_gap_with_unequal_sizes(rng):
    eigenvalues = torch.tensor([-0.5, 0.3, 1.0], dtype=torch.float64)
    V = torch.linalg.qr(normal(rng, 3, 3)).Q
    Theta0 = normal(rng, 2, 3)
    times = torch.tensor([5.0, 6.0], dtype=torch.float64)
    Theta = unconstrained_weights(Theta0, V @ torch.diag(eigenvalues) @ V.mT, times)
    s = torch.linalg.svdvals(Theta)
    close((s[0, 1] / s[0, 0] / (s[1, 1] / s[1, 0])).log(), torch.tensor(2 * 0.8).double(), 1e-3)
    last = Theta[1] / Theta[1].norm()
    first = Theta0 @ V[:, :1] @ V[:, :1].mT
    close(last, first / first.norm(), 1e-4)
    assert not torch.allclose(last[0], last[1], atol=0.1)  # the paper prints equal components


def test_the_free_flow_diverges_or_vanishes_with_the_sign_of_the_eigenvalue():
    C = torch.diag(torch.tensor([-1.0, 1.0], dtype=torch.float64))
    Theta = unconstrained_weights(torch.eye(2, dtype=torch.float64), C, torch.tensor(20.0).double())
    assert Theta[0, 0] > 1e17
    assert Theta[1, 1] < 1e-17


def test_a_multiple_lowest_eigenvalue_leaves_its_multiplicity_of_dimensions(rng):
    C = torch.diag(torch.tensor([-1.0, -1.0, 1.0, 2.0], dtype=torch.float64))
    s = torch.linalg.svdvals(unconstrained_weights(normal(rng, 3, 4), C, torch.tensor(10.0).double()))
    assert s[1] / s[0] > 1e-3
    assert s[2] / s[0] < 1e-12


def test_the_kernel_flow_of_a_linear_kernel_is_the_linear_flow_of_new_points_too(rng):
    n, p, q = 4, 1, 2
    X, Theta0, t = normal(rng, n * (1 + p + q), 5) / 3, normal(rng, 2, 5), torch.tensor([0.0, 0.4], dtype=torch.float64)
    new = normal(rng, 3, 5)
    points = torch.cat([X, new])
    S = torch.zeros(len(points), len(points), dtype=torch.float64)
    S[: len(X), : len(X)] = pairing(n, p, q)
    Theta = unconstrained_weights(Theta0, X.mT @ pairing(n, p, q) @ X, t)
    close(unconstrained_kernel(points @ Theta0.mT, points @ points.mT, S, t), points @ Theta.mT, 1e-10)


def test_the_kernel_flow_collapses_for_a_kernel_that_is_not_linear(rng):
    X = normal(rng, 9, 2)
    K = torch.exp(-torch.cdist(X, X).square() / 2)
    U = unconstrained_kernel(normal(rng, 9, 3), K, pairing(3, 1, 1), torch.tensor([0.0, 20.0, 40.0], dtype=torch.float64))
    s = torch.linalg.svdvals(U)
    assert (s[:, 1] / s[:, 0]).diff().max() < 0
    assert s[2, 1] / s[2, 0] < 1e-4


def test_an_asymmetric_matrix_is_refused_with_the_remedy():
    with pytest.raises(UserError, match=r"not symmetric: entries differ by up to 1 from .*; give \(C \+ Cᵀ\)/2"):
        eigenbasis(torch.tensor([[0.0, 1.0], [0.0, 0.0]]))


@pytest.mark.usefixtures("unchecked")
def test_shapes_that_do_not_fit_are_refused():
    with pytest.raises(UserError, match=r"anchors \(3, 2\) and pairs \(4, 2\) do not fit"):
        pair_matrix(torch.ones(3, 2), torch.ones(4, 2))
    with pytest.raises(UserError, match=r"shape \(2, 3\) is not symmetric"):
        eigenbasis(torch.ones(2, 3))
    with pytest.raises(UserError, match="C holds NaN"):
        eigenbasis(torch.full((2, 2), float("nan")))
