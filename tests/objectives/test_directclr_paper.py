import math

import pytest
import torch


def normalized(row):
    norm = math.sqrt(sum(x * x for x in row))
    return [x / norm for x in row]


def loops(R, d0):
    z, positive = ([normalized(row[:d0]) for row in view] for view in R.tolist())
    N, total = len(z), 0.0
    for i in range(N):
        own = math.exp(sum(a * b for a, b in zip(z[i], positive[i], strict=True)))
        others = [math.exp(sum(a * b for a, b in zip(z[i], z[j], strict=True))) for j in range(N) if j != i]
        total -= math.log(own / (own + sum(others)))
    return total


@pytest.mark.parametrize("d0", [1, 3, 5])
def test_equals_the_sum_over_anchors(loss, d0, randn):
    R = randn(2, 6, 5)
    assert loss(R, d0=d0).item() == pytest.approx(loops(R, d0), abs=1e-10)


def test_minimum_is_at_a_simplex_with_equal_views(loss, randn):
    N = 5
    best = (torch.eye(N, dtype=torch.float64) - 1 / N).expand(2, N, N)
    value = N * (-1 + math.log(math.e + (N - 1) * math.exp(-1 / (N - 1))))
    assert loss(best, d0=N).item() == pytest.approx(value, abs=1e-12)
    for _ in range(20):
        assert loss(best + 0.1 * randn(2, N, N), d0=N) > value
