import math
from itertools import combinations

import pytest
import torch
from torch.nn.functional import normalize


def loops(Z):
    z1, z2 = Z.tolist()
    N = len(z1)
    total = 0.0
    for i, x in enumerate(z1):
        for j, y in enumerate(z2):
            dot = sum(a * b for a, b in zip(x, y, strict=True))
            total += -2 / N * dot if i == j else dot**2 / (N * (N - 1))
    return total


@pytest.mark.parametrize("shape", [(2, 7, 4), (2, 4, 6)])
def test_equals_the_sum_over_samples_and_pairs(loss, shape, randn):
    Z = randn(*shape) + 0.5
    assert loss(Z).item() == pytest.approx(loops(Z), abs=1e-10)


def test_is_an_unbiased_estimate_on_a_subset_of_samples(loss, randn):
    Z = randn(2, 6, 4)
    parts = [loss(Z[:, list(part)]).item() for part in combinations(range(6), 3)]
    assert sum(parts) / len(parts) == pytest.approx(loss(Z).item(), abs=1e-12)


def test_minimum_for_normalised_rows_is_at_a_tight_frame_with_equal_views(loss, randn):
    N, D = 6, 2
    angles = torch.arange(N, dtype=torch.float64) * math.pi / N
    frame = torch.stack([angles.cos(), angles.sin()], 1).expand(2, N, D)
    value = -2 + (N / D - 1) / (N - 1)
    assert loss(frame).item() == pytest.approx(value, abs=1e-12)
    for scale in (0.1, 1.0):
        for _ in range(20):
            assert loss(normalize(frame + scale * randn(2, N, D), dim=-1)) > value
