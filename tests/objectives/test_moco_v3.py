import math

import pytest
import torch
from loops import unit_row


@pytest.mark.parametrize("V_T", [2, 3])
def test_equals_the_cross_entropies_of_the_definition(loss, randn, V_T):
    V, N, tau = 3, 5, 0.3
    P, T = randn(V, N, 4), randn(V_T, N, 4)
    p, t = ([[unit_row(row) for row in view] for view in X.tolist()] for X in (P, T))
    losses = []
    for v, w in [(v, w) for v in range(V) for w in range(V_T) if v != w]:
        for i in range(N):
            scores = [math.exp(sum(a * b for a, b in zip(p[v][i], t[w][j], strict=True)) / tau) for j in range(N)]
            losses.append(-math.log(scores[i] / sum(scores)))
    expected = 4 * tau * sum(losses) / len(losses)
    assert loss(P, T, temperature=tau).item() == pytest.approx(expected, abs=1e-12)


def test_two_views_are_the_sum_of_both_directions_of_the_authors(loss, randn):
    P, T = randn(2, 6, 4), randn(2, 6, 4)
    p, t = (torch.nn.functional.normalize(X, dim=-1) for X in (P, T))
    one, other = (torch.nn.functional.cross_entropy(p[v] @ t[1 - v].T / 0.2, torch.arange(6)) * 0.4 for v in (0, 1))
    assert loss(P, T).item() == pytest.approx((one + other).item(), abs=1e-12)
