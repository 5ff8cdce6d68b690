"""Propositions 3.1 to 3.3 of the FroSSL paper, in the form in which they hold, with counter-examples to the form in which they are printed.

L_nc = Σ_v ‖off-diagonal of Z_vᵀZ_v‖_F² is dimension-contrastive, L_c = Σ_v ‖off-diagonal of Z_vZ_vᵀ‖_F² sample-contrastive.
"""

import math

import pytest
import torch

from fullrank.objectives import barlow_twins, frossl
from fullrank.objectives.algebra import off_diagonal, unit


def randn(rng, *shape):
    return torch.randn(*shape, generator=rng, dtype=torch.float64)


def loss(Z, **numbers):
    return sum(frossl(Z, **numbers).values())


def noncontrastive(Z):
    return off_diagonal(Z.mT @ Z).square().sum()


def contrastive(Z):
    return off_diagonal(Z @ Z.mT).square().sum()


def fourth_powers(Z, *, of):
    return Z.square().sum({"columns": -2, "rows": -1}[of]).square().sum()


def minimise(f, Z):
    Z = Z.clone().requires_grad_()
    optimizer = torch.optim.LBFGS([Z], max_iter=300, tolerance_grad=1e-12, tolerance_change=0, line_search_fn="strong_wolfe")

    def closure():
        optimizer.zero_grad()
        value = f(Z)
        value.backward()
        return value

    optimizer.step(closure)
    return Z.detach()


def centred_orthonormal(rng, N, D):
    """D orthonormal columns that sum to zero."""
    return torch.linalg.qr(torch.cat([torch.ones(N, 1, dtype=torch.float64), randn(rng, N, D)], 1)).Q[:, 1:]


# Proposition 3.1: dimension-contrastive, with columns of unit norm.


def test_without_logs_columns_of_unit_norm_give_the_off_diagonal_covariances_up_to_D(rng):
    Z = randn(rng, 1, 9, 4).expand(2, 9, 4)
    redundancy = barlow_twins(Z, redundancy=1.0)["redundancy"]
    assert frossl(Z, log=False)["variance"].item() == pytest.approx(2 * (redundancy.item() + 4), abs=1e-12)


@pytest.mark.parametrize("normalize", ["columns", "matrix", "rows"])
def test_free_embeddings_have_the_same_minimum_with_and_without_logs(normalize, rng):
    """All terms are least at once, where views agree and columns are equal and uncorrelated, so the logarithms cannot matter."""
    least = {True: 2 * math.log(9 * 9 / 3 if normalize == "rows" else 3), False: 2 * (9 * 9 / 3 if normalize == "rows" else 3)}
    for log in (True, False):
        Z = minimise(lambda Z, log=log: loss(Z, normalize=normalize, log=log), randn(rng, 2, 9, 3))
        assert loss(Z, normalize=normalize).item() == pytest.approx(least[True], abs=1e-7)
        assert loss(Z, normalize=normalize, log=False).item() == pytest.approx(least[False], rel=1e-7)


def test_under_a_constraint_the_minima_differ():
    """A linear encoder, whose second feature turns in a plane: what is best with logs is far from best without, and the other way round."""
    X = torch.tensor([[[2.0, -1], [2, -1], [-2, 2], [-2, 0]], [[1, 0], [-1, -2], [0, -1], [0, 3]]], dtype=torch.float64)
    angles = torch.linspace(0.05, math.pi - 0.05, 200, dtype=torch.float64).tolist()
    Z = [X @ torch.tensor([[1, math.cos(angle)], [0, math.sin(angle)]], dtype=torch.float64) for angle in angles]
    with_logs = torch.tensor([loss(z) for z in Z])
    without = torch.tensor([loss(z, log=False) for z in Z])
    assert abs(angles[with_logs.argmin()] - angles[without.argmin()]) > 1
    assert without[with_logs.argmin()] > without.min() + 0.5
    assert with_logs[without.argmin()] > with_logs.min() + 0.05


def test_with_more_dimensions_than_centring_leaves_no_covariance_is_diagonal(rng):
    N, D = 4, 16
    least = D**2 * (1 / (N - 1) - 1 / D)  # S² (1/(N−1) − 1/D), S = D
    hadamard = torch.tensor([[(-1.0) ** (i & j).bit_count() for j in range(D)] for i in range(N - 1)], dtype=torch.float64)
    best = unit(centred_orthonormal(rng, N, N - 1) @ hadamard, dim=-2)
    assert noncontrastive(best).item() == pytest.approx(least, abs=1e-10)
    for _ in range(20):
        Z = randn(rng, N, D)
        assert noncontrastive(unit(Z - Z.mean(0), dim=-2)) > least


# Proposition 3.2: sample-contrastive, with rows of unit norm.


def test_without_logs_rows_of_unit_norm_give_the_off_diagonal_gram_up_to_N(rng):
    Z = randn(rng, 2, 9, 4)
    U = unit(Z - Z.mean(1, keepdim=True), dim=-1)
    assert frossl(Z, log=False, normalize="rows")["variance"].item() == pytest.approx(contrastive(U).item() + 2 * 9, abs=1e-12)


# Proposition 3.3: both at once.


@pytest.mark.parametrize("shape", [(9, 4), (4, 9)])
def test_both_losses_are_the_frobenius_norm_less_fourth_powers_of_norms(shape, rng):
    Z = randn(rng, *shape) + 0.5
    frobenius = (Z.T @ Z).square().sum()
    assert (noncontrastive(Z) + fourth_powers(Z, of="columns")).item() == pytest.approx(frobenius.item(), rel=1e-12)
    assert (contrastive(Z) + fourth_powers(Z, of="rows")).item() == pytest.approx(frobenius.item(), rel=1e-12)


def sinkhorn(A):
    """Non-negative (N, D), scaled to equal row sums D and equal column sums N."""
    for _ in range(1000):
        A = A / A.mean(0)
        A = A / A.mean(1, keepdim=True)
    return A


@pytest.mark.parametrize("shape", [(9, 4), (4, 9), (5, 5)])
def test_where_squares_have_equal_row_and_equal_column_sums_the_two_differ_by_a_constant(shape, rng):
    N, D = shape
    for _ in range(5):
        A = randn(rng, N, D)
        Z = A.sign() * sinkhorn(A.square()).sqrt()
        assert (noncontrastive(Z) - contrastive(Z)).item() == pytest.approx(N * D**2 - D * N**2, abs=1e-8)


def test_a_doubly_stochastic_embedding_is_not_what_makes_them_equal(rng):
    """As printed: entries that sum to one along rows and columns. Their squares need not."""
    gaps = []
    for _ in range(5):
        Z = sinkhorn(randn(rng, 5, 5).abs()) / 5
        assert (Z.sum(0) - 1).abs().max() < 1e-10
        assert (Z.sum(1) - 1).abs().max() < 1e-10
        gaps.append((noncontrastive(Z) - contrastive(Z)).item())
    assert max(gaps) - min(gaps) > 1e-3
