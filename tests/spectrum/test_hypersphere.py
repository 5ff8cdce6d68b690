import math

import numpy as np
import pytest
import torch
from scipy.spatial.distance import pdist

from fullrank.errors import UserError
from fullrank.spectrum import alignment, uniformity


@pytest.fixture
def X():
    return torch.randn(25, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 0.5


def unit(x):
    return [v / math.hypot(*x) for v in x]


def test_alignment_is_the_mean_squared_distance_of_unit_rows(X):
    Y = X.flip(0) * 3
    expected = sum(math.dist(unit(x), unit(y)) ** 2 for x, y in zip(X.tolist(), Y.tolist(), strict=True)) / 25
    assert alignment(X, Y) == pytest.approx(expected, rel=1e-12)
    assert alignment(X, 7 * X) == pytest.approx(0, abs=1e-15)
    assert alignment(X, -X) == pytest.approx(4, rel=1e-12)


@pytest.mark.parametrize("chunk", [1, 7, 25, 1000])
def test_uniformity_is_a_mean_over_pairs_for_any_chunk(X, chunk):
    rows = [unit(x) for x in X.tolist()]
    pairs = [math.exp(-2 * math.dist(rows[i], rows[j]) ** 2) for i in range(25) for j in range(i + 1, 25)]
    assert uniformity(X, chunk=chunk) == pytest.approx(math.log(sum(pairs) / len(pairs)), rel=1e-12)


def test_uniformity_equals_scipy_and_excludes_pairs_of_an_image_with_itself():
    X = torch.randn(20, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    distances = pdist((X / X.norm(dim=1, keepdim=True)).numpy(), "sqeuclidean")
    assert uniformity(X) == pytest.approx(math.log(np.exp(-2 * distances).mean()), rel=1e-12)
    with_self_pairs = math.log((2 * np.exp(-2 * distances).sum() + 20) / 20**2)
    assert uniformity(X) < -math.log(20) < with_self_pairs


def test_alignment_and_uniformity_ignore_rotation_and_the_length_of_rows(X):
    rotation = torch.linalg.qr(torch.randn(4, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)).Q
    lengths = torch.arange(1, 26)[:, None]
    assert uniformity(lengths * X @ rotation) == pytest.approx(uniformity(X), rel=1e-12)
    assert alignment(lengths * X @ rotation, X.flip(0) @ rotation) == pytest.approx(alignment(X, X.flip(0)), rel=1e-12)


def test_collapsed_embeddings_are_aligned_and_not_uniform(X):
    same = X[:1].expand(25, 4)
    assert alignment(same, same) == 0
    assert uniformity(same) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("r", [8, 64])
def test_uniformity_hardly_depends_on_the_dimension_of_the_sphere(r):
    X = torch.zeros(2000, 256, dtype=torch.float64)
    X[:, :r] = torch.randn(2000, r, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert uniformity(X) == pytest.approx(-4 + 8 / r, abs=8 / r**2 + 0.02)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_rows_of_zeros_and_low_precision_are_finite(X, dtype):
    Z = torch.cat([X, torch.zeros(2, 4)]).to(dtype)
    assert math.isfinite(uniformity(Z))
    assert alignment(Z, Z) == 0


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda views: alignment(views[0], views[1, :1]),
            r"\(5, 3\) and Y has shape \(1, 3\)",
        ),  # torch would broadcast them
        (lambda views: alignment(views, views), r"shape \(2, 5, 3\)"),
        (lambda views: alignment(views[0, :0], views[1, :0]), "X has no rows"),
        (lambda views: uniformity(views), r"shape \(2, 5, 3\)"),
        (lambda views: uniformity(views[0, :1]), "X has 1 rows"),
    ],
)
def test_wrong_shapes_raise(call, message):
    with pytest.raises(UserError, match=message):
        call(torch.ones(2, 5, 3))
