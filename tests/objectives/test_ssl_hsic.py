import math

import pytest
import torch


def normalized(row):
    norm = math.sqrt(sum(x * x for x in row))
    return [x / norm for x in row]


def kernel(x, y, c):
    return c / math.sqrt(c * c + sum((a - b) ** 2 for a, b in zip(x, y, strict=True)))


def loops(Z, regularization, kernel_scale):
    rows = [(i, normalized(row)) for view in Z.tolist() for i, row in enumerate(view)]
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
    assert loss(Z, regularization=1.5, kernel_scale=kernel_scale).item() == pytest.approx(
        loops(Z, 1.5, kernel_scale), abs=1e-10
    )


def test_minimum_is_at_a_simplex_with_equal_views(loss, randn):
    N = 5
    best = (torch.eye(N, dtype=torch.float64) - 1 / N).expand(2, N, N)
    other = (1 + 2 * N / (N - 1)) ** -0.5  # the kernel of two different corners
    value = -(1 - 1 / N) * (1 - other) + 0.5 * (1 - other) * math.sqrt(N - 1) / N
    assert loss(best, regularization=0.5).item() == pytest.approx(value, abs=1e-12)
    for _ in range(20):
        assert loss(best + 0.1 * randn(2, N, N), regularization=0.5) > value


def test_complete_collapse_has_no_gradient(loss):
    Z = torch.full((2, 48, 5), 0.1, requires_grad=True)
    (gradient,) = torch.autograd.grad(loss(Z), Z)
    assert gradient.abs().max() < 1e-6
