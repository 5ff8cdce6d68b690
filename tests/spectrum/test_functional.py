import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fullrank.objectives import frossl
from fullrank.spectrum import functional

spectra = st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=12).map(
    lambda x: torch.tensor(sorted(x, reverse=True), dtype=torch.float64)
)


@settings(deadline=None, max_examples=50)
@given(spectra)
def test_renyi_falls_with_its_order_and_meets_shannon_at_one(eigenvalues):
    values = [functional.renyi_entropy(eigenvalues, alpha=a).item() for a in (0.0, 0.5, 1.0, 2.0, math.inf)]
    assert all(a >= b - 1e-9 for a, b in pairwise(values))
    near = [functional.renyi_entropy(eigenvalues, alpha=a).item() for a in (1 - 1e-5, 1 + 1e-5)]
    assert sum(near) / 2 == pytest.approx(values[2], abs=1e-6)


def test_metrics_equal_their_formulas():
    x = [4.0, 1.0, 0.25, 0.0]
    eigenvalues = torch.tensor(x, dtype=torch.float64)
    p = [v / 5.25 for v in x[:3]]
    q = [s / 3.5 for s in (2.0, 1.0, 0.5)]
    assert functional.entropy(eigenvalues).item() == pytest.approx(-sum(v * math.log(v) for v in p), abs=1e-14)
    rank = math.exp(-sum(v * math.log(v) for v in q))
    assert functional.effective_rank(eigenvalues).item() == pytest.approx(rank, abs=1e-13)
    assert functional.renyi_entropy(eigenvalues).item() == pytest.approx(-math.log(sum(v * v for v in p)), abs=1e-14)
    cubic = functional.renyi_entropy(eigenvalues, alpha=3.0).item()
    assert cubic == pytest.approx(-math.log(sum(v**3 for v in p)) / 2, abs=1e-14)
    assert functional.participation_ratio(eigenvalues).item() == pytest.approx(5.25**2 / (16 + 1 + 1 / 16), abs=1e-13)
    assert functional.stable_rank(eigenvalues).item() == pytest.approx(5.25 / 4, abs=1e-14)
    assert functional.condition_number(eigenvalues, k=3) == 16
    assert functional.condition_number(eigenvalues) == math.inf


def test_zeros_have_rank_and_entropy_zero_and_no_nan():
    zeros = torch.zeros(5, dtype=torch.float64)
    for name in ("effective_rank", "rank_me", "participation_ratio", "stable_rank", "entropy"):
        assert getattr(functional, name)(zeros) == 0
    assert functional.participation_ratio_corrected(zeros, n=100) == 0
    assert functional.collision_entropy(zeros.diag()) == 0
    for alpha in (0.0, 0.5, 1.0, 2.0, math.inf):
        assert functional.renyi_entropy(zeros, alpha=alpha) == 0
    assert functional.renyi_entropy(torch.ones(1024), alpha=16.0).item() == pytest.approx(math.log(1024))
    assert functional.condition_number(zeros) == math.inf
    assert functional.collapsed_dimensions(zeros, n=100) == 5


def test_dimensions_that_few_samples_cannot_show_are_not_collapsed():
    eigenvalues = torch.tensor([1.0, 0.1, 1e-7, 0.0, 0.0, 0.0], dtype=torch.float64)
    for n, expected in ((100, 4), (7, 4), (6, 3), (5, 2), (4, 1), (3, 0), (1, 0), (0, 0)):
        assert functional.collapsed_dimensions(eigenvalues, n=n) == expected
    assert functional.collapsed_dimensions(eigenvalues, n=100, tolerance=1e-8) == 3


@pytest.mark.parametrize(("n", "D"), [(40, 6), (6, 40)])
def test_collision_entropy_of_covariance_and_gram_matrix_equals_that_of_the_eigenvalues(n, D):
    Z = torch.randn(3, n, D, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    A = Z - Z.mean(1, keepdim=True)
    eigenvalues = torch.linalg.eigvalsh(A.mT @ A).flip(-1).clamp_min(0)
    expected = functional.renyi_entropy(eigenvalues)
    for C in (A.mT @ A, A @ A.mT / n):
        torch.testing.assert_close(functional.collision_entropy(C), expected, rtol=1e-12, atol=0)


def test_collision_entropy_is_the_variance_term_of_frossl():
    Z = torch.randn(2, 40, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * torch.arange(1, 7) + 2
    A = Z - Z.mean(1, keepdim=True)
    A = A / A.norm(dim=1, keepdim=True)
    expected = 2 * 2 * math.log(6) - functional.collision_entropy(A.mT @ A).sum()
    torch.testing.assert_close(frossl(Z)["variance"], expected, rtol=1e-12, atol=0)


def sampled(eigenvalues, n, *, times, seed=0):
    """Return eigenvalues of the covariance of n Gaussian samples, centred by their own mean, for many draws."""
    rng = torch.Generator().manual_seed(seed)
    Z = torch.randn(times, n, len(eigenvalues), generator=rng, dtype=torch.float64) * eigenvalues.sqrt()
    A = Z - Z.mean(1, keepdim=True)
    return torch.linalg.eigvalsh(A.mT @ A / n).flip(-1).clamp_min(0)


@pytest.mark.parametrize(
    ("n", "D", "decay"), [(30, 20, 0.0), (20, 40, 0.0), (200, 20, 0.0), (60, 20, 1.0), (200, 20, 1.0)]
)
def test_the_corrected_participation_ratio_estimates_that_of_the_distribution(n, D, decay):
    eigenvalues = torch.arange(1, D + 1, dtype=torch.float64) ** -decay
    true = functional.participation_ratio(eigenvalues).item()
    samples = sampled(eigenvalues, n, times=2000 if n < 100 else 500)
    uncorrected = functional.participation_ratio(samples).mean().item()
    corrected = functional.participation_ratio_corrected(samples, n=n).mean().item()
    assert 1 / uncorrected == pytest.approx(1 / true + 1 / n, rel=0.06)  # the bias of few samples, to leading order
    order = (eigenvalues.pow(4).sum() / eigenvalues.square().sum() ** 2).item() / n
    assert abs(corrected / true - 1) < 4 * order + 0.04  # the bound at D costs up to 4 % if the true value is D
    assert abs(corrected / true - 1) < abs(uncorrected / true - 1) / 2
