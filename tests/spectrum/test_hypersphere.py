import math

import pytest
import torch

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
def test_uniformity_is_over_pairs_whatever_the_chunk(X, chunk):
    rows = [unit(x) for x in X.tolist()]
    pairs = [math.exp(-2 * math.dist(rows[i], rows[j]) ** 2) for i in range(25) for j in range(i + 1, 25)]
    assert uniformity(X, chunk=chunk) == pytest.approx(math.log(sum(pairs) / len(pairs)), rel=1e-12)


def test_both_ignore_rotation_and_the_length_of_rows(X):
    rotation = torch.linalg.qr(torch.randn(4, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)).Q
    lengths = torch.arange(1, 26)[:, None]
    assert uniformity(lengths * X @ rotation) == pytest.approx(uniformity(X), rel=1e-12)
    assert alignment(lengths * X @ rotation, X.flip(0) @ rotation) == pytest.approx(alignment(X, X.flip(0)), rel=1e-12)


def test_collapsed_embeddings_are_aligned_and_not_uniform(X):
    same = X[:1].expand(25, 4)
    assert alignment(same, same) == 0
    assert uniformity(same) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("r", [8, 64])
def test_uniformity_hardly_sees_in_how_many_dimensions_the_sphere_lies(r):
    X = torch.zeros(2000, 256, dtype=torch.float64)
    X[:, :r] = torch.randn(2000, r, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert uniformity(X) == pytest.approx(-4 + 8 / r, abs=8 / r**2 + 0.02)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_rows_of_zeros_and_short_numbers_give_numbers(X, dtype):
    Z = torch.cat([X, torch.zeros(2, 4)]).to(dtype)
    assert math.isfinite(uniformity(Z))
    assert alignment(Z, Z) == 0


def test_they_say_how_many_rows_they_need():
    with pytest.raises(UserError, match="uniformity of 1 embeddings, expected two at least"):
        uniformity(torch.ones(1, 3))
    with pytest.raises(UserError, match="alignment of no embeddings"):
        alignment(torch.ones(0, 3), torch.ones(0, 3))
