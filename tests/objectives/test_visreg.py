import math
from statistics import NormalDist

import pytest
import torch

from fullrank.objectives import total, visreg
from fullrank.objectives.algebra import random_directions


def directions(D, slices):
    return random_directions(D, slices, torch.Generator().manual_seed(3))


@pytest.mark.parametrize("full", [None, 2])
def test_equals_the_definition(randn, full):
    V, N, D, slices = 3, 5, 4, 6
    Z, A = randn(V, N, D), directions(D, slices)
    center = scale = shape = 0.0
    for view in Z.tolist():
        columns = list(zip(*view, strict=True))
        means = [sum(column) / N for column in columns]
        stds = [math.sqrt(sum((x - m) ** 2 for x in column) / N) for column, m in zip(columns, means, strict=True)]
        center += sum(m**2 for m in means) / (V * D)
        scale += sum((1 - s) ** 2 for s in stds) / (V * D)
        rows = [[(x - m) / (s + 1e-4) for x, m, s in zip(row, means, stds, strict=True)] for row in view]
        for a in A.T.tolist():
            projected = sorted(sum(x * y for x, y in zip(row, a, strict=True)) for row in rows)
            targets = [NormalDist().inv_cdf(i / (N + 1)) for i in range(1, N + 1)]
            shape += sum((x - q) ** 2 for x, q in zip(projected, targets, strict=True)) / (V * slices * N)
    invariance = (Z - sum(Z[: full or V]) / (full or V)).square().mean().item()
    rng = torch.Generator().manual_seed(3)
    found = visreg(Z, trade_off=0.3, shape=2.0, slices=slices, full=full, generator=rng)
    expected = {"invariance": 0.7 * invariance, "center": 0.3 * center, "scale": 0.3 * scale, "shape": 0.6 * shape}
    assert {name: term.item() for name, term in found.items()} == pytest.approx(expected, abs=1e-12)


def test_a_normal_distribution_is_better_than_others():
    rng = torch.Generator().manual_seed(0)
    normal = torch.randn(1, 2000, 8, generator=rng, dtype=torch.float64).expand(2, -1, -1)
    worse = [normal * 2, normal + 1, normal.sign(), normal[..., :1].expand(2, -1, 8)]
    values = [total(visreg(Z, slices=64, generator=torch.Generator().manual_seed(1))) for Z in (normal, *worse)]
    assert all(values[0] < value / 3 for value in values[1:])


def test_the_gradient_of_the_scale_stays_near_a_collapse(randn):
    X = randn(1, 16, 4).expand(2, -1, -1)
    sizes = []
    for size in (1e-2, 1e-5):
        Z = (size * X).requires_grad_()
        sizes.append(torch.autograd.grad(visreg(Z)["scale"], Z)[0].norm().item())
    assert sizes[1] == pytest.approx(sizes[0], rel=0.02)


def test_equals_lightly_with_its_directions(monkeypatch, randn):
    lightly = pytest.importorskip("lightly.loss.visreg_loss")
    Z, A = randn(2, 12, 5), directions(5, 64)
    monkeypatch.setattr(lightly.torch, "randn", lambda *_, **__: A)
    theirs = lightly.VISRegLoss(num_slices=64).forward_components(local_proj=Z[:0], global_proj=Z)
    monkeypatch.undo()
    ours = visreg(Z, slices=64, generator=torch.Generator().manual_seed(3))
    assert total(ours).item() == pytest.approx(theirs.total.item(), rel=1e-6)
