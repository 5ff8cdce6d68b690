import math
from itertools import product

import pytest
import torch
from torch.nn.functional import normalize

from fullrank.objectives import byol, simsiam


def randn(rng, *shape):
    return torch.randn(*shape, generator=rng, dtype=torch.float64)


def loss(P, T):
    return sum(byol(P, T).values())


def unit_row(x):
    norm = math.sqrt(sum(a * a for a in x))
    return [a / norm for a in x]


def distance(p, t):
    return sum((a - b) ** 2 for a, b in zip(unit_row(p), unit_row(t), strict=True))


def loops(P, T):
    pairs = [(v, w) for v, w in product(range(len(P)), range(len(T))) if v != w]
    total = sum(distance(p, t) for v, w in pairs for p, t in zip(P[v].tolist(), T[w].tolist(), strict=True))
    return 2 * total / (len(pairs) * P.shape[1])


@pytest.mark.parametrize(("V", "V_T"), [(2, 2), (4, 4), (4, 2), (3, 1)])
def test_equals_twice_the_mean_over_pairs_of_views(V, V_T, rng):
    P, T = randn(rng, V, 5, 4), randn(rng, V_T, 5, 4)
    assert loss(P, T).item() == pytest.approx(loops(P, T), abs=1e-10)


def test_is_the_sum_of_both_directions_with_two_views(rng):
    P, T = randn(rng, 2, 5, 4), randn(rng, 2, 5, 4)
    p, t = normalize(P, dim=-1), normalize(T, dim=-1)
    usual = (2 - 2 * (p[0] * t[1]).sum(-1)).mean() + (2 - 2 * (p[1] * t[0]).sum(-1)).mean()
    assert loss(P, T).item() == pytest.approx(usual.item(), abs=1e-12)


def test_is_that_of_simsiam_four_times_as_large_and_four_more(rng):
    P, T = randn(rng, 3, 5, 4), randn(rng, 3, 5, 4)
    assert loss(P, T).item() == pytest.approx(4 + 4 * simsiam(P, T)["prediction"].item(), abs=1e-12)


def test_lies_between_zero_for_parallel_and_eight_for_opposite_rows(rng):
    T = randn(rng, 1, 5, 4).expand(3, 5, 4)
    P = (T * randn(rng, 3, 5, 1).exp()).requires_grad_()
    assert loss(P, T).item() == pytest.approx(0, abs=1e-12)
    assert torch.autograd.grad(loss(P, T), P)[0].abs().max() < 1e-12
    assert loss(P + 0.1 * randn(rng, 3, 5, 4), T) > 1e-5
    assert loss(-P, T).item() == pytest.approx(8, abs=1e-12)


def test_total_collapse_is_an_optimum():
    ones = torch.full((2, 5, 4), 0.1, dtype=torch.float64)
    assert loss(ones, ones).item() == pytest.approx(0, abs=1e-12)


def test_ignores_the_length_of_rows_and_a_joint_rotation_but_no_other_and_no_shift(rng, rotation):
    P, T = randn(rng, 3, 5, 4), randn(rng, 3, 5, 4)
    value = loss(P, T).item()
    assert loss(P * randn(rng, 3, 5, 1).exp(), T * randn(rng, 3, 5, 1).exp()).item() == pytest.approx(value, abs=1e-12)
    assert loss(P @ rotation, T @ rotation).item() == pytest.approx(value, abs=1e-12)
    assert abs(loss(P @ rotation, T).item() - value) > 1e-2
    assert abs(loss(P + 1, T + 1).item() - value) > 1e-2
