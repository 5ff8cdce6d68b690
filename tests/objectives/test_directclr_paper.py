import math

import pytest
from loops import dot, unit_row


def loops(R, d0):
    z, positive = ([unit_row(row[:d0]) for row in view] for view in R.tolist())
    N, total = len(z), 0.0
    for i in range(N):
        own = math.exp(dot(z[i], positive[i]))
        others = [math.exp(dot(z[i], z[j])) for j in range(N) if j != i]
        total -= math.log(own / (own + sum(others)))
    return total


@pytest.mark.parametrize("d0", [1, 3, 5])
def test_equals_the_sum_over_anchors(loss, d0, randn):
    R = randn(2, 6, 5)
    assert loss(R, d0=d0).item() == pytest.approx(loops(R, d0), abs=1e-10)


def test_minimum_is_at_a_simplex_with_equal_views(is_least, simplex):
    is_least(simplex, 5 * (-1 + math.log(math.e + 4 * math.exp(-1 / 4))), d0=5)
