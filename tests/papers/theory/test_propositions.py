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
