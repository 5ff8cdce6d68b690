import math

import numpy as np
import pytest
import torch
from loops import cosine
from scipy.linalg import sqrtm

from fullrank.errors import UserError
from fullrank.objectives import wmse
from fullrank.objectives.wmse import inverse_root


def gradient(Z, **hyper):
    Z = Z.clone().requires_grad_()
    return torch.autograd.grad(sum(wmse(Z, **hyper).values()), Z)[0]


def whiten(z, epsilon):
    """Whiten by Cholesky decomposition and forward substitution, element by element."""
    N, D = len(z), len(z[0])
    mean = [sum(row[d] for row in z) / N for d in range(D)]
    z = [[row[d] - mean[d] for d in range(D)] for row in z]
    C = [
        [(1 - epsilon) * sum(row[i] * row[j] for row in z) / (N - 1) + epsilon * (i == j) for j in range(D)]
        for i in range(D)
    ]
    L = [[0.0] * D for _ in range(D)]
    for i in range(D):
        for j in range(i + 1):
            rest = C[i][j] - sum(L[i][k] * L[j][k] for k in range(j))
            L[i][j] = math.sqrt(rest) if i == j else rest / L[j][j]
    white = []
    for row in z:
        w = []
        for d in range(D):
            w.append((row[d] - sum(L[d][k] * w[k] for k in range(d))) / L[d][d])
        white.append(w)
    return white


def whiten_zca(z, epsilon):
    """Whiten by scipy's matrix square root."""
    z = np.array(z)
    S = (1 - epsilon) * np.cov(z.T) + epsilon * np.eye(z.shape[1])
    return ((z - z.mean(0)) @ np.linalg.inv(sqrtm(S))).tolist()


def loops(Z, slice_size, epsilon, whiten):
    V, N, _ = Z.shape
    W = [
        [row for start in range(0, N, slice_size) for row in whiten(view[start : start + slice_size], epsilon)]
        for view in Z.tolist()
    ]
    pairs = [(v, w) for v in range(V) for w in range(v + 1, V)]
    return sum(2 - 2 * cosine(W[v][i], W[w][i]) for v, w in pairs for i in range(N)) / (len(pairs) * N)


@pytest.mark.parametrize(("whitening", "whiten"), [("cholesky", whiten), ("zca", whiten_zca)])
@pytest.mark.parametrize("V", [2, 4])
@pytest.mark.parametrize(("slice_size", "epsilon"), [(12, 0.0), (6, 0.0), (4, 0.1)])
def test_equals_the_mean_distance_of_whitened_pairs(loss, V, slice_size, epsilon, whitening, whiten, randn):
    Z = randn(V, 12, 4) + 0.5
    value = loss(Z, slice_size=slice_size, epsilon=epsilon, whitening=whitening).item()
    assert value == pytest.approx(loops(Z, slice_size, epsilon, whiten), abs=1e-10)


def test_a_linearly_dependent_feature_has_no_effect_and_no_gradient(loss, randn):
    Z = randn(2, 9, 4)
    constant = torch.full((2, 9, 1), 0.1, dtype=torch.float64)
    explained = torch.cat([Z, Z[..., :2].sum(-1, keepdim=True), constant], dim=-1)
    assert loss(explained).item() == pytest.approx(loss(Z).item(), abs=1e-12)
    torch.testing.assert_close(gradient(explained)[..., :4], gradient(Z), atol=1e-12, rtol=0)
    assert (gradient(explained)[..., 4:] == 0).all()


@pytest.mark.parametrize(
    ("N", "slice_size", "remedy"), [(12, 4, "6 or 12"), (12, 5, "6 or 12"), (7, 2, "7"), (4, 4, "")]
)
def test_a_slice_that_does_not_fit_is_an_error_that_names_those_that_do(loss, randn, N, slice_size, remedy):
    Z = randn(2, N, 4)
    with pytest.raises(UserError, match=rf"slices of {slice_size} of {N} samples in 4 dimensions") as caught:
        loss(Z, slice_size=slice_size)
    assert str(caught.value).endswith(f"give hyper.slice_size = {remedy}") == bool(remedy)
    for fits in remedy.split(" or ") if remedy else ():
        assert loss(Z, slice_size=int(fits)).isfinite()
    assert loss(Z, slice_size=N, epsilon=0.1).isfinite()


def test_zca_ignores_a_joint_rotation_and_a_direction_without_variance(loss, randn):
    Z, rotation = randn(2, 9, 4), torch.linalg.qr(randn(5, 5)).Q
    flat = torch.cat([Z, torch.full((2, 9, 1), 0.1, dtype=torch.float64)], dim=-1)
    for same in (flat, flat @ rotation):
        assert loss(same, whitening="zca").item() == pytest.approx(loss(Z, whitening="zca").item(), abs=1e-12)
    expected = gradient(flat, whitening="zca") @ rotation
    assert not gradient(flat, whitening="zca")[..., 4].any()
    torch.testing.assert_close(gradient(flat @ rotation, whitening="zca"), expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("equal", [False, True])
def test_the_inverse_root_has_two_derivatives_at_equal_eigenvalues_too(randn, equal):
    A = randn(2, 9, 4)
    C = (torch.eye(4, dtype=torch.float64).expand(2, 4, 4) if equal else A.mT @ A).clone().requires_grad_()

    def root(C):
        return inverse_root((C + C.mT) / 2)

    torch.testing.assert_close(root(C) @ C @ root(C), torch.eye(4, dtype=torch.float64).expand(2, 4, 4))
    assert torch.autograd.gradcheck(root, C)
    assert torch.autograd.gradgradcheck(root, C)


def test_zca_is_finite_at_a_collapse_and_keeps_nan(loss):
    Z = torch.ones(2, 9, 4)
    assert loss(Z, whitening="zca").item() == 2
    assert not gradient(Z, whitening="zca").any()
    assert loss(math.nan * Z, whitening="zca").isnan()


def test_with_an_epsilon_slices_may_be_smaller_than_the_dimension(loss, randn):
    with pytest.raises(UserError, match=r"give hyper\.slice_size = 2 or 3 or 4$"):
        loss(randn(2, 12, 20), slice_size=5, epsilon=0.1)
