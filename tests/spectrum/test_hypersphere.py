import math

import numpy as np
import pytest
import torch
from scipy.spatial.distance import pdist

from fullrank.spectrum import alignment, intraclass_correlation, uniformity


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


def test_uniformity_equals_scipy_and_excludes_pairs_of_an_image_with_itself():
    X = torch.randn(20, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    distances = pdist((X / X.norm(dim=1, keepdim=True)).numpy(), "sqeuclidean")
    assert uniformity(X) == pytest.approx(math.log(np.exp(-2 * distances).mean()), rel=1e-12)
    with_self_pairs = math.log((2 * np.exp(-2 * distances).sum() + 20) / 20**2)
    assert uniformity(X) < -math.log(20) < with_self_pairs


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_rows_of_zeros_and_low_precision_are_finite(X, dtype):
    Z = torch.cat([X, torch.zeros(2, 4)]).to(dtype)
    assert math.isfinite(uniformity(Z))
    assert alignment(Z, Z) == 0


@pytest.mark.parametrize("V", [2, 3])
def test_intraclass_correlation_equals_its_formula_as_loops(V):
    R = torch.randn(V, 20, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(V))
    R += 3 + torch.randn(20, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    mean = sum(r for view in R for r in view) / (20 * V)
    between = sum((R[v, i] - mean) @ (R[w, i] - mean) for i in range(20) for v in range(V) for w in range(V) if v != w)
    square = sum((R[v, i] - mean) @ (R[v, i] - mean) for i in range(20) for v in range(V))
    assert intraclass_correlation(R) == pytest.approx((between / (V - 1) / square).item())
    assert intraclass_correlation(R[:1].expand(3, -1, -1)) == pytest.approx(1)
    assert intraclass_correlation(R[:1]) is intraclass_correlation(torch.ones(2, 6, 3)) is None
