import math
from itertools import product

import pytest
import torch
from torch.nn.functional import normalize

from fullrank.objectives import simsiam


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
def test_equals_twice_the_mean_over_pairs_of_views(loss, V, V_T, randn):
    P, T = randn(V, 5, 4), randn(V_T, 5, 4)
    assert loss(P, T).item() == pytest.approx(loops(P, T), abs=1e-10)


def test_with_two_views_it_is_the_sum_of_both_directions(loss, randn):
    P, T = randn(2, 5, 4), randn(2, 5, 4)
    p, t = normalize(P, dim=-1), normalize(T, dim=-1)
    usual = (2 - 2 * (p[0] * t[1]).sum(-1)).mean() + (2 - 2 * (p[1] * t[0]).sum(-1)).mean()
    assert loss(P, T).item() == pytest.approx(usual.item(), abs=1e-12)


def test_equals_four_times_simsiam_plus_four(loss, randn):
    P, T = randn(3, 5, 4), randn(3, 5, 4)
    assert loss(P, T).item() == pytest.approx(4 + 4 * simsiam(P, T)["prediction"].item(), abs=1e-12)


def test_lies_between_zero_for_parallel_and_eight_for_opposite_rows(loss, randn):
    T = randn(1, 5, 4).expand(3, 5, 4)
    P = (T * randn(3, 5, 1).exp()).requires_grad_()
    assert loss(P, T).item() == pytest.approx(0, abs=1e-12)
    assert torch.autograd.grad(loss(P, T), P)[0].abs().max() < 1e-12
    assert loss(P + 0.1 * randn(3, 5, 4), T) > 1e-5
    assert loss(-P, T).item() == pytest.approx(8, abs=1e-12)


def test_complete_collapse_is_an_optimum(loss):
    ones = torch.full((2, 5, 4), 0.1, dtype=torch.float64)
    assert loss(ones, ones).item() == pytest.approx(0, abs=1e-12)


def test_is_invariant_to_length_and_joint_rotation_only(loss, randn, rotation):
    P, T = randn(3, 5, 4), randn(3, 5, 4)
    value = loss(P, T).item()
    assert loss(P * randn(3, 5, 1).exp(), T * randn(3, 5, 1).exp()).item() == pytest.approx(value, abs=1e-12)
    assert loss(P @ rotation, T @ rotation).item() == pytest.approx(value, abs=1e-12)
    assert abs(loss(P @ rotation, T).item() - value) > 1e-2
    assert abs(loss(P + 1, T + 1).item() - value) > 1e-2
