import math

import pytest
import torch
from loops import log_determinant


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
