import math

import pytest
from loops import hsic


@pytest.mark.parametrize("V", [2, 4])
@pytest.mark.parametrize("kernel_scale", [0.5, 2.0])
def test_equals_the_sums_over_pairs(loss, V, kernel_scale, randn):
    Z = randn(V, 5, 4)
    value = loss(Z, regularization=1.5, kernel_scale=kernel_scale).item()
    assert value == pytest.approx(hsic(Z, 1.5, kernel_scale), abs=1e-10)


def test_minimum_is_at_a_simplex_with_equal_views(is_least, simplex):
    other = (1 + 2 * 5 / 4) ** -0.5  # the kernel of two different corners
    is_least(simplex, -(1 - 1 / 5) * (1 - other) + 0.5 * (1 - other) * math.sqrt(4) / 5, regularization=0.5)
