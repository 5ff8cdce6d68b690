import math

import pytest
import torch

from fullrank.objectives import tico
from fullrank.objectives.tico import tico_covariance


def randn(rng, *shape):
    return torch.randn(*shape, generator=rng, dtype=torch.float64)


def symmetric(rng, D):
    A = randn(rng, D, D)
    return A @ A.T / D


def loss(*tensors, **hyper):
    return sum(tico(*tensors, **hyper).values())


def normalized(row):
    norm = math.sqrt(sum(x * x for x in row))
    return [x / norm for x in row]


def loops(Z, T, C, covariance, forgetting):
    V, N, D = Z.shape
    z = [[normalized(row) for row in view] for view in Z.tolist()]
    t = [[normalized(row) for row in view] for view in T.tolist()]
    new = [
        [
            forgetting * C[i, j].item()
            + (1 - forgetting) * sum(z[v][n][i] * z[v][n][j] for v in range(V) for n in range(N)) / (V * N)
            for j in range(D)
        ]
        for i in range(D)
    ]
    pairs = [(v, w) for v in range(V) for w in range(len(t)) if v != w]
    agree = sum(1 - sum(z[v][n][d] * t[w][n][d] for d in range(D)) for v, w in pairs for n in range(N)) / (
        len(pairs) * N
    )
    crowd = sum(
        z[v][n][i] * new[i][j] * z[v][n][j] for v in range(V) for n in range(N) for i in range(D) for j in range(D)
    ) / (V * N)
    return agree + covariance * crowd


@pytest.mark.parametrize(("V", "V_T"), [(2, 2), (4, 4), (4, 2)])
def test_equals_the_two_sums_of_the_paper(V, V_T, rng):
    Z, T, C = randn(rng, V, 5, 4), randn(rng, V_T, 5, 4), symmetric(rng, 4)
    assert loss(Z, T, C, covariance=3.0, forgetting=0.4).item() == pytest.approx(loops(Z, T, C, 3.0, 0.4), abs=1e-10)


def test_the_loss_uses_the_updated_covariance(rng):
    Z, C = randn(rng, 2, 5, 4), symmetric(rng, 4)
    U = torch.nn.functional.normalize(Z, dim=-1)
    new = tico_covariance(Z, C, forgetting=0.4)
    torch.testing.assert_close(new, 0.4 * C + 0.6 * (U.mT @ U / 5).mean(0))
    crowd = torch.einsum("vni,ij,vnj->", U, new, U) / 10
    assert tico(Z, Z, C, forgetting=0.4, covariance=1.0)["covariance"].item() == pytest.approx(crowd.item(), abs=1e-12)


def test_is_smallest_without_a_past_if_views_agree_and_directions_are_spread_evenly(rng):
    identity, C = torch.eye(4, dtype=torch.float64), torch.zeros(4, 4, dtype=torch.float64)
    best = torch.cat([identity, -identity]).expand(2, 8, 4)
    assert loss(best, best, C, forgetting=0.0).item() == pytest.approx(8 / 4, abs=1e-12)
    for _ in range(20):
        other = best + 0.1 * randn(rng, 2, 8, 4)
        assert loss(other, other, C, forgetting=0.0) > 2


def test_collapse_costs_more_than_spread(rng):
    C = torch.zeros(4, 4, dtype=torch.float64)
    collapsed = randn(rng, 4).expand(2, 8, 4)
    assert loss(collapsed, collapsed, C, forgetting=0.0).item() == pytest.approx(8, abs=1e-12)


def test_ignores_the_length_of_rows_and_a_rotation_of_embeddings_and_state(rng, rotation):
    Z, T, C = randn(rng, 2, 5, 4), randn(rng, 2, 5, 4), symmetric(rng, 4)
    value = loss(Z, T, C).item()
    assert loss(Z * randn(rng, 2, 5, 1).exp(), 3 * T, C).item() == pytest.approx(value, abs=1e-12)
    assert loss(Z @ rotation, T @ rotation, rotation.T @ C @ rotation).item() == pytest.approx(value, abs=1e-10)
    assert abs(loss(Z @ rotation, T @ rotation, C) - value) > 1e-2
    assert abs(loss(Z + 1, T + 1, C) - value) > 1e-2
