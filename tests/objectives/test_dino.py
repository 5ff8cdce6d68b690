import math

import pytest
import torch
from loops import mean_over_pairs

from fullrank.objectives import dino
from fullrank.objectives.dino import dino_center


def softmax(x):
    e = [math.exp(a) for a in x]
    return [a / sum(e) for a in e]


def loops(S, T, c, student_temperature, teacher_temperature):
    def cross_entropy(s, t):
        p = softmax([a / student_temperature for a in s])
        q = softmax([(a - m) / teacher_temperature for a, m in zip(t, c.tolist(), strict=True)])
        return -sum(a * math.log(b) for a, b in zip(q, p, strict=True))

    return mean_over_pairs(cross_entropy, S.tolist(), T.tolist())


@pytest.mark.parametrize(("V", "V_T"), [(2, 2), (4, 4), (4, 2), (3, 1)])
def test_equals_the_mean_cross_entropy_over_pairs_of_views(loss, V, V_T, randn):
    S, T, c = randn(V, 5, 4), randn(V_T, 5, 4), randn(4)
    value = loss(S, T, c, student_temperature=0.5, teacher_temperature=0.2).item()
    assert value == pytest.approx(loops(S, T, c, 0.5, 0.2), abs=1e-10)


def test_is_least_where_every_student_equals_the_centred_sharpened_teacher(randn):
    T, c = randn(1, 5, 4).expand(2, 5, 4), randn(4)
    S = (0.1 / 0.04 * (T[:1] - c)).expand(4, 5, 4).clone().requires_grad_()
    terms = dino(S, T, c)
    assert terms["divergence"].item() == pytest.approx(0, abs=1e-12)
    assert torch.autograd.grad(terms["divergence"], S)[0].abs().max() < 1e-12
    for _ in range(20):
        assert dino(S + 0.1 * randn(4, 5, 4), T, c)["divergence"] > 1e-4


def test_the_centre_is_the_running_mean_over_views_and_samples(randn):
    T, c = randn(2, 5, 4), randn(4)
    rows = [row for view in T.tolist() for row in view]
    mean = [sum(column) / len(rows) for column in zip(*rows, strict=True)]
    loops = [0.7 * m + 0.3 * new for m, new in zip(c.tolist(), mean, strict=True)]
    assert dino_center(T, c, momentum=0.7).tolist() == pytest.approx(loops, abs=1e-12)
    for _ in range(400):
        c = dino_center(T, c)
    assert c.tolist() == pytest.approx(mean, abs=1e-12)
    assert not dino_center(T.requires_grad_(), c).requires_grad
