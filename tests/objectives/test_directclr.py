import math

import pytest
import torch
from loops import dot, unit_row

from fullrank.errors import UserError


def loops(R, d0, temperature):
    z1, z2 = ([unit_row(row[:d0]) for row in view] for view in R.tolist())
    N, total = len(z1), 0.0
    for anchors, others in ((z1, z2), (z2, z1)):
        for i in range(N):
            e = [math.exp(dot(anchors[i], others[j]) / temperature) for j in range(N)]
            total -= math.log(e[i] / sum(e)) / (2 * N)
    return total


@pytest.mark.parametrize("d0", [1, 3, 5])
def test_equals_the_cross_entropy_of_both_directions(loss, d0, randn):
    R = randn(2, 6, 5)
    assert loss(R, d0=d0, temperature=0.3).item() == pytest.approx(loops(R, d0, 0.3), abs=1e-10)


def test_dimensions_beyond_the_subvector_have_no_effect_and_no_gradient(loss, randn):
    R = randn(2, 6, 5)
    other = torch.cat([R[..., :3], randn(2, 6, 4)], dim=-1).requires_grad_()
    value = loss(other, d0=3)
    assert value.item() == loss(R, d0=3).item()
    (gradient,) = torch.autograd.grad(value, other)
    assert (gradient[..., 3:] == 0).all()
    assert (gradient[..., :3] != 0).all()


def test_minimum_is_at_a_simplex_with_equal_views(is_least, simplex):
    value = -1 / 0.5 + math.log(math.exp(1 / 0.5) + 4 * math.exp(-1 / 4 / 0.5))
    is_least(simplex, value, d0=5, temperature=0.5)


@pytest.mark.parametrize("d0", [0, 6])
def test_an_invalid_d0_is_an_error(loss, d0, randn):
    with pytest.raises(UserError, match=rf"d0 is {d0}, but representations have 5 dimensions; choose 1 to 5"):
        loss(randn(2, 6, 5), d0=d0)
