import math

import pytest
import torch
from loops import unit_row


@pytest.mark.parametrize("V", [2, 3])
@pytest.mark.parametrize(("N", "D"), [(6, 3), (3, 6)])
def test_equals_the_roots_of_the_eigenvalues_of_the_centroids(loss, randn, V, N, D):
    Z = randn(V, N, D)
    rows = [[unit_row(row) for row in view] for view in Z.tolist()]
    C = torch.tensor([[sum(rows[v][i][d] for v in range(V)) / V for d in range(D)] for i in range(N)], dtype=Z.dtype)
    G = C.T @ C if D <= N else C @ C.T
    expected = -sum(math.sqrt(x) for x in torch.linalg.eigvalsh(G).tolist()) / math.sqrt(N * min(N, D))
    assert loss(Z).item() == pytest.approx(expected, abs=1e-10)


def test_the_bound_is_reached_by_equal_views_that_are_spread_evenly(is_least):
    is_least(torch.eye(4, dtype=torch.float64).repeat(3, 1).expand(2, 12, 4), -1.0)


def test_a_collapse_is_far_from_the_bound(loss):
    assert loss(torch.ones(2, 16, 16, dtype=torch.float64)).item() == pytest.approx(-1 / 4)
