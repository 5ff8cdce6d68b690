import math

import pytest
import torch

from fullrank.objectives import corinfomax
from fullrank.objectives.corinfomax import corinfomax_moments


def randn(rng, *shape):
    return torch.randn(*shape, generator=rng, dtype=torch.float64)


def covariances(rng, D):
    A = randn(rng, 2, D, 2 * D)
    return A @ A.mT / (2 * D)


def loss(*tensors, **hyper):
    return sum(corinfomax(*tensors, **hyper).values())


def log_determinant(A):
    """By elimination."""
    A, total = [row[:] for row in A], 0.0
    for k in range(len(A)):
        total += math.log(A[k][k])
        for i in range(k + 1, len(A)):
            factor = A[i][k] / A[k][k]
            A[i] = [a - factor * b for a, b in zip(A[i], A[k], strict=True)]
    return total


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
def test_equals_the_log_determinant_of_the_running_covariances(shape, rng):
    Z, R, mu = randn(rng, *shape) + 0.5, covariances(rng, shape[-1]), randn(rng, 2, shape[-1])
    hyper = {"invariance": 3.0, "epsilon": 0.01, "forgetting": 0.3}
    assert loss(Z, R, mu, **hyper).item() == pytest.approx(loops(Z, R, mu, **hyper), abs=1e-10)


def test_is_least_for_unit_rows_when_views_agree_and_the_covariance_is_isotropic(rng):
    D = 4
    identity = torch.eye(D, dtype=torch.float64)
    best = torch.cat([identity, -identity]).expand(2, 2 * D, D)
    past = identity.expand(2, D, D) / D, torch.zeros(2, D, dtype=torch.float64)
    value = loss(best, *past, epsilon=1e-12).item()
    assert value == pytest.approx(2 * math.log(D), abs=1e-10)
    for _ in range(20):
        other = torch.nn.functional.normalize(best + 0.1 * randn(rng, 2, 2 * D, D), dim=-1)
        assert loss(other, *past, epsilon=1e-12) > value


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_stays_finite_long_after_complete_collapse(dtype, rng):
    D = 64
    row = torch.nn.functional.normalize(randn(rng, D), dim=-1)
    Z = row.to(dtype).expand(2, 48, D).clone().requires_grad_()
    R, mu = torch.eye(D, dtype=dtype).repeat(2, 1, 1), torch.zeros(2, D, dtype=dtype)
    for _ in range(20):
        R, mu = corinfomax_moments(Z.detach(), R, mu)
    value = loss(Z, R, mu)
    (gradient,) = torch.autograd.grad(value, Z)
    assert value.item() == pytest.approx(-2 * math.log(1e-6), abs=0.1)
    assert gradient.isfinite().all()
    assert gradient.abs().max() < 1
