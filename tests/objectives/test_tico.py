import math

import pytest
import torch

from fullrank.objectives import tico


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


def test_is_smallest_without_a_past_if_views_agree_and_directions_are_spread_evenly(rng):
    identity, C = torch.eye(4, dtype=torch.float64), torch.zeros(4, 4, dtype=torch.float64)
    best = torch.cat([identity, -identity]).expand(2, 8, 4)
    assert loss(best, best, C, forgetting=0.0).item() == pytest.approx(8 / 4, abs=1e-12)
    for _ in range(20):
        other = best + 0.1 * randn(rng, 2, 8, 4)
        assert loss(other, other, C, forgetting=0.0) > 2
