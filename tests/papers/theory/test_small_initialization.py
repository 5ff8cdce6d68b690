"""Predictions from small weights, compared with the integrated flow of the loss."""

import pytest
import torch
from dynamics_helpers import aligned_moments, seeded_randn, vector
from torch import Tensor

from fullrank_papers.theory.flow import solve_ode
from fullrank_papers.theory.small_initialization import (
    SmallInitialization,
    barlow_growth_matrix,
    barlow_small_initialization,
    frossl_growth_matrix,
    frossl_small_initialization,
)
from fullrank_papers.theory.stepwise import crossing_times
from fullrank_papers.theory.two_view import (
    BARLOW,
    FROSSL,
    barlow_vector_field,
    eigenvalues,
    frossl_vector_field,
    moments,
    principal_cosines,
    small_random_weights,
)
from fullrank_papers.theory.two_view_modes import barlow_modes, frossl_modes

CASES = {
    "frossl": (FROSSL, frossl_vector_field, frossl_growth_matrix, frossl_small_initialization),
    "barlow": (BARLOW, barlow_vector_field, barlow_growth_matrix, barlow_small_initialization),
}


both_objectives = pytest.mark.parametrize("name", CASES)


separate_and_shared = pytest.mark.parametrize("networks", [2, 1], ids=["separate", "shared"])


def start_of(G: Tensor, *, networks: int, dimensions: int, scale: float, seed: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return small_random_weights(generator, networks=networks, dimensions=dimensions, inputs=G.shape[-1], scale=scale)


def trained(name: str, W: Tensor, G: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    """The weights of the integrated flow of the loss, and the eigenvalues of view 1."""
    path = solve_ode(lambda W: CASES[name][0].vector_field(W, G), W, t, rtol=1e-9, atol=1e-12)
    return path, torch.stack([eigenvalues(W, G)[0] for W in path])


def predicted_and_measured(name: str, W: Tensor, G: Tensor) -> tuple[SmallInitialization, Tensor, Tensor]:
    """The times at which each eigenvalue of view 1, in descending order, reaches 0.4."""
    start = CASES[name][3](W, G)
    t = torch.linspace(0, 1.3 * start.learning_times().max().item(), 400, dtype=torch.float64)
    return (
        start,
        crossing_times(t, start.eigenvalues(t)[:, 0], level=0.4),
        crossing_times(t, trained(name, W, G, t)[1], level=0.4),
    )


@both_objectives
@separate_and_shared
def test_small_weights_grow_by_the_growth_matrix(name, networks):
    _, field, growth, _ = CASES[name]
    G, W = moments(seeded_randn(2, 20, 5)), seeded_randn(networks, 3, 5, seed=1)
    M = growth(G, shared=networks == 1)
    linear = 2 * W.transpose(0, 1).flatten(1) @ M
    expected = linear.unflatten(1, (networks, 5)).transpose(0, 1)
    torch.testing.assert_close(field(1e-7 * W, G), 1e-7 * expected, rtol=1e-9, atol=1e-18)


@separate_and_shared
def test_modes_of_aligned_moments_are_those_of_the_closed_forms(networks):
    lam, rho, shared = vector(3, 2, 1), vector(0.9, 0.8, 0.7), networks == 1
    G = aligned_moments(lam, rho * lam)
    W = start_of(G, networks=networks, dimensions=2, scale=1e-3)
    frossl, barlow = frossl_small_initialization(W, G).modes, barlow_small_initialization(W, G).modes
    for found, expected in (
        (frossl, frossl_modes(lam, rho * lam, shared=shared)),
        (barlow, barlow_modes(rho * lam, shared=shared)),
    ):
        torch.testing.assert_close(found.rate, expected.rate[:2])
        torch.testing.assert_close(found.limit, expected.limit[:2])


@both_objectives
@separate_and_shared
def test_the_smaller_the_start_the_better_the_predicted_learning_times(name, networks):
    G, errors = aligned_moments(vector(1, 0.5, 0.25, 0.1), vector(0.9, 0.45, 0.2, 0.08)), []
    for scale in (1e-1, 1e-5):
        _, predicted, measured = predicted_and_measured(
            name, start_of(G, networks=networks, dimensions=3, scale=scale), G
        )
        errors.append((measured / predicted - 1).abs().max().item())
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 2e-3


@both_objectives
def test_the_whole_trajectory_and_the_last_subspace_are_predicted(name):
    G = aligned_moments(vector(1, 0.5, 0.25, 0.05), vector(0.9, 0.45, 0.225, 0.025))
    W = start_of(G, networks=2, dimensions=3, scale=1e-6)
    start = CASES[name][3](W, G)
    t = torch.linspace(0, 1.3 * start.learning_times().max().item(), 60, dtype=torch.float64)
    path, values = trained(name, W, G, t)
    torch.testing.assert_close(values, start.eigenvalues(t)[:, 0], rtol=0, atol=0.02)
    torch.testing.assert_close(path, start.weights(t), rtol=0, atol=0.05)
    assert principal_cosines(path[-1], start.weights(t)[-1], G).min() > 1 - 1e-3
