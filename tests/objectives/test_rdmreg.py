import pytest
import torch

from fullrank.objectives import rdmreg, total
from fullrank.objectives.algebra import random_directions
from fullrank.objectives.rdmreg import laplace, normal


@pytest.mark.parametrize(("p", "draw"), [(1, laplace), (2, normal)])
def test_equals_the_definition(randn, p, draw):
    V, N, D, slices = 3, 5, 4, 6
    Z, rng = randn(V, N, D), torch.Generator().manual_seed(3)
    A, T = random_directions(D, slices, rng), (draw(V, N, D, generator=rng) - 0.5).relu()
    Y = Z.clamp_min(0)
    pairs = [(v, w) for v in range(V) for w in range(v)]
    invariance = sum(((Y[v] - Y[w]) ** 2).mean().item() for v, w in pairs) / len(pairs)
    distance = 0.0
    for v in range(V):
        for a in A.T:
            x, t = sorted((Y[v] @ a).tolist()), sorted((T[v] @ a).tolist())
            distance += sum((x - t) ** 2 for x, t in zip(x, t, strict=True)) / (V * slices * N)
    numbers = {"invariance": 2.0, "distribution": 3.0, "shift": -0.5, "p": p, "slices": slices}
    found = rdmreg(Z, **numbers, generator=rng.manual_seed(3))
    expected = {"invariance": 2 * invariance, "distribution": 3 * distance}
    assert {name: term.item() for name, term in found.items()} == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("p", "kurtosis"), [(1, 6.0), (2, 3.0)])
def test_the_target_has_unit_variance_and_its_sparse_distribution_is_best(p, kurtosis):
    rng = torch.Generator().manual_seed(0)
    s = {1: laplace, 2: normal}[p](200_000, generator=rng)
    assert s.var().item() == pytest.approx(1, rel=0.02)
    assert (s**4).mean().item() == pytest.approx(kurtosis, rel=0.1)
    target = s[: 1000 * 8].reshape(1, 1000, 8).expand(2, -1, -1)
    worse = [target.abs(), 2 * target, target + 1, target[..., :1].expand(2, -1, 8)]
    values = [total(rdmreg(Z, p=p, slices=64, generator=torch.Generator().manual_seed(1))) for Z in (target, *worse)]
    assert all(values[0] < value / 3 for value in values[1:])
