import math
from itertools import product

import pytest
import torch
from torch.nn.functional import cosine_similarity


def cosine(x, y):
    dot = sum(a * b for a, b in zip(x, y, strict=True))
    return dot / math.sqrt(sum(a * a for a in x) * sum(b * b for b in y))


def loops(P, T):
    pairs = [(v, w) for v, w in product(range(len(P)), range(len(T))) if v != w]
    total = -sum(cosine(p, t) for v, w in pairs for p, t in zip(P[v].tolist(), T[w].tolist(), strict=True))
    return total / (len(pairs) * P.shape[1])


@pytest.mark.parametrize(("V", "V_T"), [(2, 2), (4, 4), (4, 2), (3, 1)])
def test_equals_the_mean_over_pairs_of_views(loss, V, V_T, randn):
    P, T = randn(V, 5, 4), randn(V_T, 5, 4)
    assert loss(P, T).item() == pytest.approx(loops(P, T), abs=1e-10)


def test_with_two_views_it_is_the_mean_of_both_directions(loss, randn):
    P, T = randn(2, 5, 4), randn(2, 5, 4)
    usual = -(cosine_similarity(P[0], T[1]).mean() + cosine_similarity(P[1], T[0]).mean()) / 2
    assert loss(P, T).item() == pytest.approx(usual.item(), abs=1e-12)


def test_minimum_is_at_predictions_parallel_to_the_targets_of_other_views(loss, randn):
    T = randn(1, 5, 4).expand(3, 5, 4)
    P = (T * randn(3, 5, 1).exp()).requires_grad_()
    assert loss(P, T).item() == pytest.approx(-1, abs=1e-12)
    assert torch.autograd.grad(loss(P, T), P)[0].abs().max() < 1e-12
    assert loss(P + 0.1 * randn(3, 5, 4), T) > -1 + 1e-5
    assert loss(-P, T).item() == pytest.approx(1, abs=1e-12)


def test_complete_collapse_is_an_optimum(loss):
    ones = torch.full((2, 5, 4), 0.1, dtype=torch.float64)
    assert loss(ones, ones).item() == pytest.approx(-1, abs=1e-12)


def test_a_zero_row_has_cosine_zero(loss, randn):
    P, T = randn(2, 5, 4), randn(2, 5, 4)
    rest = loss(P[:, 1:], T[:, 1:]).item()
    P[:, 0] = 0
    assert loss(P, T).item() == pytest.approx(rest * 4 / 5, abs=1e-12)


def test_is_invariant_to_length_and_joint_rotation_only(loss, randn, rotation):
    P, T = randn(3, 5, 4), randn(3, 5, 4)
    value = loss(P, T).item()
    assert loss(P * randn(3, 5, 1).exp(), T * randn(3, 5, 1).exp()).item() == pytest.approx(value, abs=1e-12)
    assert loss(P @ rotation, T @ rotation).item() == pytest.approx(value, abs=1e-12)
    assert abs(loss(P @ rotation, T).item() - value) > 1e-2
    assert abs(loss(P + 1, T + 1).item() - value) > 1e-2


def test_is_invariant_to_the_joint_order_of_views(loss, randn):
    P, T = randn(3, 5, 4), randn(3, 5, 4)
    assert loss(P[[2, 0, 1]], T[[2, 0, 1]]).item() == pytest.approx(loss(P, T).item(), abs=1e-12)
    assert abs(loss(P[[2, 0, 1]], T) - loss(P, T)) > 1e-2
