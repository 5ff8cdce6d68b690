import pytest
import torch

from fullrank.objectives import vibcreg, vicreg


@pytest.mark.parametrize(("N", "D"), [(7, 3), (4, 6)])
def test_equals_vicreg_with_correlations(randn, N, D):
    Z = randn(2, N, D) * torch.arange(1, D + 1)
    found = vibcreg(Z, invariance=3.0, variance=5.0, covariance=2.0)
    M = torch.stack([torch.corrcoef(view.T) for view in Z])
    expected = vicreg(Z, invariance=3.0, variance=5.0)
    off = M.square().sum() - M.diagonal(dim1=1, dim2=2).square().sum()
    expected["covariance"] = 2 * off / D**2
    torch.testing.assert_close(found, expected)


def test_the_correlations_do_not_shrink_with_the_scale(randn):
    Z = randn(2, 8, 4)
    torch.testing.assert_close(vibcreg(Z)["covariance"], vibcreg(Z / 100)["covariance"])


def test_uncorrelated_features_of_large_variance_are_best(is_least):
    Z = torch.tensor([[1.0, 1], [1, -1], [-1, 1], [-1, -1]], dtype=torch.float64)
    is_least(2 * torch.stack([Z, Z]), 0.0)
