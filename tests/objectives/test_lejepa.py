import cmath
import math

import pytest
import torch
from torch.nn.functional import normalize

from fullrank.objectives import find_objective, lejepa, total


def directions(D, slices):
    return normalize(torch.randn(D, slices, generator=torch.Generator().manual_seed(3), dtype=torch.float64), dim=0)


def statistic(samples, a):
    """The statistic of Epps and Pulley by 600 points of the midpoint rule, from the definition."""
    x, h = [math.fsum(u * v for u, v in zip(row, a, strict=True)) for row in samples], 6 / 600
    value = 0.0
    for k in range(600):
        t = -3 + (k + 0.5) * h
        phi = sum(cmath.exp(1j * t * xi) for xi in x) / len(x)
        value += abs(phi - math.exp(-(t**2) / 2)) ** 2 * math.exp(-(t**2) / 2) * h
    return len(x) * value


@pytest.mark.parametrize("flatten", [False, True])
def test_equals_the_definition(loss, randn, flatten):
    V, N, D, slices = 3, 5, 4, 3
    Z, A = randn(V, N, D), directions(D, slices)
    sets = [Z.flatten(0, 1).tolist()] if flatten else Z.tolist()
    normality = sum(statistic(samples, a) for samples in sets for a in A.T.tolist()) / (len(sets) * slices)
    mean = Z.mean(0)
    invariance = sum(((view - mean) ** 2).mean().item() for view in Z) / V
    found = loss(Z, trade_off=0.3, slices=slices, flatten=flatten, generator=torch.Generator().manual_seed(3)).item()
    assert found == pytest.approx(0.7 * invariance + 0.3 * normality, rel=2e-4)  # 17 points of the trapezoidal rule


def test_the_other_form_of_the_weight_is_a_sum_with_another_trade_off(randn):
    Z, rng = randn(2, 12, 5), lambda: torch.Generator().manual_seed(3)
    terms = [sum(lejepa(Z, trade_off=weight, generator=rng()).values()) for weight in (0.0, 1.0)]
    found = total(find_objective("1.05 lejepa(trade_off=0.047619047619047616)")(Z=Z, generator=rng()))
    torch.testing.assert_close(found, terms[0] + 0.05 * terms[1])


def test_a_normal_distribution_is_better_than_others():
    rng = torch.Generator().manual_seed(0)
    normal = torch.randn(1, 2000, 8, generator=rng, dtype=torch.float64).expand(2, -1, -1)
    worse = [normal * 2, normal + 1, normal.sign(), normal * (torch.arange(8) < 4) * 2**0.5]
    values = [total(lejepa(Z, generator=torch.Generator().manual_seed(1))) for Z in (normal, *worse)]
    assert all(values[0] < value / 3 for value in values[1:])


def test_equals_lightly_with_its_directions(monkeypatch, randn):
    lightly = pytest.importorskip("lightly.loss")
    if not hasattr(lightly, "LeJEPALoss"):
        pytest.skip("an older lightly")
    Z = randn(2, 12, 5)
    A = directions(5, 1024)
    monkeypatch.setattr(lightly.SIGReg, "_generate_unit_vectors", lambda *_, **__: A)
    theirs = lightly.LeJEPALoss(lambda_param=0.05)(local_proj=Z, global_proj=Z)  # the mean of both is that of Z
    ours = total(lejepa(Z, generator=torch.Generator().manual_seed(3)))
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-6)
