import pytest
import torch
from loops import dot, mean_over_pairs, unit_row


def loops(Z, T, C, covariance, forgetting):
    z, t = ([[unit_row(row) for row in view] for view in views.tolist()] for views in (Z, T))
    rows, D = [row for view in z for row in view], Z.shape[-1]
    new = [
        [forgetting * C[i, j].item() + (1 - forgetting) * sum(r[i] * r[j] for r in rows) / len(rows) for j in range(D)]
        for i in range(D)
    ]
    crowd = sum(r[i] * new[i][j] * r[j] for r in rows for i in range(D) for j in range(D)) / len(rows)
    return 1 - mean_over_pairs(dot, z, t) + covariance * crowd


@pytest.mark.parametrize(("V", "V_T"), [(2, 2), (4, 4), (4, 2)])
def test_equals_the_two_sums_of_the_paper(loss, V, V_T, randn):
    Z, T, A = randn(V, 5, 4), randn(V_T, 5, 4), randn(4, 4)
    C = A @ A.T / 4
    assert loss(Z, T, C, covariance=3.0, forgetting=0.4).item() == pytest.approx(loops(Z, T, C, 3.0, 0.4), abs=1e-10)


def test_is_smallest_without_a_past_if_views_agree_and_directions_are_spread_evenly(loss, randn):
    identity, C = torch.eye(4, dtype=torch.float64), torch.zeros(4, 4, dtype=torch.float64)
    best = torch.cat([identity, -identity]).expand(2, 8, 4)
    assert loss(best, best, C, forgetting=0.0).item() == pytest.approx(8 / 4, abs=1e-12)
    for _ in range(20):
        other = best + 0.1 * randn(2, 8, 4)
        assert loss(other, other, C, forgetting=0.0) > 2
