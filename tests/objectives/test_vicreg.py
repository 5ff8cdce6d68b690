import math

import pytest
import torch

from fullrank.objectives import vicreg


def loops(Z, invariance, variance, covariance):
    _, N, D = Z.shape
    z1, z2 = Z.tolist()
    total = invariance / (N * D) * sum((z1[n][d] - z2[n][d]) ** 2 for n in range(N) for d in range(D))
    for view in (z1, z2):
        mean = [sum(row[d] for row in view) / N for d in range(D)]
        for i in range(D):
            for j in range(D):
                C = sum((row[i] - mean[i]) * (row[j] - mean[j]) for row in view) / (N - 1)
                total += variance / (2 * D) * max(0.0, 1 - math.sqrt(C + 1e-4)) if i == j else covariance / D * C**2
    return total


@pytest.mark.parametrize("shape", [(2, 7, 4), (2, 4, 6)])
@pytest.mark.parametrize("scale", [0.5, 2.0])  # below and above the hinge
def test_equals_the_sum_of_the_released_code(loss, shape, scale, randn):
    Z = scale * randn(*shape) + 0.5
    hyper = {"invariance": 3.0, "variance": 5.0, "covariance": 2.0}
    assert loss(Z, **hyper).item() == pytest.approx(loops(Z, **hyper), abs=1e-10)


def test_is_zero_for_equal_views_with_uncorrelated_features_of_large_variance(loss, orthonormal):
    Q = orthonormal(9, 4)
    Z = (3 * Q + 1).expand(2, 9, 4)  # standard deviation 3/√8 > 1
    assert loss(Z) < 1e-24
    assert vicreg(Q.expand(2, 9, 4))["variance"] > 1  # standard deviation 1/√8 < 1


def test_a_collapsed_batch_has_the_full_hinge():
    terms = vicreg(torch.full((2, 8, 3), 0.1, dtype=torch.float64))
    assert terms["variance"].item() == pytest.approx(25 * (1 - 0.01), abs=1e-12)
