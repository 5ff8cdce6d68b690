import math

import pytest
import torch
from loops import cosine, dot, unit_row

from fullrank.objectives.nnclr import nnclr, nnclr_queue


@pytest.mark.parametrize("V_T", [2, 3])
def test_equals_the_contrast_of_the_predictions_with_the_nearest_neighbours(loss, randn, V_T):
    V, N, tau = 3, 5, 0.3
    P, T, queue = randn(V, N, 4), randn(V_T, N, 4), torch.nn.functional.normalize(randn(7, 4), dim=-1)
    p = [[unit_row(row) for row in view] for view in P.tolist()]
    losses = []
    for v, w in [(v, w) for v in range(V) for w in range(V_T) if v != w]:
        for i, t in enumerate(T[w].tolist()):
            neighbour = max(queue.tolist(), key=lambda row, t=t: cosine(row, t))
            scores = [math.exp(dot(neighbour, row) / tau) for row in p[v]]
            losses.append(-math.log(scores[i] / sum(scores)))
    assert loss(P, T, queue, temperature=tau).item() == pytest.approx(sum(losses) / len(losses), abs=1e-12)


def test_predictions_equal_to_their_neighbours_that_are_orthogonal_are_best(is_least):
    neighbours = torch.eye(4, dtype=torch.float64)
    T = (neighbours + 0.1).expand(2, 4, 4)
    cosines = torch.nn.functional.log_softmax(neighbours / 0.2, dim=-1)
    best = neighbours.expand(2, 4, 4)
    terms = nnclr(best, T, neighbours)
    assert sum(terms.values()).item() == pytest.approx(-cosines.diagonal().mean().item())
    assert sum(nnclr(best.flip(1), T, neighbours).values()) > sum(terms.values())


def test_the_queue_holds_the_first_view(randn):
    T, queue = randn(2, 3, 4), randn(5, 4)
    new = nnclr_queue(T, queue)
    torch.testing.assert_close(new[:3], torch.nn.functional.normalize(T[0], dim=-1))
    assert torch.equal(new[3:], queue[:2])
