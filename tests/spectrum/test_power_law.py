import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fullrank.spectrum import Spectrum, power_law


def decaying(alpha, D=100):
    return torch.arange(1, D + 1, dtype=torch.float64) ** -alpha


@settings(deadline=None, max_examples=50)
@given(st.floats(0, 4), st.integers(1, 50), st.integers(51, 100))
def test_the_fit_of_a_power_law_is_its_exponent_over_any_range(alpha, first, last):
    fit = power_law(3 * decaying(alpha), first=first, last=last)
    assert fit.alpha == pytest.approx(alpha, abs=1e-9)
    assert fit.r2 == pytest.approx(1, abs=1e-9)
    assert (fit.first, fit.last) == (first, last)


def test_equals_the_weighted_fit_of_numpy():
    numbers = torch.rand(30, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    eigenvalues = numbers.sort(descending=True).values
    j = np.arange(3, 21)
    x, y = np.log(j), eigenvalues[2:20].log().numpy()
    slope, intercept = np.polyfit(x, y, 1, w=j**-0.5)  # numpy squares its weights
    residual, total = ((y - slope * x - intercept) ** 2 / j).sum(), ((y - np.average(y, weights=1 / j)) ** 2 / j).sum()
    fit = power_law(eigenvalues, first=3, last=20)
    assert fit.alpha == pytest.approx(-slope, rel=1e-12)
    assert fit.r2 == pytest.approx(1 - residual / total, rel=1e-12)


def test_the_fit_ends_at_the_last_positive_eigenvalue():
    eigenvalues = decaying(1.0)
    eigenvalues[40:] = 0
    fit = power_law(eigenvalues)
    assert fit.last == 40
    assert fit.alpha == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize(("eigenvalues", "alpha"), [([1.0, 0.0, 0.0], math.inf), ([0.0, 0.0], 0.0), ([2.0], 0.0)])
def test_one_direction_has_exponent_infinity_and_none_has_zero(eigenvalues, alpha):
    assert power_law(torch.tensor(eigenvalues)).alpha == alpha
    assert Spectrum.from_eigenvalues(torch.tensor(eigenvalues), n=100).power_law().alpha == alpha
