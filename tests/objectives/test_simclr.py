import math

import pytest
import torch


def cosine(x, y):
    dot = sum(a * b for a, b in zip(x, y, strict=True))
    return dot / math.sqrt(sum(a * a for a in x) * sum(b * b for b in y))


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
def test_minimum_is_at_a_simplex_with_equal_views(loss, V, randn):
    N, temperature = 5, 0.5
    simplex = torch.eye(N, dtype=torch.float64) - 1 / N  # cosines −1/(N−1)
    best = simplex.expand(V, N, N)
    same, other = math.exp(1 / temperature), math.exp(-1 / (N - 1) / temperature)
    value = -1 / temperature + math.log((V - 1) * same + V * (N - 1) * other)
    assert loss(best, temperature=temperature).item() == pytest.approx(value, abs=1e-12)
    for _ in range(20):
        assert loss(best + 0.1 * randn(V, N, N), temperature=temperature) > value
    moved = best.clone().requires_grad_()
    assert torch.autograd.grad(loss(moved, temperature=temperature), moved)[0].abs().max() < 1e-12
