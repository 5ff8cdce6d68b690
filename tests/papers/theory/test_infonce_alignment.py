"""Singular values and vectors of layers in training, compared with finite differences, integration, and the printed
lemmas."""

import math
from itertools import accumulate, pairwise, repeat

import pytest
import torch
from dynamics_helpers import close, integrate, orthogonal, randn, relative_error, vector, view_pairs
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import solve_ivp

from fullrank.errors import UserError
from fullrank_papers.theory.flow import gradient_flow
from fullrank_papers.theory.infonce import (
    driven_vector_field,
    driving_matrix,
    imbalances,
    linear_vector_field,
    softmax_weights,
    train_infonce,
)
from fullrank_papers.theory.infonce_alignment import (
    Svd,
    aligned_vector_field,
    alignment_lower_bound,
    alignment_upper_bound,
    balanced_layers,
    balanced_singular_values,
    degenerate_groups,
    layer_alignment,
    subspace_cosines,
    svd,
    svd_velocity,
)
from fullrank_papers.theory.objectives import infonce_squared


def with_signs_of(factors, other):
    """The factors of a nearby matrix with the signs of `factors`."""
    signs = (factors.U * other.U).sum(0).sign()
    return Svd(other.U * signs, other.S, other.V * signs)


def printed_h(S):
    """Eq. 15 as printed, 1/(σ_k² − σ_k′²)."""
    squares = S.square()
    return (1 / (squares[:, None] - squares[None, :])).fill_diagonal_(0)


def alignment_velocity(first, second, velocity):
    """Ȧ = V̇₂ᵀU₁ + V₂ᵀU̇₁."""
    first_dot, second_dot = (
        svd_velocity(factors, W_dot) for factors, W_dot in zip((first, second), velocity, strict=True)
    )
    return second_dot.V.mT @ first.U + second.V.mT @ first_dot.U


def finite_difference(W, W_dot, step=1e-5):
    """The velocities of U, S and V by central differences."""
    factors = svd(W)
    ahead, behind = (with_signs_of(factors, svd(W + sign * step * W_dot)) for sign in (1, -1))
    return [(a - b) / (2 * step) for a, b in zip(ahead, behind, strict=True)]


@pytest.mark.parametrize("shape", [(4, 4), (6, 4), (4, 6)])
def test_svd_velocity_is_the_derivative_of_the_factors(rng, shape):
    W, W_dot = randn(rng, *shape), randn(rng, *shape)
    for actual, expected in zip(svd_velocity(svd(W), W_dot), finite_difference(W, W_dot), strict=True):
        assert relative_error(actual, expected) < 1e-7


@pytest.mark.parametrize("shape", [(4, 4), (6, 4), (4, 6)])
def test_svd_velocity_sums_to_the_velocity_of_the_matrix(rng, shape):
    W_dot, factors = randn(rng, *shape), svd(randn(rng, *shape))
    (U, S, V), (U_dot, S_dot, V_dot) = factors, svd_velocity(factors, W_dot)
    assert relative_error([U_dot * S @ V.mT + U * S_dot @ V.mT + U * S @ V_dot.mT], [W_dot]) < 1e-12


def test_printed_h_reverses_the_velocity_of_the_singular_vectors(rng):
    W, W_dot = randn(rng, 4, 4), randn(rng, 4, 4)
    U, S, V = svd(W)
    M = U.mT @ W_dot @ V * S
    printed = U @ (printed_h(S) * (M + M.mT))
    assert relative_error([printed], [svd_velocity(svd(W), W_dot).U]) == pytest.approx(2, abs=1e-9)


def test_coinciding_or_zero_singular_values_are_errors(rng):
    with pytest.raises(UserError, match="two singular values are equal"):
        svd_velocity(svd(torch.eye(3, dtype=torch.float64)), randn(rng, 3, 3))
    with pytest.raises(UserError, match="has a singular value 0"):
        svd_velocity(svd(torch.zeros(3, 1, dtype=torch.float64)), randn(rng, 3, 1))


def test_the_aligned_vector_field_is_that_of_the_layers(rng):
    U, Q, V = (orthogonal(rng, 3) for _ in range(3))
    s1, s2, a = vector(2.0, 1.5, 0.5), vector(3.0, 1.0, 0.7), vector(0.5, -1.0, 2.0)
    W1, W2, X = Q * s1 @ V.mT, U * s2 @ Q.mT, V * a @ V.mT
    flow = driven_vector_field([W1, W2], X)
    actual = [svd_velocity(Svd(Q, s1, V), flow[0]).S, svd_velocity(Svd(U, s2, Q), flow[1]).S]
    assert relative_error(actual, aligned_vector_field(s1, s2, a)) < 1e-13


def test_printed_equation_of_one_singular_value_has_the_wrong_sign_of_c():
    s1, s2, a = vector(2.0), vector(1.0), vector(0.5)
    C = s1**2 - s2**2
    velocity, _ = driven_vector_field([s1[None], s2[None]], a[None])
    assert velocity == s1 * (s1**2 - C) * a
    assert velocity != s1 * (s1**2 + C) * a


@pytest.mark.parametrize(
    ("s1", "s2", "a"), [(0.9, 0.4, -1.5), (0.9, 0.4, 0.7), (0.3, 0.8, -1.5), (0.3, 0.8, 0.7), (0.5, 0.0, 0.7)]
)
def test_closed_form_of_aligned_singular_values_is_the_integrated_flow(s1, s2, a):
    """σ₁² = C/(1 − (1 − C/σ₁(0)²)e^{2aCt}), up to 0.9 of the time t* = ln(σ₁²/σ₂²)/(2aC) at which it diverges."""
    C = s1**2 - s2**2
    t = vector(0.0, 0.5, 0.9) * (math.log(s1**2 / s2**2) / (2 * a * C) if a > 0 and s2 > 0 else 1)
    path = integrate(lambda s: torch.stack(aligned_vector_field(s[0], s[1], vector(a))), vector(s1, s2)[:, None], t)[
        ..., 0
    ]
    close(path[:, 0].square(), C / (1 - (1 - C / s1**2) * (2 * a * C * t).exp()), 1e-8)
    close(path[:, 1].square(), path[:, 0].square() - C, 1e-8)


def test_a_negative_mode_keeps_only_the_difference_of_the_layers():
    s1, s2 = vector(0.9, 0.3, 0.0), vector(0.4, 0.8, 0.2)
    end = integrate(
        lambda s: torch.stack(aligned_vector_field(s[0], s[1], -torch.ones_like(s1))),
        torch.stack([s1, s2]),
        vector(0, 50),
    )[-1]
    close(end.square(), torch.stack([(s1**2 - s2**2).clamp(min=0), (s2**2 - s1**2).clamp(min=0)]), 1e-8)


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
    V, a, s, t = orthogonal(rng, 3), vector(0.4, 0.1, -0.5), vector(0.9, 0.5, 0.7), vector(0.0, 0.2, 0.4)
    start = torch.stack(balanced_layers(s[:, None] * V.mT, depth))

    def velocity(_, y):
        return (
            torch.stack(driven_vector_field(list(torch.from_numpy(y).view(start.shape)), V * a @ V.mT))
            .flatten()
            .numpy()
        )

    path = solve_ivp(
        velocity, (0, 0.4), start.flatten().numpy(), method="DOP853", t_eval=t.numpy(), rtol=1e-12, atol=1e-13
    ).y.T
    products = torch.stack([product(weights.view(start.shape)) for weights in torch.from_numpy(path.copy())])
    expected = balanced_singular_values(s, a, t, depth=depth)
    torch.testing.assert_close(torch.linalg.svdvals(products), expected.sort(descending=True).values, rtol=1e-8, atol=0)


@pytest.mark.parametrize("depth", [2, 3, 4])
def test_growing_modes_are_infinite_from_their_pole_on_and_others_go_to_zero(depth):
    s = vector(0.9, 0.5)
    pole = (s ** (2 / depth - 2) / (2 * depth - 2))[0].item()
    before, after = balanced_singular_values(
        s, vector(1.0, -1.0), vector(pole * (1 - 1e-9), pole * (1 + 1e-9)), depth=depth
    )
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


def trained(weights, x, t):
    """The gradient flow of the loss itself, at time t."""
    path = gradient_flow(
        lambda weights: sum(infonce_squared(x @ (weights[1] @ weights[0]).mT).values()), tuple(weights), vector(t)
    )
    return [W[0] for W in path]


def lemma_6(H1, H2, A, F):
    return -A @ (H1 * (A.mT @ F + F.mT @ A)) + (H2 * (A @ F.mT + F @ A.mT)) @ A


def test_the_velocity_of_the_alignment_is_lemma_6_with_h_of_opposite_sign(rng):
    W1, W2, x = randn(rng, 4, 5) / 2, randn(rng, 6, 4) / 2, view_pairs(rng)
    first, second = svd(W1), svd(W2)
    X = driving_matrix(x, softmax_weights(x @ (W2 @ W1).mT))
    A, H1, H2 = layer_alignment(first, second), printed_h(first.S), printed_h(second.S)
    F = torch.diag(second.S) @ second.U.mT @ (-W2 @ W1 @ X) @ first.V @ torch.diag(first.S)
    velocity = alignment_velocity(first, second, linear_vector_field([W1, W2], x))
    assert relative_error(velocity, lemma_6(-H1, -H2, A, F)) < 1e-11
    assert relative_error(lemma_6(H1, H2, A, F), velocity) == pytest.approx(2, abs=1e-9)


def test_alignment_velocity_is_the_derivative_along_the_flow_of_layers_of_any_width(rng):
    W1, W2, x, step = randn(rng, 7, 5) / 2, randn(rng, 6, 7) / 2, view_pairs(rng), 1e-5
    first, second, velocity = svd(W1), svd(W2), linear_vector_field([W1, W2], x)
    ahead, behind = (
        layer_alignment(
            with_signs_of(first, svd(W1 + h * velocity[0])), with_signs_of(second, svd(W2 + h * velocity[1]))
        )
        for h in (step, -step)
    )
    assert relative_error(alignment_velocity(first, second, velocity), (ahead - behind) / (2 * step)) < 1e-6


@pytest.mark.parametrize("width", [4, 7])
def test_alignment_fulfils_the_identity_of_the_imbalance(rng, width):
    W1, W2 = randn(rng, width, 5), randn(rng, 3, width)
    first, second, (D,) = svd(W1), svd(W2), imbalances([W1, W2])
    for j in range(3):
        for k in range(min(width, 5)):
            parted = (first.S[k] ** 2 - second.S[j] ** 2) * layer_alignment(first, second)[j, k]
            assert parted.item() == pytest.approx((second.V[:, j] @ D @ first.U[:, k]).item(), abs=1e-12)


@given(st.integers(0, 10**6), st.floats(0.01, 2.0), st.integers(2, 6))
@settings(max_examples=30, deadline=None)
def test_alignment_keeps_its_bounds_at_any_imbalance(seed, noise, m):
    rng = torch.Generator().manual_seed(seed)
    Q, S = orthogonal(rng, m), torch.diag(randn(rng, m).abs())
    W1, W2 = Q @ S @ orthogonal(rng, m) + noise * randn(rng, m, m) / 9, orthogonal(rng, m) @ S @ Q.mT
    first, second, (D,) = svd(W1), svd(W2), imbalances([W1, W2])
    A = layer_alignment(first, second).abs()
    assert (alignment_upper_bound(first.S, second.S, D) + 1e-9 >= A).all()
    assert (A.diagonal() >= alignment_lower_bound(first.S, second.S, D) - 1e-9).all()


@pytest.mark.parametrize(("D", "h", "m"), [(3, 6, 5), (6, 6, 3), (2, 7, 2), (9, 4, 6), (1, 5, 5)])
def test_alignment_keeps_its_lower_bound_in_rectangular_layers(D, h, m, rng):
    informative = 0
    for k in range(40):
        W1 = (
            orthogonal(rng, max(h, m))[:h, :m]
            @ (3 * (-0.6 * torch.arange(m, dtype=torch.float64)).exp()).diag()
            @ orthogonal(rng, m)
        )
        U, S, _ = svd(W1)
        width = min(D, len(S))
        W2 = orthogonal(rng, D)[:, :width] * S[:width] @ U[:, :width].mT + 0.02 * (k % 8) * randn(rng, D, h)
        first, second, (imbalance,) = svd(W1), svd(W2), imbalances([W1, W2])
        bound = alignment_lower_bound(first.S, second.S, imbalance)
        A = layer_alignment(first, second).abs().diagonal()
        assert len(bound) == len(A)
        assert (bound <= A + 1e-9).all()
        informative += int((bound > 0.3).sum())
    assert informative or h > D  # with fewer outputs than units, what W₂ leaves out is part of the imbalance


@pytest.mark.usefixtures("no_shape_checks")
def test_an_imbalance_of_other_layers_is_an_error():
    with pytest.raises(UserError, match="D has 2 rows"):
        alignment_lower_bound(vector(3, 2, 1), vector(3, 2, 1), torch.eye(2, dtype=torch.float64))


def test_the_lower_bound_rises_with_the_modes_that_grow_and_stays_at_zero_for_the_rest(rng):
    decay, x = (-0.7 * torch.arange(5.0, dtype=torch.float64)).exp(), view_pairs(rng)
    start = [orthogonal(rng, 5) * decay @ orthogonal(rng, 5).mT for _ in range(2)]
    floors, (D,) = [], imbalances(start)  # conserved
    for W1, W2 in zip(*train_infonce(start, repeat(x), learning_rate=2e-3, steps=[0, 300, 3000]), strict=True):
        first, second = svd(W1), svd(W2)
        floors.append(alignment_lower_bound(first.S, second.S, D))
        assert (
            layer_alignment(first, second).diagonal().abs() >= floors[-1] - 0.01
        ).all()  # steps of this size move D by less
    assert floors[0][0] < floors[1][0] < floors[2][0]
    assert floors[2][0] > 0.7
    assert floors[2][-1] == 0


def test_balanced_layers_are_aligned_and_stay_so_under_the_loss(rng):
    U, Q, V = (orthogonal(rng, 4) for _ in range(3))
    S = torch.diag(vector(0.4, 0.3, 0.2, 0.1))
    start = [Q @ S @ V.mT, U @ S @ Q.mT]
    assert imbalances(start)[0].abs().max() < 1e-15
    first, second = map(svd, trained(start, view_pairs(rng, m=4), 1.0))
    torch.testing.assert_close(first.S, second.S)
    assert first.S[0] > 0.6
    assert relative_error(layer_alignment(first, second).abs(), torch.eye(4)) < 1e-6
    assert alignment_lower_bound(first.S, second.S, imbalances(start)[0]).min() > 1 - 1e-12


def test_the_lower_bound_of_two_modes_of_one_singular_value_is_zero_even_in_balance():
    assert alignment_lower_bound(
        vector(1, 1, 0.5), vector(1, 1, 0.5), torch.zeros(3, 3, dtype=torch.float64)
    ).tolist() == [0, 0, 1]


def test_equal_singular_values_leave_blocks_with_cosines_of_one_for_any_vectors(rng):
    Q, S = orthogonal(rng, 5), vector(2, 2, 2, 1, 0.5)
    turned = Q @ torch.block_diag(orthogonal(rng, 3), torch.eye(2, dtype=torch.float64))
    A = layer_alignment(Svd(Q, S, Q), Svd(Q, S, turned))
    assert (A[:3, :3].abs() - torch.eye(3)).norm() > 0.5
    groups = degenerate_groups(S, ratio=1.01)
    assert groups == [3, 1, 1]
    for cosines in subspace_cosines(A, groups):
        torch.testing.assert_close(cosines, torch.ones_like(cosines))


def test_cosines_of_groups_are_those_of_the_principal_angles(rng):
    U, V = orthogonal(rng, 6), orthogonal(rng, 6)
    A, sizes, start = V.mT @ U, [2, 3, 1], 0
    for size, cosines in zip(sizes, subspace_cosines(A, sizes), strict=True):
        u, v = U[:, start : start + size], V[:, start : start + size]
        projected = torch.linalg.eigvalsh(u.mT @ v @ v.mT @ u).flip(
            0
        )  # squared cosines: how much of v's span stays of u's
        torch.testing.assert_close(cosines.square(), projected)
        start += size


def test_groups_end_where_neighbours_differ_by_more_than_the_ratio():
    S = vector(1.0, 0.95, 0.5, 0.49, 0.0, 0.0)
    assert degenerate_groups(S, ratio=1.1) == [2, 2, 2]
    assert degenerate_groups(S, ratio=1.03) == [1, 1, 2, 2]
    assert degenerate_groups(S[:1], ratio=1.1) == [1]


def test_impossible_depths_ratios_and_groups_are_errors():
    with pytest.raises(UserError, match="depth is 0"):
        balanced_layers(torch.eye(2), 0)
    with pytest.raises(UserError, match="depth is 0"):
        balanced_singular_values(vector(1.0), vector(1.0), vector(1.0), depth=0)
    with pytest.raises(UserError, match="ratio is 0"):
        degenerate_groups(vector(1.0, 0.5), ratio=0.9)
    with pytest.raises(UserError, match="A has 3 rows"):
        subspace_cosines(torch.eye(3), [2, 2])
