import math

import pytest
import torch

from fullrank.objectives import corinfomax_batch


def loops(Z, invariance, epsilon):
    """Compute the loss by the covariance, with its determinant by elimination."""
    _, N, D = Z.shape
    z1, z2 = Z.tolist()
    total = invariance / N * sum((z1[n][d] - z2[n][d]) ** 2 for n in range(N) for d in range(D))
    for z in (z1, z2):
        A = [[sum(row[i] * row[j] for row in z) + epsilon * (i == j) for j in range(D)] for i in range(D)]
        for k in range(D):
            total -= math.log(A[k][k])
            for i in range(k + 1, D):
                factor = A[i][k] / A[k][k]
                A[i] = [a - factor * b for a, b in zip(A[i], A[k], strict=True)]
    return total


@pytest.mark.parametrize("shape", [(2, 7, 4), (2, 4, 4), (2, 4, 6)])
def test_equals_the_equation_by_covariance_and_gram(loss, shape, randn):
    Z = randn(*shape) + 0.5
    assert loss(Z, invariance=3.0, epsilon=0.01).item() == pytest.approx(loops(Z, 3.0, 0.01), abs=1e-10)


def test_minimum_for_normalised_rows_is_at_equal_views_with_isotropic_scatter(loss, randn):
    N, D = 8, 4
    identity = torch.eye(D, dtype=torch.float64)
    best = torch.cat([identity, -identity]).expand(2, N, D)
    value = loss(best).item()
    assert value == pytest.approx(-2 * D * math.log(N / D + 1e-3), abs=1e-10)
    for _ in range(20):
        assert loss(torch.nn.functional.normalize(best + 0.1 * randn(2, N, D), dim=-1)) > value


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
