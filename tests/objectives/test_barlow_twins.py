import math

import pytest
import torch


def loops(Z, redundancy):
    z1, z2 = (view.T.tolist() for view in Z)
    total = 0.0
    for i, x in enumerate(z1):
        for j, y in enumerate(z2):
            mx, my = sum(x) / len(x), sum(y) / len(y)
            products = sum((a - mx) * (b - my) for a, b in zip(x, y, strict=True))
            M = products / math.sqrt(sum((a - mx) ** 2 for a in x) * sum((b - my) ** 2 for b in y))
            total += (1 - M) ** 2 if i == j else redundancy * M**2
    return total


@pytest.mark.parametrize("shape", [(2, 7, 4), (2, 4, 6)])
def test_equals_the_sum_of_the_paper(loss, shape, randn):
    Z = randn(*shape) + 0.5
    assert loss(Z, redundancy=0.3).item() == pytest.approx(loops(Z, 0.3), abs=1e-10)
    assert loss(Z, redundancy=0.3, scale=0.1).item() == pytest.approx(0.1 * loops(Z, 0.3), abs=1e-10)


def test_is_zero_exactly_when_the_cross_correlation_is_the_identity(loss, randn, orthonormal):
    Q = orthonormal(9, 4)
    Z = torch.stack([Q, 3 * Q + 1])
    assert loss(Z) < 1e-24
    assert loss(Z + 0.1 * randn(2, 9, 4)) > 1e-6


def test_a_constant_feature_adds_one_and_has_no_gradient(loss, randn):
    Z = randn(2, 9, 4)
    dead = torch.cat([Z, torch.full((2, 9, 1), 0.1, dtype=torch.float64)], dim=-1).requires_grad_()
    value = loss(dead)
    value.backward()
    assert value.item() == pytest.approx(loss(Z).item() + 1, abs=1e-12)
    assert dead.grad is not None
    assert (dead.grad[..., 4] == 0).all()
