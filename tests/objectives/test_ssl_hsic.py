import math

import pytest
from loops import unit_row


def kernel(x, y, c):
    return c / math.sqrt(c * c + sum((a - b) ** 2 for a, b in zip(x, y, strict=True)))


def loops(Z, regularization, kernel_scale):
    rows = [(i, unit_row(row)) for view in Z.tolist() for i, row in enumerate(view)]
    n = len(rows)
    K = [[kernel(x, y, kernel_scale) for _, y in rows] for _, x in rows]
    mean = [sum(row) / n for row in K]
    total = sum(mean) / n
    positives = [K[a][b] for a in range(n) for b in range(n) if a != b and rows[a][0] == rows[b][0]]
    dependence = sum(positives) / len(positives) - total
    variance = sum((K[a][b] - mean[a] - mean[b] + total) ** 2 for a in range(n) for b in range(n)) / n**2
    return -dependence + regularization * math.sqrt(variance)


@pytest.mark.parametrize("V", [2, 4])
@pytest.mark.parametrize("kernel_scale", [0.5, 2.0])
def test_equals_the_sums_over_pairs(loss, V, kernel_scale, randn):
    Z = randn(V, 5, 4)
    value = loss(Z, regularization=1.5, kernel_scale=kernel_scale).item()
    assert value == pytest.approx(loops(Z, 1.5, kernel_scale), abs=1e-10)


def test_minimum_is_at_a_simplex_with_equal_views(is_least, simplex):
    other = (1 + 2 * 5 / 4) ** -0.5  # the kernel of two different corners
    is_least(simplex, -(1 - 1 / 5) * (1 - other) + 0.5 * (1 - other) * math.sqrt(4) / 5, regularization=0.5)
