import math
from itertools import product

import pytest
import torch
from torch.nn.functional import normalize

from fullrank.objectives import moco
from fullrank.objectives.moco import moco_queue


def randn(rng, *shape):
    return torch.randn(*shape, generator=rng, dtype=torch.float64)


def loss(Q, K, queue, **hyper):
    return sum(moco(Q, K, queue, **hyper).values())


def dot(x, y):
    return sum(a * b for a, b in zip(x, y, strict=True))


def unit_row(x):
    return [a / math.sqrt(dot(x, x)) for a in x]


def loops(Q, K, queue, temperature):
    pairs = [(v, w) for v, w in product(range(len(Q)), range(len(K))) if v != w]
    total = 0.0
    for v, w in pairs:
        for q, k in zip(Q[v].tolist(), K[w].tolist(), strict=True):
            q, k = unit_row(q), unit_row(k)
            positive = math.exp(dot(q, k) / temperature)
            negatives = sum(math.exp(dot(q, u) / temperature) for u in queue.tolist())
            total -= math.log(positive / (positive + negatives))
    return total / (len(pairs) * Q.shape[1])


@pytest.mark.parametrize(("V", "V_K"), [(2, 2), (4, 4), (4, 2)])
def test_equals_the_mean_over_pairs_of_views(V, V_K, rng):
    Q, K, queue = randn(rng, V, 5, 4), randn(rng, V_K, 5, 4), randn(rng, 7, 4)
    assert loss(Q, K, queue, temperature=0.3).item() == pytest.approx(loops(Q, K, queue, 0.3), abs=1e-10)


def test_is_least_where_keys_equal_queries_and_the_queue_is_opposite(rng):
    row = randn(rng, 4)
    Q, queue = row.expand(3, 5, 4), -row.expand(7, 4) / row.norm()
    value = math.log(1 + 7 * math.exp(-2 / 0.2))
    assert loss(Q, Q, queue).item() == pytest.approx(value, abs=1e-12)
    for _ in range(20):
        assert loss(Q + 0.1 * randn(rng, 3, 5, 4), Q, queue) > value
    moved = Q.clone().requires_grad_()
    assert torch.autograd.grad(loss(moved, Q, queue), moved)[0].abs().max() < 1e-12


@pytest.mark.parametrize("size", [4, 6, 7, 20])  # shorter than a batch of 2 · 3 keys, as long, and longer
def test_the_queue_holds_the_unit_rows_of_the_newest_keys(size, rng):
    queue = normalize(randn(rng, size, 4), dim=-1)
    rows = queue.tolist()
    for _ in range(4):
        K = randn(rng, 2, 3, 4)
        queue = moco_queue(K, queue)
        rows = [unit_row(k) for view in K.tolist() for k in view] + rows
        torch.testing.assert_close(queue, torch.tensor(rows[:size], dtype=torch.float64), atol=1e-12, rtol=0)
