"""The loss of one linear network with logarithms: its value, its minimum, and the growth of new directions."""

import pytest
import torch
from dynamics_helpers import seeded_randn, vector
from scipy.linalg import hadamard

from fullrank.objectives import frossl, total
from fullrank_papers.theory import two_view
from fullrank_papers.theory.flow import gradient, gradient_flow
from fullrank_papers.theory.logarithms import Loss, correlations, growth_rates, optimal_spectrum, spectrum

D = 4
RHO, LAM = vector(0.9, 0.8, 0.75, 0.5, 0.3, 0.1), vector(3.0, 0.5, 2.0, 1.0, 4.0, 0.7)
G = torch.stack([torch.stack([LAM.diag(), (RHO * LAM).diag()]), torch.stack([(RHO * LAM).diag(), LAM.diag()])])
with_and_without = pytest.mark.parametrize("log", [True, False])


def loss_of(weight, log):
    return Loss(weight, variance=1.0 if log else 1 / D, log=log)  # equal gradients of equal eigenvalues


@with_and_without
def test_the_loss_from_moments_is_that_of_the_embeddings(log):
    X, W = seeded_randn(2, 20, 6), seeded_randn(D, 6, seed=1)
    X = X - X.mean(1, keepdim=True)
    expected = total(frossl(X @ W.mT, invariance=0.7 * 20, variance=0.3, log=log))
    torch.testing.assert_close(Loss(0.7, 0.3, log)(W, two_view.moments(X)), expected)


@with_and_without
@pytest.mark.parametrize("weight", [0.1, 1.0, 1.5, 2.5, 4.0])
def test_gradient_descent_finds_no_lower_loss_than_the_minimum(weight, log):
    loss, found = loss_of(weight, log), []
    for seed in range(6):
        W = seeded_randn(D, 6, seed=seed).requires_grad_()
        search = torch.optim.LBFGS([W], max_iter=2000, tolerance_change=1e-14, line_search_fn="strong_wolfe")

        def closure(W=W, search=search):
            search.zero_grad()
            loss(W, G).backward()
            return loss(W, G)

        search.step(closure)
        found.append((loss(W, G).item(), W.detach()))
    rho, directions = correlations(G)
    m = optimal_spectrum(loss, rho, dimensions=D)
    expected = 2 * loss.variance * loss.f(m.square().sum()) + 2 * weight * (D - (rho * m).sum())
    value, W = min(found, key=lambda each: each[0])
    assert value == pytest.approx(expected.item(), rel=1e-7)
    torch.testing.assert_close(spectrum(W, G, directions), m, atol=2e-3, rtol=1e-3)


def test_the_logarithm_keeps_fewer_dimensions_beyond_the_balanced_weight():
    kept = [
        [int((optimal_spectrum(loss_of(w, log), RHO, dimensions=D) > 0).sum()) for w in (1.0, 2.0, 8.0)]
        for log in (True, False)
    ]
    assert kept == [[4, 3, 1], [4, 4, 3]]


@with_and_without
@pytest.mark.parametrize("k", [1, 2, 3])
def test_a_new_direction_grows_at_the_rate_of_the_theory(k, log):
    loss = loss_of(0.8, log)
    m = torch.cat([optimal_spectrum(loss, RHO[:k], dimensions=D), torch.zeros(6 - k).double()])
    # Rows with the second moment diag m, and a small new part that is orthogonal to the learned ones over the rows.
    H = torch.from_numpy(hadamard(D)).double()
    U, new = H[:, :k] * (m[:k] / D).sqrt(), H[:, k]
    for j in range(k, 6):
        A = torch.zeros(D, 6).double()
        A[:, :k], A[:, j] = U, 1e-5 * new
        W = A / LAM.sqrt()
        slope = -gradient(lambda p: loss(p[0], G), (W,))[0][:, j] * LAM[j].sqrt()
        rate = (slope @ new / (1e-5 * new @ new)).item()
        assert rate == pytest.approx(LAM[j].item() * growth_rates(loss, RHO, m)[j].item(), rel=1e-4)


def test_the_flow_from_small_weights_is_the_flow_from_large_ones_in_another_time():
    loss, W, t = loss_of(1.0, log=True), seeded_randn(D, 6), vector(0, 0.3, 1)
    large, small = (gradient_flow(lambda p: loss(p[0], G), (c * W,), c**2 * t)[0] / c for c in (1.0, 1e-3))
    torch.testing.assert_close(small, large, rtol=1e-5, atol=1e-6)
