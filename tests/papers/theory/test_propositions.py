"""Propositions 3.1 to 3.3 of the FroSSL paper in the form in which they hold, with counter-examples to the printed
form.

L_nc = Σ_v ‖off-diagonal of Z_vᵀZ_v‖_F² is dimension-contrastive, L_c = Σ_v ‖off-diagonal of Z_vZ_vᵀ‖_F²
sample-contrastive.
"""

import math

import pytest
import torch

from fullrank.objectives import barlow_twins, frossl
from fullrank.objectives.algebra import off_diagonal, unit


def loss(Z, **hyper):
    return sum(frossl(Z, **hyper).values())


def noncontrastive(Z):
    return off_diagonal(Z.mT @ Z).square().sum()


def contrastive(Z):
    return off_diagonal(Z @ Z.mT).square().sum()


def fourth_powers(Z, *, of):
    return Z.square().sum({"columns": -2, "rows": -1}[of]).square().sum()


def minimise(f, Z):
    Z = Z.clone().requires_grad_()
    optimizer = torch.optim.LBFGS(
        [Z], max_iter=300, tolerance_grad=1e-12, tolerance_change=0, line_search_fn="strong_wolfe"
    )

    def closure():
        optimizer.zero_grad()
        value = f(Z)
        value.backward()
        return value

    optimizer.step(closure)
    return Z.detach()


def centred_orthonormal(randn, N, D):
    """D orthonormal columns that sum to zero."""
    return torch.linalg.qr(torch.cat([torch.ones(N, 1, dtype=torch.float64), randn(N, D)], 1)).Q[:, 1:]


# Proposition 3.1: dimension-contrastive, with columns of unit norm.


def test_without_logs_and_with_unit_columns_it_is_the_sum_of_squared_covariances_plus_D(randn):
    Z = randn(1, 9, 4).expand(2, 9, 4)
    redundancy = barlow_twins(Z, redundancy=1.0)["redundancy"]
    assert frossl(Z, log=False)["variance"].item() == pytest.approx(2 * (redundancy.item() + 4), abs=1e-12)


@pytest.mark.parametrize("normalize", ["columns", "matrix", "rows"])
def test_free_embeddings_have_the_same_minimum_with_and_without_logs(normalize, randn):
    """All terms have their minimum at the same point, so that the logarithms do not change it."""
    least = {
        True: 2 * math.log(9 * 9 / 3 if normalize == "rows" else 3),
        False: 2 * (9 * 9 / 3 if normalize == "rows" else 3),
    }
    for log in (True, False):
        Z = minimise(lambda Z, log=log: loss(Z, normalize=normalize, log=log), randn(2, 9, 3))
        assert loss(Z, normalize=normalize).item() == pytest.approx(least[True], abs=1e-7)
        assert loss(Z, normalize=normalize, log=False).item() == pytest.approx(least[False], rel=1e-7)


def test_under_a_constraint_the_minima_differ():
    """A linear encoder with a second feature that rotates in a plane: the minima with and without logs are far
    apart."""
    X = torch.tensor([[[2.0, -1], [2, -1], [-2, 2], [-2, 0]], [[1, 0], [-1, -2], [0, -1], [0, 3]]], dtype=torch.float64)
    angles = torch.linspace(0.05, math.pi - 0.05, 200, dtype=torch.float64).tolist()
    Z = [X @ torch.tensor([[1, math.cos(angle)], [0, math.sin(angle)]], dtype=torch.float64) for angle in angles]
    with_logs = torch.tensor([loss(z) for z in Z])
    without = torch.tensor([loss(z, log=False) for z in Z])
    assert abs(angles[with_logs.argmin()] - angles[without.argmin()]) > 1
    assert without[with_logs.argmin()] > without.min() + 0.5
    assert with_logs[without.argmin()] > with_logs.min() + 0.05


def test_with_more_dimensions_than_samples_no_covariance_is_diagonal(randn):
    N, D = 4, 16
    least = D**2 * (1 / (N - 1) - 1 / D)  # S² (1/(N−1) − 1/D), S = D
    hadamard = torch.tensor(
        [[(-1.0) ** (i & j).bit_count() for j in range(D)] for i in range(N - 1)], dtype=torch.float64
    )
    best = unit(centred_orthonormal(randn, N, N - 1) @ hadamard, dim=-2)
    assert noncontrastive(best).item() == pytest.approx(least, abs=1e-10)
    for _ in range(20):
        Z = randn(N, D)
        assert noncontrastive(unit(Z - Z.mean(0), dim=-2)) > least


# Proposition 3.2: sample-contrastive, with rows of unit norm.


def test_without_logs_and_with_unit_rows_it_is_the_sum_of_squared_inner_products_plus_N(randn):
    Z = randn(2, 9, 4)
    U = unit(Z - Z.mean(1, keepdim=True), dim=-1)
    assert frossl(Z, log=False, normalize="rows")["variance"].item() == pytest.approx(
        contrastive(U).item() + 2 * 9, abs=1e-12
    )


# Proposition 3.3: both.


@pytest.mark.parametrize("shape", [(9, 4), (4, 9)])
def test_both_losses_are_the_frobenius_norm_minus_fourth_powers_of_norms(shape, randn):
    Z = randn(*shape) + 0.5
    frobenius = (Z.T @ Z).square().sum()
    assert (noncontrastive(Z) + fourth_powers(Z, of="columns")).item() == pytest.approx(frobenius.item(), rel=1e-12)
    assert (contrastive(Z) + fourth_powers(Z, of="rows")).item() == pytest.approx(frobenius.item(), rel=1e-12)


def sinkhorn(A):
    """Scale a non-negative (N, D) matrix to row sums D and column sums N."""
    for _ in range(1000):
        A = A / A.mean(0)
        A = A / A.mean(1, keepdim=True)
    return A


@pytest.mark.parametrize("shape", [(9, 4), (4, 9), (5, 5)])
def test_with_equal_row_and_column_sums_of_squares_the_losses_differ_by_a_constant(shape, randn):
    N, D = shape
    for _ in range(5):
        A = randn(N, D)
        Z = A.sign() * sinkhorn(A.square()).sqrt()
        assert (noncontrastive(Z) - contrastive(Z)).item() == pytest.approx(N * D**2 - D * N**2, abs=1e-8)


def test_doubly_stochastic_embeddings_do_not_make_them_equal(randn):
    """The printed condition: rows and columns of the entries, not of their squares, sum to one."""
    gaps = []
    for _ in range(5):
        Z = sinkhorn(randn(5, 5).abs()) / 5
        assert (Z.sum(0) - 1).abs().max() < 1e-10
        assert (Z.sum(1) - 1).abs().max() < 1e-10
        gaps.append((noncontrastive(Z) - contrastive(Z)).item())
    assert max(gaps) - min(gaps) > 1e-3
