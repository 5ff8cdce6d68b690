import math

import pytest
from loops import cosine


def loops(Z, temperature):
    samples = [(i, view[i]) for view in Z.tolist() for i in range(len(view))]
    total = 0.0
    for a, (i, x) in enumerate(samples):
        others = [(j, math.exp(cosine(x, y) / temperature)) for b, (j, y) in enumerate(samples) if b != a]
        denominator = sum(e for _, e in others)
        positives = [-math.log(e / denominator) for j, e in others if j == i]
        total += sum(positives) / len(positives)
    return total / len(samples)


@pytest.mark.parametrize("V", [2, 3, 5])
def test_equals_the_mean_over_anchors_and_positives(loss, V, randn):
    Z = randn(V, 5, 4)
    assert loss(Z, temperature=0.3).item() == pytest.approx(loops(Z, 0.3), abs=1e-10)


@pytest.mark.parametrize("V", [2, 3])
def test_minimum_is_at_a_simplex_with_equal_views(is_least, V, simplex):
    same, other = math.exp(1 / 0.5), math.exp(-1 / 4 / 0.5)
    value = -1 / 0.5 + math.log((V - 1) * same + V * 4 * other)
    is_least(simplex[:1].expand(V, 5, 5), value, critical=True, temperature=0.5)
