import pytest
import torch

from fullrank.objectives.algebra import centered, logdet, squared_distances, unit


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("N", [3, 48, 1000, 5001])
def test_centered_sets_constant_columns_to_zero(N, dtype):
    constants = torch.tensor([0.1, -0.7, 1e6 / 3, 1e-6 / 3], dtype=dtype)
    assert (centered(constants.expand(N, 4)) == 0).all()


def test_centered_keeps_small_variation_about_a_large_mean():
    wave = torch.linspace(-1, 1, 64)
    A = centered((1000 + 0.1 * wave)[:, None])[:, 0]
    torch.testing.assert_close(A, 0.1 * wave, atol=1e-4, rtol=0)


def test_centered_and_unit_propagate_nan():
    Z = torch.ones(4, 2)
    Z[1, 0] = torch.nan
    assert unit(centered(Z), dim=-2).isnan().any()


def test_squared_distances_equal_loops_and_are_never_negative(rng):
    Z = torch.randn(2, 5, 3, generator=rng, dtype=torch.float64)
    loops = [[[(x - y).square().sum().item() for y in view] for x in view] for view in Z]
    torch.testing.assert_close(squared_distances(Z), torch.tensor(loops, dtype=torch.float64))
    assert (squared_distances(1000 + 1e-4 * Z.float()) >= 0).all()


@pytest.mark.parametrize("D", [4, 64, 512])
@pytest.mark.parametrize("rank", [1, 3])
def test_logdet_of_a_singular_matrix_is_finite_in_float32(D, rank, rng):
    A = torch.randn(D, rank, generator=rng)
    for scale in (0.0, 1e-4, 1.0, 1e4):
        C = (scale * A @ A.T).requires_grad_()
        value = logdet(C, epsilon=1e-6)
        (gradient,) = torch.autograd.grad(value, C)
        assert value.isfinite()
        assert gradient.isfinite().all()
