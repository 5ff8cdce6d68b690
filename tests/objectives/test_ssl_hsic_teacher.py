import pytest
import torch
from loops import hsic


@pytest.mark.parametrize("V_T", [2, 3])
def test_predictions_and_targets_are_the_views_of_a_sample(loss, randn, V_T):
    P, T = randn(3, 5, 4), randn(V_T, 5, 4)
    expected = hsic(torch.cat([P, T]), 1.5, 0.5)
    assert loss(P, T, regularization=1.5, kernel_scale=0.5).item() == pytest.approx(expected, abs=1e-12)
