"""Balanced layers of any depth: what they multiply to, that they stay so, and their closed form against the integrated flow."""

import math
from itertools import accumulate, pairwise, repeat

import pytest
import torch
from scipy.integrate import solve_ivp

from fullrank.dynamics.infonce import driven_vector_field, imbalances, train_infonce
from fullrank.dynamics.infonce_alignment import aligned_singular_values, balanced_layers, balanced_singular_values
from fullrank.errors import UserError


def randn(rng, *shape):
    return torch.randn(*shape, generator=rng, dtype=torch.float64)


def vector(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)


def product(layers):
    *_, W = accumulate(layers, lambda lower, upper: upper @ lower)
    return W


@pytest.mark.parametrize("shape", [(4, 4), (3, 5), (6, 2)])
@pytest.mark.parametrize("depth", [1, 2, 3, 5])
def test_balanced_layers_multiply_to_the_product_and_have_no_imbalance(rng, shape, depth):
    W = randn(rng, *shape)
    layers = balanced_layers(W, depth)
    assert len(layers) == depth
    torch.testing.assert_close(product(layers), W)
    assert all(D.abs().max() < 1e-13 for D in imbalances(layers))


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_closed_form_is_the_integrated_flow_of_the_layers_themselves(rng, depth):
    V, a, s, t = torch.linalg.qr(randn(rng, 3, 3)).Q, vector(0.4, 0.1, -0.5), vector(0.9, 0.5, 0.7), vector(0.0, 0.2, 0.4)
    start = torch.stack(balanced_layers(s[:, None] * V.mT, depth))

    def velocity(_, y):
        return torch.stack(driven_vector_field(list(torch.from_numpy(y).view(start.shape)), V * a @ V.mT)).flatten().numpy()

    path = solve_ivp(velocity, (0, 0.4), start.flatten().numpy(), method="DOP853", t_eval=t.numpy(), rtol=1e-12, atol=1e-13).y.T
    products = torch.stack([product(weights.view(start.shape)) for weights in torch.from_numpy(path.copy())])
    expected = balanced_singular_values(s, a, t, depth=depth)
    torch.testing.assert_close(torch.linalg.svdvals(products), expected.sort(descending=True).values, rtol=1e-8, atol=0)


def test_two_layers_are_the_aligned_pair_without_difference():
    s, a, t = vector(0.9, 0.5), vector(0.8, -1.0), vector(0.0, 0.3, 0.7)
    one, other = aligned_singular_values(s.sqrt(), s.sqrt(), a, t)
    torch.testing.assert_close(balanced_singular_values(s, a, t, depth=2), one * other, rtol=1e-13, atol=0)


@pytest.mark.parametrize("depth", [2, 3, 4])
def test_growing_modes_are_infinite_from_their_pole_on_and_others_go_to_zero(depth):
    s = vector(0.9, 0.5)
    pole = (s ** (2 / depth - 2) / (2 * depth - 2))[0].item()
    before, after = balanced_singular_values(s, vector(1.0, -1.0), vector(pole * (1 - 1e-9), pole * (1 + 1e-9)), depth=depth)
    assert before[0].isfinite()
    assert before[0] > 1e4
    assert after[0] == math.inf
    assert balanced_singular_values(s, -torch.ones(2, dtype=torch.float64), vector(1e9), depth=depth).max() < 1e-4


def test_deeper_networks_drive_two_modes_of_equal_rate_further_apart():
    """Two modes of one and the same rate, each network at the time at which its first has grown tenfold."""
    s, a = vector(0.2, 0.1), torch.ones(2, dtype=torch.float64)
    ratios = []
    for depth in (1, 2, 3, 4):
        exponent = 2 - 2 / depth
        time = math.log(10) if depth == 1 else (0.2**-exponent - 2.0**-exponent) / (2 * depth - 2)
        first, second = balanced_singular_values(s, a, torch.tensor(time, dtype=torch.float64), depth=depth)
        assert first.item() == pytest.approx(2)
        ratios.append((first / second).item())
    assert ratios[0] == pytest.approx(2)
    assert all(deeper > 1.05 * shallower for shallower, deeper in pairwise(ratios))


def test_balanced_layers_stay_balanced_to_first_order_in_the_learning_rate(rng):
    x = randn(rng, 8, 5)
    pairs, start = torch.stack([x, x + 0.3 * randn(rng, 8, 5)]), balanced_layers(randn(rng, 4, 5) / 2, 3)

    def drift(steps):
        end = train_infonce(start, repeat(pairs), learning_rate=0.1 / steps, steps=[steps])
        return max(D.norm() for D in imbalances([W[0] for W in end]))

    assert math.log2(drift(100) / drift(200)) == pytest.approx(1, abs=0.05)


def test_a_depth_of_no_layers_is_refused():
    with pytest.raises(UserError, match="a depth of 0 has no layers"):
        balanced_layers(torch.eye(2), 0)
    with pytest.raises(UserError, match="a depth of 0 has no layers"):
        balanced_singular_values(vector(1.0), vector(1.0), vector(1.0), depth=0)
