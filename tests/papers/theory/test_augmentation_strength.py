"""How strong an augmentation can be: thresholds compared with the eigenvalues of X, the isotropic Gaussian with samples
and loops."""

from itertools import repeat

import pytest
import torch
from dynamics_helpers import randn
from hypothesis import given, settings
from hypothesis import strategies as st

from fullrank_papers.theory.augmentation_strength import collapse_thresholds, gaussian_equilibrium
from fullrank_papers.theory.infonce import driving_matrix, train_infonce


def white(rng, n, m):
    """n samples of mean 0 and covariance I, exactly."""
    x = randn(rng, n, m)
    return (n**0.5) * torch.linalg.qr(x - x.mean(0)).Q


def gaussian_growth(w, k, variance):
    """ẇ/(wN) = v(2 + ω²)/(1 + ω²)² − k with ω² = w²v, for infinitely many samples of an isotropic Gaussian."""
    square = w.square() * variance
    return variance * (2 + square) / (1 + square).square() - k


def uniform(n):
    return torch.full((n, n), 1 / n, dtype=torch.float64)


def augmented(x, shifts, k):
    return torch.stack([x, x + k**0.5 * shifts])


@given(st.integers(0, 10**6), st.floats(0.05, 20.0))
@settings(max_examples=30, deadline=None)
def test_as_many_directions_vanish_as_thresholds_are_exceeded(seed, k):
    rng = torch.Generator().manual_seed(seed)
    x, shifts = randn(rng, 12, 4) @ randn(rng, 4, 4), randn(rng, 12, 4)
    exceeded = (collapse_thresholds(augmented(x, shifts, 1.0)) < k).sum()
    assert (torch.linalg.eigvalsh(driving_matrix(augmented(x, shifts, k), uniform(12))) < 0).sum() == exceeded


def test_the_threshold_of_isotropic_data_is_twice_their_variance(rng):
    joint = white(rng, 64, 6)
    x, shifts = 1.5 * joint[:, :4], torch.cat([torch.zeros(64, 2, dtype=torch.float64), joint[:, 4:]], 1)
    expected = [2 * 1.5**2 * 64 / 63] * 2
    assert collapse_thresholds(augmented(x, shifts, 1.0)).tolist() == pytest.approx(
        [*expected, float("inf"), float("inf")]
    )


@given(st.floats(0.01, 10.0), st.floats(0.1, 10.0))
@settings(deadline=None)
def test_equilibrium_is_where_growth_ends_and_zero_from_the_threshold_on(share, variance):
    k = torch.tensor(share * variance, dtype=torch.float64)
    w = gaussian_equilibrium(k, variance=variance)
    if share < 2:
        assert gaussian_growth(w, k, variance).item() == pytest.approx(0, abs=1e-9 * variance)
    else:
        assert w == 0
        assert gaussian_growth(w, k, variance) <= 1e-9


@pytest.mark.parametrize("k", [0.75, 1.5])
def test_training_settles_at_the_equilibrium_of_the_gaussian_below_the_threshold(rng, k):
    """In two dimensions, where 500 samples suffice; the weight of the positive, about 1/N, causes no larger error."""
    joint = white(rng, 500, 4)
    x = augmented(joint[:, :2], joint[:, 2:], k)
    (W,) = train_infonce([0.3 * torch.eye(2, dtype=torch.float64)], repeat(x), learning_rate=0.3 / 500, steps=[80])
    assert torch.linalg.svdvals(W[-1]).tolist() == pytest.approx(
        [gaussian_equilibrium(torch.tensor(k)).item()] * 2, rel=0.1
    )
