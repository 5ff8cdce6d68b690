import math

import pytest
import scipy.linalg
import torch

from fullrank.errors import UserError
from fullrank.spectrum import lidar


def test_lidar_equals_the_formula_written_as_loops(randn):
    n, q, D = 12, 3, 4
    X = randn(n, q, D) + 2 * randn(n, 1, D) + 5
    m_i = [sum(X[i]) / q for i in range(n)]
    m = sum(m_i) / n
    S_b = sum(torch.outer(m_i[i] - m, m_i[i] - m) for i in range(n)) / (n - 1)
    within = sum(torch.outer(X[i, j] - m_i[i], X[i, j] - m_i[i]) for i in range(n) for j in range(q))
    S_w = within / (n * (q - 1)) + 1e-4 * torch.eye(D)
    root = scipy.linalg.inv(scipy.linalg.sqrtm(S_w.numpy()))
    eigenvalues = scipy.linalg.eigvalsh(root @ S_b.numpy() @ root)
    p = eigenvalues / eigenvalues.sum()
    assert lidar(X) == pytest.approx(math.exp(-(p * [math.log(x) for x in p]).sum()), rel=1e-10)


@pytest.mark.parametrize("r", [1, 3])
def test_images_that_differ_in_r_directions_have_lidar_r(r, randn):
    means = torch.linalg.qr(torch.cat([torch.ones(50, 1), randn(50, r)], 1)).Q[:, 1:]  # centred and orthonormal
    X = torch.zeros(50, 2, 8, dtype=torch.float64)
    X[:, :, :r] = means[:, None]
    assert lidar(X) == pytest.approx(r, abs=1e-9)


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
