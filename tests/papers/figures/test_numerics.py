"""Quantiles and intervals over starts."""

import math

import pytest
import torch

from fullrank_papers.figures.numerics import median_interval, quantiles, spread


def test_quantiles_and_their_text():
    assert quantiles(range(101)) == (50, 5, 95)
    assert spread([1.0, 2.0, 3.0], 1) == "2.0 (1.1 to 2.9)"


@pytest.mark.parametrize("n", [6, 8, 40])
def test_the_interval_contains_the_median_of_at_least_95_percent_of_the_draws(n):
    draws = torch.randn(2000, n, generator=torch.Generator().manual_seed(0)).tolist()
    intervals = [median_interval(values) for values in draws]
    assert sum(low <= 0 <= high for low, high in intervals) / 2000 > 0.945
    assert sum(high - low for low, high in intervals) / 2000 < 10 / math.sqrt(n)


def test_few_values_have_no_interval():
    assert median_interval([1.0] * 5) == (-math.inf, math.inf)
    assert median_interval([]) == (-math.inf, math.inf)
