"""The largest curvature against whole Hessians."""

import math

import pytest
import torch

from fullrank.objectives import barlow_twins, frossl, total, vicreg
from fullrank_papers.theory.sharpness import sharpness


@pytest.mark.parametrize("objective", [frossl, barlow_twins, vicreg])
def test_it_is_the_largest_eigenvalue_of_the_hessian(objective):
    X = torch.randn(2, 12, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    W = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()
    hessian = torch.autograd.functional.hessian(lambda W: total(objective(X @ W)), W).reshape(12, 12)
    expected = torch.linalg.eigvalsh(hessian)[-1].item()
    assert sharpness(total(objective(X @ W)), [W], tolerance=1e-9) == pytest.approx(expected, rel=1e-6)


def test_a_hessian_that_is_not_finite_has_no_sharpness():
    w = torch.zeros(3, requires_grad=True)
    assert math.isnan(sharpness(w.abs().pow(1.5).sum(), [w]))
    assert sharpness((0 * w.square()).sum(), [w]) == 0
