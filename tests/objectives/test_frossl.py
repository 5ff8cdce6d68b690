"""FroSSL: the sum of the paper as loops, its optimum, what it ignores, and how its published variants relate to it."""

import math

import jaxtyping
import pytest
import torch

from fullrank.errors import UserError
from fullrank.objectives import barlow_twins, frossl
from fullrank.objectives.algebra import off_diagonal

NORMALIZE = ["columns", "matrix", "rows"]


def randn(rng, *shape):
    return torch.randn(*shape, generator=rng, dtype=torch.float64)


def loss(Z, **numbers):
    return sum(frossl(Z, **numbers).values())


def gradient(f, Z):
    Z = Z.clone().requires_grad_()
    return torch.autograd.grad(f(Z), Z)[0]


def loops(Z, *, invariance=1.0, log=True, center=True, normalize="columns"):
    """Eq. 6 with plain numbers, always through the covariance."""
    V, N, D = Z.shape
    views = Z.tolist()
    total = 0.0
    for z in views:
        if center:
            for d in range(D):
                mean = sum(z[n][d] for n in range(N)) / N
                for n in range(N):
                    z[n][d] -= mean
        columns = [math.sqrt(sum(z[n][d] ** 2 for n in range(N))) for d in range(D)]
        rows = [math.sqrt(sum(z[n][d] ** 2 for d in range(D))) for n in range(N)]
        whole = math.sqrt(sum(row**2 for row in rows) / D)
        for n in range(N):
            for d in range(D):
                z[n][d] /= {"columns": columns[d], "matrix": whole, "rows": rows[n]}[normalize]
        squares = sum(sum(z[n][i] * z[n][j] for n in range(N)) ** 2 for i in range(D) for j in range(D))
        total += math.log(squares) if log else squares
    for v in range(V):
        for w in range(v + 1, V):
            total += invariance / N * sum((views[v][n][d] - views[w][n][d]) ** 2 for n in range(N) for d in range(D))
    return total


@pytest.mark.parametrize("shape", [(2, 7, 4), (3, 7, 4), (4, 5, 8)])
@pytest.mark.parametrize("normalize", NORMALIZE)
@pytest.mark.parametrize("log", [True, False])
@pytest.mark.parametrize("center", [True, False])
def test_equals_the_sum_of_the_paper(shape, normalize, log, center, rng):
    Z = randn(rng, *shape) + 0.5
    numbers = {"invariance": 1.4, "log": log, "center": center, "normalize": normalize}
    assert loss(Z, **numbers).item() == pytest.approx(loops(Z, **numbers), abs=1e-10, rel=1e-12)


def test_takes_the_same_gradient_through_covariance_and_gram(rng):
    wide = randn(rng, 2, 4, 6)
    padded = torch.cat([wide, wide.mean(1, keepdim=True).expand(2, 4, 6)], dim=1)  # N = 8 ≥ D = 6, same centred scatter: covariance branch

    def variance(Z):
        return frossl(Z)["variance"]

    assert variance(wide).item() == pytest.approx(variance(padded).item(), abs=1e-12)
    torch.testing.assert_close(gradient(variance, wide), gradient(variance, padded)[:, :4], atol=1e-12, rtol=0)


@pytest.mark.parametrize("normalize", ["columns", "matrix"])
def test_is_least_when_views_agree_and_columns_are_equal_and_uncorrelated(normalize, rng):
    Q = torch.linalg.qr(torch.cat([torch.ones(9, 1, dtype=torch.float64), randn(rng, 9, 4)], 1)).Q[:, 1:]  # (9, 4), centred, orthonormal
    best = Q.expand(2, 9, 4)
    assert loss(best, normalize=normalize).item() == pytest.approx(2 * math.log(4), abs=1e-12)
    assert gradient(lambda Z: loss(Z, normalize=normalize), best).abs().max() < 1e-12
    for _ in range(20):
        assert loss(best + 0.1 * randn(rng, 2, 9, 4), normalize=normalize) > 2 * math.log(4)


def test_cannot_go_below_the_rank_that_centring_leaves(rng):
    N, D = 4, 16  # D > N − 1: ‖C‖_F² ≥ D² / (N − 1)
    bound = math.log(D**2 / (N - 1))
    simplex = torch.linalg.qr(torch.cat([torch.ones(N, 1, dtype=torch.float64), randn(rng, N, N - 1)], 1)).Q[:, 1:]
    hadamard = torch.tensor([[(-1.0) ** (i & j).bit_count() for j in range(D)] for i in range(N - 1)], dtype=torch.float64)
    best = (simplex @ hadamard).expand(2, N, D)  # isotropic in N − 1 directions
    assert frossl(best, normalize="matrix")["variance"].item() == pytest.approx(2 * bound, abs=1e-12)
    assert all(frossl(randn(rng, 2, N, D), normalize=n)["variance"] > 2 * bound for n in ("columns", "matrix"))


def test_ignores_scale_and_shift_of_each_feature_with_columns_normalised(rng):
    Z = randn(rng, 3, 7, 4)
    scale, shift = randn(rng, 3, 1, 4).exp(), randn(rng, 3, 1, 4)
    assert loss(Z * scale + shift).item() == pytest.approx(loss(Z).item(), abs=1e-12)
    assert abs(loss(Z * scale, normalize="matrix") - loss(Z, normalize="matrix")) > 1e-2


def test_ignores_a_rotation_unless_columns_are_normalised(rng, rotation):
    Z = randn(rng, 3, 7, 4) * torch.tensor([4.0, 2, 1, 0.5], dtype=torch.float64)
    for normalize in ("matrix", "rows"):
        assert loss(Z @ rotation, normalize=normalize).item() == pytest.approx(loss(Z, normalize=normalize).item(), abs=1e-12)
    assert abs(loss(Z @ rotation) - loss(Z)) > 1e-2


def test_centring_makes_it_ignore_the_mean(rng):
    Z = randn(rng, 2, 7, 4)
    assert loss(Z + 3).item() == pytest.approx(loss(Z).item(), abs=1e-12)
    assert abs(loss(Z + 3, center=False) - loss(Z, center=False)) > 1e-2


@pytest.mark.parametrize("normalize", NORMALIZE)
@pytest.mark.parametrize("log", [True, False])
def test_gradient_is_that_of_finite_differences(normalize, log, rng):
    for shape in [(2, 5, 3), (3, 3, 4)]:
        Z = randn(rng, *shape).requires_grad_()
        assert torch.autograd.gradcheck(lambda Z: loss(Z, log=log, normalize=normalize), Z)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("normalize", NORMALIZE)
def test_total_collapse_has_variance_zero_and_no_gradient(normalize, dtype):
    Z = torch.full((2, 48, 5), 0.1, dtype=dtype, requires_grad=True)
    terms = frossl(Z, normalize=normalize)
    sum(terms.values()).backward()
    assert terms["variance"] == 0
    assert Z.grad is not None
    assert (Z.grad == 0).all()


def test_a_dead_column_counts_nothing_and_does_not_disturb_the_others(rng):
    Z = randn(rng, 2, 9, 4)
    dead = torch.cat([Z, torch.full((2, 9, 1), 0.1, dtype=torch.float64)], dim=-1)
    assert loss(dead).item() == pytest.approx(loss(Z).item(), abs=1e-12)
    grad = gradient(loss, dead)
    torch.testing.assert_close(grad[..., :4], gradient(loss, Z), atol=1e-12, rtol=0)
    assert (grad[..., 4] == 0).all()


# The variants in print differ in one number, the weight of the invariance relative to Σ_v log ‖·‖_F; written here from their descriptions.


def appendix_a(Z):
    """The pseudo-code: the whole matrix to norm √D, log of the norm itself, mean over all entries."""
    A = Z - Z.mean(1, keepdim=True)
    A = A * math.sqrt(Z.shape[-1]) / A.flatten(1).norm(dim=1)[:, None, None]
    return sum((a.T @ a).norm().log() for a in A) + (A[0] - A[1]).square().mean()


def public_two_view_code(Z):
    """Columns of norm √D, covariance divided by N, log of the squared norm, mean over all entries."""
    _, N, D = Z.shape
    A = (Z - Z.mean(1, keepdim=True)) / Z.std(1, keepdim=True)
    A = A / A.norm(dim=1, keepdim=True) * math.sqrt(D)
    return sum(2 * (a.T @ a / N).norm().log() for a in A) + (A[0] - A[1]).square().mean()


def unit_variance(Z):
    """Eq. 6 with columns of unit (biased) variance."""
    A = (Z - Z.mean(1, keepdim=True)) / Z.std(1, keepdim=True, unbiased=False)
    return sum(2 * (a.T @ a).norm().log() for a in A) + (A[0] - A[1]).square().sum() / Z.shape[1]


def test_the_pseudo_code_is_half_of_the_matrix_form_with_invariance_2_over_D(rng):
    Z = randn(rng, 2, 7, 4)
    ours = gradient(lambda Z: loss(Z, normalize="matrix", invariance=2 / 4), Z)
    torch.testing.assert_close(gradient(appendix_a, Z), ours / 2, atol=1e-14, rtol=1e-12)


def test_the_authors_code_has_the_same_gradient_and_a_constant_more(rng):
    Z = randn(rng, 2, 7, 4)
    torch.testing.assert_close(gradient(public_two_view_code, Z), gradient(loss, Z), atol=1e-14, rtol=1e-12)
    assert (public_two_view_code(Z) - loss(Z)).item() == pytest.approx(4 * math.log(4 / 7), abs=1e-12)


def test_unit_variance_is_an_invariance_of_N_and_a_constant_more(rng):
    Z = randn(rng, 2, 7, 4)
    torch.testing.assert_close(gradient(unit_variance, Z), gradient(lambda Z: loss(Z, invariance=7.0), Z), atol=1e-14, rtol=1e-12)
    assert (unit_variance(Z) - loss(Z, invariance=7.0)).item() == pytest.approx(4 * math.log(7), abs=1e-12)


# Propositions 3.1 to 3.3: without logarithms the loss is dimension- and sample-contrastive, up to constants.


def test_without_logs_columns_give_the_off_diagonal_covariances_up_to_D(rng):
    Z = randn(rng, 1, 9, 4).expand(2, 9, 4)
    redundancy = barlow_twins(Z, redundancy=1.0)["redundancy"]
    assert frossl(Z, log=False)["variance"].item() == pytest.approx(2 * (redundancy.item() + 4), abs=1e-12)


def test_without_logs_rows_give_the_off_diagonal_gram_up_to_N(rng):
    Z = randn(rng, 2, 9, 4)
    A = Z - Z.mean(1, keepdim=True)
    U = A / A.norm(dim=-1, keepdim=True)
    contrast = off_diagonal(U @ U.mT).square().sum()
    assert frossl(Z, log=False, normalize="rows")["variance"].item() == pytest.approx(contrast.item() + 2 * 9, abs=1e-12)


def test_an_unknown_normalisation_names_the_known_ones(rng):
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        with pytest.raises(UserError, match="unknown normalize 'column'; choose from columns, matrix, rows; perhaps you meant 'columns'"):
            frossl(randn(rng, 2, 5, 3), normalize="column")  # pyright: ignore[reportArgumentType]
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)
