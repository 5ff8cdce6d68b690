import math

import pytest
import torch
from loops import log_determinant

from fullrank.objectives import corinfomax_batch


def loops(Z, invariance, epsilon):
    """Compute the loss by the covariance, with its determinant by elimination."""
    _, N, D = Z.shape
    z1, z2 = Z.tolist()
    total = invariance / N * sum((z1[n][d] - z2[n][d]) ** 2 for n in range(N) for d in range(D))
    for z in (z1, z2):
        A = [[sum(row[i] * row[j] for row in z) + epsilon * (i == j) for j in range(D)] for i in range(D)]
        total -= log_determinant(A)
    return total


@pytest.mark.parametrize("shape", [(2, 7, 4), (2, 4, 4), (2, 4, 6)])
def test_equals_the_equation_by_covariance_and_gram(loss, shape, randn):
    Z = randn(*shape) + 0.5
    assert loss(Z, invariance=3.0, epsilon=0.01).item() == pytest.approx(loops(Z, 3.0, 0.01), abs=1e-10)


def test_minimum_for_normalised_rows_is_at_equal_views_with_isotropic_scatter(is_least):
    identity = torch.eye(4, dtype=torch.float64)
    best = torch.cat([identity, -identity]).expand(2, 8, 4)
    is_least(best, -2 * 4 * math.log(8 / 4 + 1e-3), normalized=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(2, 256, 64), (2, 64, 256)])
def test_collapse_has_the_value_of_one_dimension(shape, dtype):
    _, N, D = shape
    Z = torch.full(shape, 0.1, dtype=dtype, requires_grad=True)
    terms = corinfomax_batch(Z)
    sum(terms.values()).backward()
    expected = -2 * (math.log(0.01 * N * D + 1e-3) + (D - 1) * math.log(1e-3))
    assert terms["entropy"].item() == pytest.approx(expected, rel=1e-2)
    assert Z.grad is not None
    assert Z.grad.isfinite().all()
    assert Z.grad.abs().max() < 100
