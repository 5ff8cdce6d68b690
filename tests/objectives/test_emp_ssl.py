import math

import pytest
import torch
from loops import cosine, log_determinant, unit_row


@pytest.mark.parametrize("V", [2, 4])
@pytest.mark.parametrize(("N", "D"), [(6, 3), (3, 6)])
def test_equals_cosines_and_determinants(loss, randn, V, N, D):
    Z = randn(V, N, D)
    rows = [[unit_row(row) for row in view] for view in Z.tolist()]
    mean = [[sum(rows[v][i][d] for v in range(V)) / V for d in range(D)] for i in range(N)]
    expected = sum(1 - cosine(rows[v][i], mean[i]) for v in range(V) for i in range(N)) * 3.0 / (V * N)
    for z in rows:
        G = [[(i == j) + D / (N * 0.5) * sum(row[i] * row[j] for row in z) for j in range(D)] for i in range(D)]
        expected -= log_determinant(torch.tensor(G, dtype=torch.float64)) / (2 * V)
    assert loss(Z, invariance=3.0, epsilon=0.5).item() == pytest.approx(expected, abs=1e-9)


def test_the_minimum_is_at_equal_views_that_are_spread_evenly(is_least):
    is_least(torch.eye(4, dtype=torch.float64).repeat(2, 1).expand(2, 8, 4), -2 * math.log(1 + 1 / 0.2))


def test_lightlys_sign_of_the_coding_rate_is_the_other_one(loss, randn):
    lightly = pytest.importorskip("lightly.loss")
    Z = torch.nn.functional.normalize(randn(3, 8, 4), dim=-1)
    rate = -loss(Z, invariance=0.0).item()
    assert lightly.EMPSSLLoss(inv_coef=0.0)([*Z]).item() == pytest.approx(rate, rel=1e-5)  # what it minimises
