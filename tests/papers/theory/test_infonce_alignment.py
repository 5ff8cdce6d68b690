"""Singular values and vectors of layers in training, compared with finite differences, integration, and the printed
lemmas."""

from itertools import accumulate

import pytest
import torch
from dynamics_helpers import integrate, orthogonal, randn, relative_error, vector, view_pairs
from hypothesis import given, settings
from hypothesis import strategies as st

from fullrank_papers.theory import infonce_alignment
from fullrank_papers.theory.flow import gradient_flow
from fullrank_papers.theory.infonce import driven_vector_field, imbalances
from fullrank_papers.theory.objectives import infonce_squared


def test_the_aligned_vector_field_is_that_of_the_layers(rng):
    U, Q, V = (orthogonal(rng, 3) for _ in range(3))
    s1, s2, a = vector(2.0, 1.5, 0.5), vector(3.0, 1.0, 0.7), vector(0.5, -1.0, 2.0)
    W1, W2, X = Q * s1 @ V.mT, U * s2 @ Q.mT, V * a @ V.mT
    flow = driven_vector_field([W1, W2], X)
    actual = [(Q.mT @ flow[0] @ V).diagonal(), (U.mT @ flow[1] @ Q).diagonal()]  # σ̇_k = u_kᵀẆv_k
    assert relative_error(actual, infonce_alignment.aligned_vector_field(s1, s2, a)) < 1e-13


def product(layers):
    *_, W = accumulate(layers, lambda lower, upper: upper @ lower)
    return W


@pytest.mark.parametrize("shape", [(4, 4), (3, 5), (6, 2)])
@pytest.mark.parametrize("depth", [1, 2, 3, 5])
def test_balanced_layers_multiply_to_the_product_and_have_no_imbalance(rng, shape, depth):
    W = randn(rng, *shape)
    layers = infonce_alignment.balanced_layers(W, depth)
    assert len(layers) == depth
    torch.testing.assert_close(product(layers), W)
    assert all(D.abs().max() < 1e-13 for D in imbalances(layers))


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_closed_form_is_the_integrated_flow_of_the_layers_themselves(rng, depth):
    V, a, s, t = orthogonal(rng, 3), vector(0.4, 0.1, -0.5), vector(0.9, 0.5, 0.7), vector(0.0, 0.2, 0.4)
    start = torch.stack(infonce_alignment.balanced_layers(s[:, None] * V.mT, depth))

    path = integrate(lambda W: torch.stack(driven_vector_field(list(W), V * a @ V.mT)), start, t)
    products = torch.stack([product(weights) for weights in path])
    expected = infonce_alignment.balanced_singular_values(s, a, t, depth=depth)
    torch.testing.assert_close(torch.linalg.svdvals(products), expected.sort(descending=True).values, rtol=1e-8, atol=0)


def trained(weights, x, t):
    """The gradient flow of the loss itself, at time t."""
    path = gradient_flow(
        lambda weights: sum(infonce_squared(x @ (weights[1] @ weights[0]).mT).values()), tuple(weights), vector(t)
    )
    return [W[0] for W in path]


@given(st.integers(0, 10**6), st.floats(0.01, 2.0), st.integers(2, 6))
@settings(max_examples=30, deadline=None)
def test_alignment_keeps_its_bounds_at_any_imbalance(seed, noise, m):
    rng = torch.Generator().manual_seed(seed)
    Q, S = orthogonal(rng, m), torch.diag(randn(rng, m).abs())
    W1, W2 = Q @ S @ orthogonal(rng, m) + noise * randn(rng, m, m) / 9, orthogonal(rng, m) @ S @ Q.mT
    s1, s2, (D,) = torch.linalg.svdvals(W1), torch.linalg.svdvals(W2), imbalances([W1, W2])
    A = infonce_alignment.layer_alignment(W1, W2).abs()
    assert (A.diagonal() >= infonce_alignment.alignment_lower_bound(s1, s2, D) - 1e-9).all()


def test_balanced_layers_are_aligned_and_stay_so_under_the_loss(rng):
    U, Q, V = (orthogonal(rng, 4) for _ in range(3))
    S = torch.diag(vector(0.4, 0.3, 0.2, 0.1))
    start = [Q @ S @ V.mT, U @ S @ Q.mT]
    assert imbalances(start)[0].abs().max() < 1e-15
    weights = trained(start, view_pairs(rng, m=4), 1.0)
    s1, s2 = map(torch.linalg.svdvals, weights)
    torch.testing.assert_close(s1, s2)
    assert s1[0] > 0.6
    assert relative_error(infonce_alignment.layer_alignment(*weights).abs(), torch.eye(4)) < 1e-6
    assert infonce_alignment.alignment_lower_bound(s1, s2, imbalances(start)[0]).min() > 1 - 1e-12


def test_equal_singular_values_leave_blocks_with_cosines_of_one_for_any_vectors(rng):
    Q, S = orthogonal(rng, 5), vector(2, 2, 2, 1, 0.5)
    turned = Q @ torch.block_diag(orthogonal(rng, 3), torch.eye(2, dtype=torch.float64))
    A = turned.mT @ Q
    assert (A[:3, :3].abs() - torch.eye(3)).norm() > 0.5
    groups = infonce_alignment.degenerate_groups(S, ratio=1.01)
    assert groups == [3, 1, 1]
    for cosines in infonce_alignment.subspace_cosines(A, groups):
        torch.testing.assert_close(cosines, torch.ones_like(cosines))


def test_cosines_of_groups_are_those_of_the_principal_angles(rng):
    U, V = orthogonal(rng, 6), orthogonal(rng, 6)
    A, sizes, start = V.mT @ U, [2, 3, 1], 0
    for size, cosines in zip(sizes, infonce_alignment.subspace_cosines(A, sizes), strict=True):
        u, v = U[:, start : start + size], V[:, start : start + size]
        projected = torch.linalg.eigvalsh(u.mT @ v @ v.mT @ u).flip(
            0
        )  # squared cosines: how much of v's span stays of u's
        torch.testing.assert_close(cosines.square(), projected)
        start += size
