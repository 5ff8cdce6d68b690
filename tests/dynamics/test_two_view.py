import pytest
import torch
from torch import Tensor

from fullrank.dynamics.flow import gradient_flow
from fullrank.dynamics.two_view import (
    BARLOW,
    FROSSL,
    barlow_vector_field,
    eigenvalues,
    frossl_loss,
    frossl_optimum,
    frossl_vector_field,
    gradient_descent,
    join_moments,
    moments,
    principal_cosines,
    small_random_weights,
)
from fullrank.errors import UserError
from fullrank.objectives.theory import barlow_linear, frossl_linear

ACTUAL = {"frossl": (FROSSL, frossl_linear), "barlow": (BARLOW, barlow_linear)}
both_objectives = pytest.mark.parametrize("name", ACTUAL)
separate_and_shared = pytest.mark.parametrize("networks", [2, 1], ids=["separate", "shared"])


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64)


def vector(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


@both_objectives
@separate_and_shared
def test_loss_from_moments_and_flow_are_those_of_the_loss_of_embeddings(name, networks):
    objective, actual = ACTUAL[name]
    X, W = normal(2, 20, 6) / 4, normal(networks, 3, 6, seed=1).requires_grad_()
    loss = sum(actual(X @ W.mT).values())
    (gradient,) = torch.autograd.grad(loss, W)
    torch.testing.assert_close(objective.loss(W.detach(), moments(X)), loss.detach(), rtol=1e-12, atol=0)
    torch.testing.assert_close(objective.vector_field(W.detach(), moments(X)), -gradient, rtol=1e-12, atol=1e-12)


def test_the_printed_flow_of_frossl_is_not_the_gradient_and_lets_weights_decay():
    # eq. 12: without the minus of the descent, the linear terms have the wrong sign and the cross term a factor of 2
    G, W = moments(normal(2, 20, 6) / 4), 0.1 * normal(2, 3, 6, seed=1)

    def printed(W):
        A1, A2 = W[0] @ G[0, 0], W[1] @ G[1, 1]
        first = -2 * A1 - 4 * W[1] @ G[1, 0] - 4 * A1 @ W[0].mT @ A1
        return torch.stack([first, -2 * A2 - 4 * W[0] @ G[0, 1] - 4 * A2 @ W[1].mT @ A2])

    assert (printed(W) - frossl_vector_field(W, G)).norm() > frossl_vector_field(W, G).norm()
    assert (printed(W) * W).sum() < 0 < (frossl_vector_field(W, G) * W).sum()


def test_moments_are_the_same_from_data_and_from_their_blocks():
    X = normal(2, 20, 4)
    torch.testing.assert_close(join_moments(X[0].T @ X[0], X[0].T @ X[1], X[1].T @ X[1]), moments(X))


def test_barlow_conserves_the_difference_of_norms_of_any_weights():
    G, W = moments(normal(2, 20, 5) / 4), normal(2, 3, 5, seed=1)
    trajectory = gradient_flow(lambda p: BARLOW.loss(p["W"], G), {"W": W}, vector(0, 0.5, 1), rtol=1e-12)["W"]
    difference = trajectory.square().sum((2, 3)).diff(dim=1)
    torch.testing.assert_close(difference, difference[:1].expand(3, 1), rtol=0, atol=1e-10)


def test_descent_records_loss_and_eigenvalues_of_the_embeddings():
    X, W = normal(2, 20, 5) / 4, small_random_weights(generator(1), networks=2, dimensions=3, inputs=5, scale=0.1)
    path = gradient_descent(FROSSL, W, moments(X), learning_rate=1e-2, steps=7, every=3)
    torch.testing.assert_close(path.t, vector(0, 0.03, 0.06, 0.07))
    Z = X @ path.W.mT
    torch.testing.assert_close(path.loss[-1], sum(frossl_linear(Z).values()))
    torch.testing.assert_close(path.eigenvalues[-1], torch.linalg.svdvals(Z) ** 2)
    torch.testing.assert_close(path.eigenvalues[0], eigenvalues(W, moments(X)))


@pytest.mark.parametrize("correlated", [True, False])
def test_optimum_is_stationary_and_its_loss_is_that_of_the_canonical_correlations(correlated):
    X = normal(2, 30, 5) * vector(3, 2, 1, 0.5, 0.2) / 5
    X[1] = X[0] + 0.3 * X[1] if correlated else X[1]
    G = moments(X)
    W, rho = frossl_optimum(G, dimensions=3)
    assert frossl_vector_field(W, G).abs().max() < 1e-11
    torch.testing.assert_close(frossl_loss(W, G), ((1 - rho) * (3 + rho) / 2).sum())
    Q = torch.linalg.qr(X).Q  # canonical correlations are the cosines of the principal angles
    torch.testing.assert_close(rho, torch.linalg.svdvals(Q[0].T @ Q[1])[:3])


def test_descent_from_small_weights_reaches_the_optimum():
    X = normal(2, 30, 4) * vector(1.5, 1.2, 1, 0.8) / 5
    X[1] = X[0] + 0.3 * X[1]
    G = moments(X)
    W, _ = frossl_optimum(G, dimensions=2)
    start = small_random_weights(generator(1), networks=2, dimensions=2, inputs=4, scale=1e-2)
    trained = gradient_descent(FROSSL, start, G, learning_rate=0.03, steps=20000, every=20000)
    torch.testing.assert_close(trained.loss[-1], frossl_loss(W, G), rtol=1e-8, atol=0)
    assert principal_cosines(trained.W, W, G).min() > 1 - 1e-6


@separate_and_shared
def test_principal_cosines_are_those_of_bases_of_the_embeddings(networks):
    X, W, V = normal(2, 30, 6), normal(networks, 3, 6, seed=1), normal(2, 3, 6, seed=2)
    one, other = (torch.linalg.qr(X @ A.mT).Q for A in (W, V))
    torch.testing.assert_close(principal_cosines(W, V, moments(X)), torch.linalg.svdvals(one.mT @ other))
    torch.testing.assert_close(principal_cosines(W, normal(3, 3) @ W, moments(X)), torch.ones(2, 3, dtype=torch.float64))


def test_mistakes_are_named():
    W, G = normal(2, 3, 5), moments(normal(2, 20, 5))
    with pytest.raises(UserError, match=r"G2 is not symmetric.* a moment XᵀX is"):
        join_moments(torch.eye(3), torch.eye(3), torch.eye(3).cumsum(0))
    with pytest.raises(UserError, match=r"weights of 3 networks; give a tensor \(2, D, M\)"):
        frossl_vector_field(normal(3, 3, 5), G)
    with pytest.raises(UserError, match=r"weights of 4 inputs and moments of 5"):
        barlow_vector_field(normal(2, 3, 4), G)
    with pytest.raises(UserError, match=r"6 dimensions of data of rank 5"):
        frossl_optimum(G, dimensions=6)
    with pytest.raises(UserError, match=r"descent diverged by step 100 at learning rate 1.0; choose one below"):
        gradient_descent(FROSSL, W, G, learning_rate=1.0, steps=100, every=100)
