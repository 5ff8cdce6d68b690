import math

import pytest
import torch
from loops import dot, mean_over_pairs, unit_row
from torch.nn.functional import normalize

from fullrank.objectives.moco import moco_queue


def loops(Q, K, queue, temperature):
    def term(q, k):
        q, k = unit_row(q), unit_row(k)
        positive = math.exp(dot(q, k) / temperature)
        return -math.log(positive / (positive + sum(math.exp(dot(q, u) / temperature) for u in queue.tolist())))

    return mean_over_pairs(term, Q.tolist(), K.tolist())


@pytest.mark.parametrize(("V", "V_K"), [(2, 2), (4, 4), (4, 2)])
def test_equals_the_mean_over_pairs_of_views(loss, V, V_K, randn):
    Q, K, queue = randn(V, 5, 4), randn(V_K, 5, 4), randn(7, 4)
    assert loss(Q, K, queue, temperature=0.3).item() == pytest.approx(loops(Q, K, queue, 0.3), abs=1e-10)


def test_is_least_where_keys_equal_queries_and_the_queue_is_opposite(is_least, randn):
    row = randn(4)
    best, value = row.expand(3, 5, 4), math.log(1 + 7 * math.exp(-2 / 0.2))
    is_least(best, value, best, -row.expand(7, 4) / row.norm(), critical=True)


@pytest.mark.parametrize("size", [4, 6, 7, 20])  # shorter than a batch of 2 · 3 keys, as long, and longer
def test_the_queue_holds_the_unit_rows_of_the_newest_keys(size, randn):
    queue = normalize(randn(size, 4), dim=-1)
    rows = queue.tolist()
    for _ in range(4):
        K = randn(2, 3, 4)
        queue = moco_queue(K, queue)
        rows = [unit_row(k) for view in K.tolist() for k in view] + rows
        torch.testing.assert_close(queue, torch.tensor(rows[:size], dtype=torch.float64), atol=1e-12, rtol=0)
