"""Losses and vector fields of two linear networks, compared with autograd of the actual losses; the optimum; gradient
descent."""

import pytest
import torch
from dynamics_helpers import seeded_randn, vector

from fullrank_papers.theory import two_view
from fullrank_papers.theory.objectives import barlow_linear, frossl_linear

ACTUAL = {"frossl": (two_view.FROSSL, frossl_linear), "barlow": (two_view.BARLOW, barlow_linear)}


both_objectives = pytest.mark.parametrize("name", ACTUAL)


separate_and_shared = pytest.mark.parametrize("networks", [2, 1], ids=["separate", "shared"])


@both_objectives
@separate_and_shared
def test_loss_and_vector_field_from_moments_are_those_of_the_embeddings(name, networks):
    objective, actual = ACTUAL[name]
    X, W = seeded_randn(2, 20, 6) / 4, seeded_randn(networks, 3, 6, seed=1).requires_grad_()
    loss = sum(actual(X @ W.mT).values())
    (gradient,) = torch.autograd.grad(loss, W)
    torch.testing.assert_close(objective.value(W.detach(), two_view.moments(X)), loss.detach(), rtol=1e-12, atol=0)
    torch.testing.assert_close(
        objective.vector_field(W.detach(), two_view.moments(X)), -gradient, rtol=1e-12, atol=1e-12
    )


def test_gradient_descent_records_loss_and_eigenvalues_of_the_embeddings():
    X, W = (
        seeded_randn(2, 20, 5) / 4,
        two_view.small_random_weights(torch.Generator().manual_seed(1), networks=2, dimensions=3, inputs=5, scale=0.1),
    )
    path = two_view.gradient_descent(two_view.FROSSL, W, two_view.moments(X), learning_rate=1e-2, steps=7, every=3)
    torch.testing.assert_close(path.t, vector(0, 0.03, 0.06, 0.07))
    Z = X @ path.W.mT
    torch.testing.assert_close(path.loss[-1], sum(frossl_linear(Z).values()))
    torch.testing.assert_close(path.eigenvalues[-1], torch.linalg.svdvals(Z) ** 2)
    torch.testing.assert_close(path.eigenvalues[0], two_view.eigenvalues(W, two_view.moments(X)))


@pytest.mark.parametrize("correlated", [True, False])
def test_optimum_is_stationary_and_its_loss_is_that_of_the_canonical_correlations(correlated):
    X = seeded_randn(2, 30, 5) * vector(3, 2, 1, 0.5, 0.2) / 5
    X[1] = X[0] + 0.3 * X[1] if correlated else X[1]
    G = two_view.moments(X)
    W, rho = two_view.frossl_optimum(G, dimensions=3)
    assert two_view.frossl_vector_field(W, G).abs().max() < 1e-11
    torch.testing.assert_close(two_view.frossl_loss(W, G), ((1 - rho) * (3 + rho) / 2).sum())
    Q = torch.linalg.qr(X).Q  # canonical correlations are the cosines of the principal angles
    torch.testing.assert_close(rho, torch.linalg.svdvals(Q[0].T @ Q[1])[:3])


def test_descent_from_small_weights_reaches_the_optimum():
    X = seeded_randn(2, 30, 4) * vector(1.5, 1.2, 1, 0.8) / 5
    X[1] = X[0] + 0.3 * X[1]
    G = two_view.moments(X)
    W, _ = two_view.frossl_optimum(G, dimensions=2)
    start = two_view.small_random_weights(
        torch.Generator().manual_seed(1), networks=2, dimensions=2, inputs=4, scale=1e-2
    )
    trained = two_view.gradient_descent(two_view.FROSSL, start, G, learning_rate=0.03, steps=20000, every=20000)
    torch.testing.assert_close(trained.loss[-1], two_view.frossl_loss(W, G), rtol=1e-8, atol=0)
    assert two_view.principal_cosines(trained.W, W, G).min() > 1 - 1e-6
