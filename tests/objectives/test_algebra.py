import pytest
import torch

from fullrank.objectives.algebra import centered, off_diagonal, unit


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("N", [3, 48, 1000, 5001])
def test_centered_makes_a_column_zero_that_is_constant_up_to_rounding(N, dtype):
    constants = torch.tensor([0.1, -0.7, 1e6 / 3, 1e-6 / 3], dtype=dtype)
    assert (centered(constants.expand(N, 4)) == 0).all()


def test_centered_keeps_a_column_that_varies_little_about_a_large_mean():
    wave = torch.linspace(-1, 1, 64)
    A = centered((1000 + 0.1 * wave)[:, None])[:, 0]
    torch.testing.assert_close(A, 0.1 * wave, atol=1e-4, rtol=0)


def test_centered_and_unit_let_nan_through():
    Z = torch.ones(4, 2)
    Z[1, 0] = torch.nan
    assert unit(centered(Z), dim=-2).isnan().any()


@pytest.mark.parametrize("dim", [-1, -2, (-2, -1)])
def test_unit_has_norm_one_in_every_view(dim, rng):
    A = torch.randn(3, 5, 4, generator=rng, dtype=torch.float64)
    norm = unit(A, dim=dim).square().sum(dim)
    torch.testing.assert_close(norm, torch.ones_like(norm))


def test_unit_has_a_finite_gradient_at_zero():
    A = torch.zeros(5, 4, requires_grad=True)
    unit(A, dim=-2).sum().backward()
    assert A.grad is not None
    assert A.grad.isfinite().all()


def test_off_diagonal_keeps_what_is_not_on_the_diagonal(rng):
    C = torch.randn(2, 3, 3, generator=rng, dtype=torch.float64)
    assert torch.equal(off_diagonal(C), C * (1 - torch.eye(3, dtype=torch.float64)))
