import math

import pytest
import torch
from loops import log_determinant

from fullrank.objectives.corinfomax import corinfomax_moments


def moments(z, R, mu, f):
    N, D = len(z), len(z[0])
    mu = [f * mu[d] + (1 - f) * sum(row[d] for row in z) / N for d in range(D)]
    R = [
        [f * R[i][j] + (1 - f) * sum((row[i] - mu[i]) * (row[j] - mu[j]) for row in z) / N for j in range(D)]
        for i in range(D)
    ]
    return R, mu


def loops(Z, R, mu, *, invariance, epsilon, forgetting):
    _, N, D = Z.shape
    total = invariance / (N * D) * sum((Z[0, n, d] - Z[1, n, d]).item() ** 2 for n in range(N) for d in range(D))
    for z, r, m in zip(Z.tolist(), R.tolist(), mu.tolist(), strict=True):
        new, _ = moments(z, r, m, forgetting)
        total -= log_determinant([[new[i][j] + epsilon * (i == j) for j in range(D)] for i in range(D)]) / D
    return total


@pytest.mark.parametrize("shape", [(2, 7, 4), (2, 4, 6)])
def test_equals_the_log_determinant_of_the_running_covariances(loss, shape, randn):
    D = shape[-1]
    Z, A, mu = randn(*shape) + 0.5, randn(2, D, 2 * D), randn(2, D)
    hyper = {"invariance": 3.0, "epsilon": 0.01, "forgetting": 0.3}
    R = A @ A.mT / (2 * D)
    assert loss(Z, R, mu, **hyper).item() == pytest.approx(loops(Z, R, mu, **hyper), abs=1e-10)


def test_is_least_for_unit_rows_when_views_agree_and_the_covariance_is_isotropic(is_least):
    identity = torch.eye(4, dtype=torch.float64)
    best = torch.cat([identity, -identity]).expand(2, 8, 4)
    past = identity.expand(2, 4, 4) / 4, torch.zeros(2, 4, dtype=torch.float64)
    is_least(best, 2 * math.log(4), *past, normalized=True, epsilon=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_stays_finite_long_after_complete_collapse(loss, dtype, randn):
    D = 64
    row = torch.nn.functional.normalize(randn(D), dim=-1)
    Z = row.to(dtype).expand(2, 48, D).clone().requires_grad_()
    R, mu = torch.eye(D, dtype=dtype).repeat(2, 1, 1), torch.zeros(2, D, dtype=dtype)
    for _ in range(20):
        R, mu = corinfomax_moments(Z.detach(), R, mu)
    value = loss(Z, R, mu)
    (gradient,) = torch.autograd.grad(value, Z)
    assert value.item() == pytest.approx(-2 * math.log(1e-6), abs=0.1)
    assert gradient.isfinite().all()
    assert gradient.abs().max() < 1
