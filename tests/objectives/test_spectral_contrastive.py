import math
from itertools import combinations

import pytest
import torch
from torch.nn.functional import normalize

from fullrank.objectives import spectral_contrastive


def randn(rng, *shape):
    return torch.randn(*shape, generator=rng, dtype=torch.float64)


def loss(Z):
    return sum(spectral_contrastive(Z).values())


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
def test_equals_the_sum_over_samples_and_pairs(shape, rng):
    Z = randn(rng, *shape) + 0.5
    assert loss(Z).item() == pytest.approx(loops(Z), abs=1e-10)


def test_is_an_unbiased_estimate_on_a_part_of_the_samples(rng):
    Z = randn(rng, 2, 6, 4)
    parts = [loss(Z[:, list(part)]).item() for part in combinations(range(6), 3)]
    assert sum(parts) / len(parts) == pytest.approx(loss(Z).item(), abs=1e-12)


def test_is_least_among_unit_rows_at_a_tight_frame_with_equal_views(rng):
    N, D = 6, 2
    angles = torch.arange(N, dtype=torch.float64) * math.pi / N
    frame = torch.stack([angles.cos(), angles.sin()], 1).expand(2, N, D)
    value = -2 + (N / D - 1) / (N - 1)
    assert loss(frame).item() == pytest.approx(value, abs=1e-12)
    for scale in (0.1, 1.0):
        for _ in range(20):
            assert loss(normalize(frame + scale * randn(rng, 2, N, D), dim=-1)) > value


def test_has_no_lower_bound_where_a_sample_is_orthogonal_to_the_others(rng):
    Z = randn(rng, 1, 6, 4).expand(2, 6, 4).clone()
    Z[..., 0] = 0
    Z[:, 0] = torch.tensor([1e3, 0, 0, 0])
    assert loss(Z) < -1e5


def test_total_collapse_to_zero_costs_more_than_agreeing_orthogonal_rows():
    assert loss(torch.zeros(2, 4, 4, dtype=torch.float64)) == 0
    assert loss(torch.eye(4, dtype=torch.float64).expand(2, 4, 4)) == -2


def test_ignores_a_joint_rotation_and_which_view_is_first(rng, rotation):
    Z = randn(rng, 2, 7, 4)
    assert loss(Z @ rotation).item() == pytest.approx(loss(Z).item(), abs=1e-12)
    assert loss(Z.flip(0)).item() == pytest.approx(loss(Z).item(), abs=1e-12)


def test_ignores_neither_scale_nor_shift_nor_the_rotation_of_one_view(rng, rotation):
    Z = randn(rng, 2, 7, 4)
    for moved in (2 * Z, Z + 1, torch.stack([Z[0] @ rotation, Z[1]])):
        assert abs(loss(moved) - loss(Z)) > 1e-2
