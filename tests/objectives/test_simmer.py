import math

import pytest
from loops import unit_row


def distance(x, y):
    return math.sqrt(sum((a - b) ** 2 for a, b in zip(x, y, strict=True)))


def loops(Z, invariance, entropy):
    V, N, _ = Z.shape
    z = [[unit_row(row) for row in view] for view in Z.tolist()]
    pairs = [(v, w) for v in range(V) for w in range(v + 1, V)]
    total = invariance * sum(distance(z[v][i], z[w][i]) ** 2 for v, w in pairs for i in range(N)) / (len(pairs) * N)
    for view in z:
        for i in range(N):
            total -= entropy * math.log(min(distance(view[i], view[j]) for j in range(N) if j != i)) / (V * N)
    return total


@pytest.mark.parametrize("V", [2, 4])
def test_equals_distances_and_logarithms_of_the_nearest_neighbour(loss, V, randn):
    Z = randn(V, 6, 4)
    assert loss(Z, invariance=1.5, entropy=0.7).item() == pytest.approx(loops(Z, 1.5, 0.7), abs=1e-10)


def test_minimum_is_at_a_simplex_with_equal_views(is_least, simplex):
    is_least(simplex, -math.log(2 * 5 / 4) / 2)  # the distance between corners
