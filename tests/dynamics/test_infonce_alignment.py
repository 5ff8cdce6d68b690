"""Alignment of two layers: its velocity against finite differences and Lemma 6, its bounds along the flow, and equal singular values."""

from itertools import repeat

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fullrank.dynamics.flow import gradient_flow
from fullrank.dynamics.infonce import driving_matrix, imbalances, linear_vector_field, softmax_weights, train_infonce
from fullrank.dynamics.infonce_alignment import (
    Svd,
    alignment_lower_bound,
    alignment_upper_bound,
    alignment_velocity,
    degenerate_groups,
    layer_alignment,
    subspace_cosines,
    svd,
)
from fullrank.errors import UserError
from fullrank.objectives import infonce_squared


def randn(rng, *shape):
    return torch.randn(*shape, generator=rng, dtype=torch.float64)


def vector(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)


def rotation(rng, m):
    return torch.linalg.qr(randn(rng, m, m)).Q


def pairs(rng, n=8, m=5):
    x = randn(rng, n, m)
    return torch.stack([x, x + 0.5 * randn(rng, n, m)])


def trained(weights, x, t):
    """The gradient flow of the loss itself, at time t."""
    path = gradient_flow(lambda weights: sum(infonce_squared(x @ (weights[1] @ weights[0]).mT).values()), tuple(weights), vector(t))
    return [W[0] for W in path]


def distance(actual, expected):
    return ((actual - expected).norm() / expected.norm()).item()


def with_signs_of(factors, moved):
    """The factors of a nearby matrix with the signs of `factors`."""
    signs = (factors.U * moved.U).sum(0).sign()
    return Svd(moved.U * signs, moved.S, moved.V * signs)


def printed_h(S):
    """Eq. 15 as printed, 1/(σ_k² − σ_k′²)."""
    squares = S.square()
    return (1 / (squares[:, None] - squares[None, :])).fill_diagonal_(0)


def lemma_6(H1, H2, A, F):
    return -A @ (H1 * (A.mT @ F + F.mT @ A)) + (H2 * (A @ F.mT + F @ A.mT)) @ A


def test_alignment_moves_as_lemma_6_says_with_h_of_opposite_sign(rng):
    W1, W2, x = randn(rng, 4, 5) / 2, randn(rng, 6, 4) / 2, pairs(rng)
    first, second = svd(W1), svd(W2)
    X = driving_matrix(x, softmax_weights(x @ (W2 @ W1).mT))
    A, H1, H2 = layer_alignment(first, second), printed_h(first.S), printed_h(second.S)
    F = torch.diag(second.S) @ second.U.mT @ (-W2 @ W1 @ X) @ first.V @ torch.diag(first.S)
    velocity = alignment_velocity(first, second, linear_vector_field([W1, W2], x))
    assert distance(velocity, lemma_6(-H1, -H2, A, F)) < 1e-11
    assert distance(lemma_6(H1, H2, A, F), velocity) == pytest.approx(2, abs=1e-9)


def test_alignment_velocity_is_the_derivative_along_the_flow_of_layers_of_any_width(rng):
    W1, W2, x, step = randn(rng, 7, 5) / 2, randn(rng, 6, 7) / 2, pairs(rng), 1e-5
    first, second, velocity = svd(W1), svd(W2), linear_vector_field([W1, W2], x)
    ahead, behind = (
        layer_alignment(with_signs_of(first, svd(W1 + h * velocity[0])), with_signs_of(second, svd(W2 + h * velocity[1])))
        for h in (step, -step)
    )
    assert distance(alignment_velocity(first, second, velocity), (ahead - behind) / (2 * step)) < 1e-6


@pytest.mark.parametrize("width", [4, 7])
def test_singular_vectors_part_as_the_identity_of_the_imbalance_says(rng, width):
    W1, W2 = randn(rng, width, 5), randn(rng, 3, width)
    first, second, (D,) = svd(W1), svd(W2), imbalances([W1, W2])
    for j in range(3):
        for k in range(min(width, 5)):
            parted = (first.S[k] ** 2 - second.S[j] ** 2) * layer_alignment(first, second)[j, k]
            assert parted.item() == pytest.approx((second.V[:, j] @ D @ first.U[:, k]).item(), abs=1e-12)


@given(st.integers(0, 10**6), st.floats(0.01, 2.0), st.integers(2, 6))
@settings(max_examples=30, deadline=None)
def test_alignment_keeps_its_bounds_however_far_the_layers_are_from_balance(seed, noise, m):
    rng = torch.Generator().manual_seed(seed)
    Q, S = rotation(rng, m), torch.diag(randn(rng, m).abs())
    W1, W2 = Q @ S @ rotation(rng, m) + noise * randn(rng, m, m) / 9, rotation(rng, m) @ S @ Q.mT
    first, second, (D,) = svd(W1), svd(W2), imbalances([W1, W2])
    A = layer_alignment(first, second).abs()
    assert (alignment_upper_bound(first.S, second.S, D) + 1e-9 >= A).all()
    assert (A.diagonal() >= alignment_lower_bound(first.S, second.S, D) - 1e-9).all()


def test_floor_rises_with_the_modes_that_grow_and_stays_at_zero_for_the_rest(rng):
    decay, x = (-0.7 * torch.arange(5.0, dtype=torch.float64)).exp(), pairs(rng)
    start = [rotation(rng, 5) * decay @ rotation(rng, 5).mT for _ in range(2)]
    floors, (D,) = [], imbalances(start)  # conserved
    for W1, W2 in zip(*train_infonce(start, repeat(x), learning_rate=2e-3, steps=[0, 300, 3000]), strict=True):
        first, second = svd(W1), svd(W2)
        floors.append(alignment_lower_bound(first.S, second.S, D))
        assert (layer_alignment(first, second).diagonal().abs() >= floors[-1] - 0.01).all()  # steps of this size move D by less
    assert floors[0][0] < floors[1][0] < floors[2][0]
    assert floors[2][0] > 0.7
    assert floors[2][-1] == 0


def test_balanced_layers_are_aligned_and_stay_so_under_the_loss(rng):
    U, Q, V = (rotation(rng, 4) for _ in range(3))
    S = torch.diag(vector(0.4, 0.3, 0.2, 0.1))
    start = [Q @ S @ V.mT, U @ S @ Q.mT]
    assert imbalances(start)[0].abs().max() < 1e-15
    first, second = map(svd, trained(start, pairs(rng, m=4), 1.0))
    torch.testing.assert_close(first.S, second.S)
    assert first.S[0] > 0.6
    assert distance(layer_alignment(first, second).abs(), torch.eye(4)) < 1e-6
    assert alignment_lower_bound(first.S, second.S, imbalances(start)[0]).min() > 1 - 1e-12


def test_floor_of_two_modes_of_one_singular_value_is_zero_even_in_balance():
    assert alignment_lower_bound(vector(1, 1, 0.5), vector(1, 1, 0.5), torch.zeros(3, 3, dtype=torch.float64)).tolist() == [0, 0, 1]


def test_equal_singular_values_leave_blocks_whose_cosines_are_one_whatever_the_vectors(rng):
    Q, S = rotation(rng, 5), vector(2, 2, 2, 1, 0.5)
    turned = Q @ torch.block_diag(rotation(rng, 3), torch.eye(2, dtype=torch.float64))
    A = layer_alignment(Svd(Q, S, Q), Svd(Q, S, turned))
    assert (A[:3, :3].abs() - torch.eye(3)).norm() > 0.5
    groups = degenerate_groups(S, ratio=1.01)
    assert groups == [3, 1, 1]
    for cosines in subspace_cosines(A, groups):
        torch.testing.assert_close(cosines, torch.ones_like(cosines))


def test_cosines_of_groups_are_those_of_the_principal_angles(rng):
    U, V = rotation(rng, 6), rotation(rng, 6)
    A, sizes, start = V.mT @ U, [2, 3, 1], 0
    for size, cosines in zip(sizes, subspace_cosines(A, sizes), strict=True):
        u, v = U[:, start : start + size], V[:, start : start + size]
        projected = torch.linalg.eigvalsh(u.mT @ v @ v.mT @ u).flip(0)  # squared cosines: how much of v's span stays of u's
        torch.testing.assert_close(cosines.square(), projected)
        start += size


def test_groups_end_where_neighbours_differ_by_more_than_the_ratio():
    S = vector(1.0, 0.95, 0.5, 0.49, 0.0, 0.0)
    assert degenerate_groups(S, ratio=1.1) == [2, 2, 2]
    assert degenerate_groups(S, ratio=1.03) == [1, 1, 2, 2]
    assert degenerate_groups(S[:1], ratio=1.1) == [1]


def test_groups_that_cannot_be_are_refused():
    with pytest.raises(UserError, match="ratio is 0"):
        degenerate_groups(vector(1.0, 0.5), ratio=0.9)
    with pytest.raises(UserError, match=r"groups of \[2, 2\] make 4, but A has 3 rows"):
        subspace_cosines(torch.eye(3), [2, 2])
