import math

import pytest
import torch

from fullrank.errors import UserError
from fullrank.objectives import directclr
from fullrank_papers.theory.objectives import infonce_squared


def normalized(row):
    norm = math.sqrt(sum(x * x for x in row))
    return [x / norm for x in row]


def loops(R, d0):
    z, positive = ([normalized(row[:d0]) for row in view] for view in R.tolist())
    N, total = len(z), 0.0
    for i in range(N):
        own = math.exp(sum(a * b for a, b in zip(z[i], positive[i], strict=True)))
        others = [math.exp(sum(a * b for a, b in zip(z[i], z[j], strict=True))) for j in range(N) if j != i]
        total -= math.log(own / (own + sum(others)))
    return total


@pytest.mark.parametrize("d0", [1, 3, 5])
def test_equals_the_sum_over_anchors(loss, d0, randn):
    R = randn(2, 6, 5)
    assert loss(R, d0=d0).item() == pytest.approx(loops(R, d0), abs=1e-10)


def test_equals_infonce_squared_on_unit_rows(loss, randn):
    R = randn(2, 6, 5)
    Z = torch.nn.functional.normalize(R[..., :3], dim=-1)
    assert loss(R, d0=3).item() == pytest.approx(sum(infonce_squared(Z).values()).item(), abs=1e-10)


def test_minimum_is_at_a_simplex_with_equal_views(loss, randn):
    N = 5
    best = (torch.eye(N, dtype=torch.float64) - 1 / N).expand(2, N, N)
    value = N * (-1 + math.log(math.e + (N - 1) * math.exp(-1 / (N - 1))))
    assert loss(best, d0=N).item() == pytest.approx(value, abs=1e-12)
    for _ in range(20):
        assert loss(best + 0.1 * randn(2, N, N), d0=N) > value


def test_unlike_the_code_anchors_and_positives_are_not_interchangeable(loss, randn):
    R = randn(2, 6, 4)
    assert abs(loss(R.flip(0), d0=4) - loss(R, d0=4)) > 1e-3
    assert sum(directclr(R.flip(0), d0=4).values()).item() == pytest.approx(
        sum(directclr(R, d0=4).values()).item(), abs=1e-12
    )


def test_dimensions_beyond_the_subvector_get_no_gradient(loss, randn):
    R = randn(2, 6, 5).requires_grad_()
    (gradient,) = torch.autograd.grad(loss(R, d0=3), R)
    assert (gradient[..., 3:] == 0).all()
    assert (gradient[..., :3] != 0).all()


def test_is_invariant_to_length_and_joint_rotation_but_not_shift(loss, randn, rotation):
    R = randn(2, 6, 4)
    value = loss(R, d0=4).item()
    assert loss(R * randn(2, 6, 1).exp(), d0=4).item() == pytest.approx(value, abs=1e-12)
    assert loss(R @ rotation, d0=4).item() == pytest.approx(value, abs=1e-12)
    assert abs(loss(R + 1, d0=4) - value) > 1e-2


def test_d0_larger_than_the_representation_is_an_error(loss, randn):
    with pytest.raises(UserError, match="d0 is 360, but representations have 5 dimensions"):
        loss(randn(2, 6, 5))
