import math

import pytest
import scipy.linalg
import torch

from fullrank.errors import UserError
from fullrank.spectrum import Spectrum, lidar


def test_lidar_equals_the_formula_written_as_loops(randn):
    n, q, D = 12, 3, 4
    X = randn(n, q, D) + 2 * randn(n, 1, D) + 5
    m_i = [sum(X[i]) / q for i in range(n)]
    m = sum(m_i) / n
    S_b = sum(torch.outer(m_i[i] - m, m_i[i] - m) for i in range(n)) / (n - 1)
    S_w = sum(torch.outer(X[i, j] - m_i[i], X[i, j] - m_i[i]) for i in range(n) for j in range(q)) / (
        n * (q - 1)
    ) + 1e-4 * torch.eye(D)
    root = scipy.linalg.inv(scipy.linalg.sqrtm(S_w.numpy()))
    eigenvalues = scipy.linalg.eigvalsh(root @ S_b.numpy() @ root)
    p = eigenvalues / eigenvalues.sum()
    assert lidar(X) == pytest.approx(math.exp(-(p * [math.log(x) for x in p]).sum()), rel=1e-10)


def test_isotropic_images_with_isotropic_views_have_lidar_D(randn):
    assert lidar(10 * randn(4000, 1, 6) + randn(4000, 4, 6)) == pytest.approx(6, abs=0.02)


@pytest.mark.parametrize("r", [1, 3])
def test_images_that_differ_in_r_directions_have_lidar_r(r, randn):
    means = torch.linalg.qr(torch.cat([torch.ones(50, 1), randn(50, r)], 1)).Q[:, 1:]  # centred and orthonormal
    X = torch.zeros(50, 2, 8, dtype=torch.float64)
    X[:, :, :r] = means[:, None]
    assert lidar(X) == pytest.approx(r, abs=1e-9)


def test_variance_between_views_counts_for_effective_rank_but_not_for_lidar(randn):
    X = torch.zeros(300, 8, 6, dtype=torch.float64)
    X[..., :2] = 10 * randn(300, 1, 2)
    X[..., 2:] = 10 * randn(300, 8, 4)
    assert Spectrum.from_embeddings(X.flatten(0, 1)).effective_rank() > 5.9
    assert lidar(X) < 2.1


def test_views_that_are_not_grouped_by_image_increase_lidar(randn, rng):
    X = randn(300, 4, 6)
    X[..., :2] += 10 * randn(300, 1, 2)
    mixed = X.flatten(0, 1)[torch.randperm(1200, generator=rng)].reshape(300, 4, 6)  # as in a flat queue
    assert lidar(X) < 2.3
    assert lidar(mixed) > 5.8


def test_complete_collapse_gives_zero_and_would_give_D_with_epsilon_on_every_eigenvalue():
    def with_epsilon(eigenvalues, epsilon):
        p = [(x + epsilon) / sum(y + epsilon for y in eigenvalues) for x in eigenvalues]
        return math.exp(-sum(x * math.log(x) for x in p))

    assert with_epsilon([0.0] * 8, 1e-8) == pytest.approx(8)
    assert lidar(torch.ones(20, 2, 8)) == 0


def test_lidar_ignores_rotation_and_shift(randn):
    X = randn(30, 3, 5) + 3 * randn(30, 1, 5)
    rotation = torch.linalg.qr(randn(5, 5)).Q
    assert lidar(X @ rotation + 7) == pytest.approx(lidar(X), rel=1e-9)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_collapsed_embeddings_have_lidar_zero(dtype):
    assert lidar(torch.full((20, 2, 3), 1e3 / 3, dtype=dtype)) == 0


@pytest.mark.parametrize(
    ("X", "delta", "message"),
    [
        (torch.ones(20, 3), 1e-4, r"LiDAR needs \(n, q, D\)"),
        (torch.ones(20, 1, 3), 1e-4, "X has 1 view per image"),
        (torch.ones(3, 2, 3), 1e-4, "X has 3 images"),
        (torch.ones(20, 2, 3), 0.0, "delta is 0"),
        (torch.full((20, 2, 3), torch.nan), 1e-4, "NaN or infinite"),
    ],
)
def test_wrong_input_raises(X, delta, message):
    with pytest.raises(UserError, match=message):
        lidar(X, delta=delta)


@pytest.mark.parametrize("scale", [1e-120, 1e-7, 1.0, 1e7, 1e14, 1e120])
def test_lidar_depends_on_the_scale_only_by_delta(scale, randn):
    X = randn(40, 3, 5) + 2 * randn(40, 1, 5)
    assert lidar(scale * X, delta=1e-4 * scale**2) == pytest.approx(lidar(X), rel=1e-9)


@pytest.mark.parametrize("scale", [1e3, 1e14, 1e150, 1e300])
def test_lidar_of_large_embeddings_is_that_without_delta(scale, randn):
    X = randn(40, 3, 5) + 2 * randn(40, 1, 5)
    assert lidar(scale * X) == pytest.approx(lidar(X, delta=1e-30), rel=1e-4)


def test_lidar_of_large_embeddings_without_variance_between_views_has_the_rank_of_the_images(randn):
    X = 1e14 * torch.eye(8, dtype=torch.float64)[:3].T @ randn(3, 60)  # (8, 60)
    assert lidar(X.T[:, None].expand(60, 2, 8)) == pytest.approx(lidar(1e-14 * X.T[:, None].expand(60, 2, 8)), rel=1e-6)


def test_collapse_far_from_the_origin_is_zero_at_any_scale(randn):
    for scale in (1e-100, 1.0, 1e14, 1e100):
        assert lidar(scale * randn(8).expand(20, 2, 8)) == 0


@pytest.mark.usefixtures("untyped")
def test_lists_integers_empty_embeddings_and_infinite_deltas_are_errors(randn):
    for X, words in (
        ([[1.0]], "list"),
        (torch.ones(9, 2, 3, dtype=torch.int64), "int64"),
        (torch.ones(9, 2, 0), "shape"),
    ):
        with pytest.raises(UserError, match=words):
            lidar(X)
    for delta in (math.nan, math.inf):
        with pytest.raises(UserError, match="delta"):
            lidar(randn(9, 2, 3), delta=delta)
