"""FroSSL: the sum of the paper as loops, its optimum, its invariances, and its relation to the published variants."""

import math

import pytest
import torch

from fullrank.objectives import frossl

NORMALIZE = ["columns", "matrix", "rows"]


def gradient(f, Z):
    Z = Z.clone().requires_grad_()
    return torch.autograd.grad(f(Z), Z)[0]


def loops(Z, *, invariance=1.0, variance=1.0, log=True, center=True, normalize="columns"):
    """Compute eq. 6 with Python floats, by the covariance."""
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
        total += variance * (math.log(squares) if log else squares)
    for v in range(V):
        for w in range(v + 1, V):
            total += invariance / N * sum((views[v][n][d] - views[w][n][d]) ** 2 for n in range(N) for d in range(D))
    return total


@pytest.mark.parametrize("shape", [(2, 7, 4), (3, 7, 4), (4, 5, 8)])
@pytest.mark.parametrize("normalize", NORMALIZE)
@pytest.mark.parametrize("log", [True, False])
@pytest.mark.parametrize("center", [True, False])
def test_equals_the_sum_of_the_paper(loss, shape, normalize, log, center, randn):
    Z = randn(*shape) + 0.5
    hyper = {"invariance": 1.4, "variance": 0.3, "log": log, "center": center, "normalize": normalize}
    assert loss(Z, **hyper).item() == pytest.approx(loops(Z, **hyper), abs=1e-10, rel=1e-12)


@pytest.mark.parametrize("normalize", ["columns", "matrix"])
def test_minimum_is_at_equal_views_with_uncorrelated_columns_of_equal_norm(is_least, normalize, orthonormal):
    is_least(orthonormal(9, 4).expand(2, 9, 4), 2 * math.log(4), critical=True, normalize=normalize)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("normalize", NORMALIZE)
def test_complete_collapse_has_variance_zero_and_no_gradient(normalize, dtype):
    Z = torch.full((2, 48, 5), 0.1, dtype=dtype, requires_grad=True)
    terms = frossl(Z, normalize=normalize)
    sum(terms.values()).backward()
    assert terms["variance"] == 0
    assert Z.grad is not None
    assert (Z.grad == 0).all()


# The published versions, written from their descriptions: sums of a variance term of K and of `weight` times an
# invariance term. frossl with the arguments of the row, times `factor`, has the same gradient; the values differ by a
# constant of V, N and D.


def centred(Z):
    return Z - Z.mean(1, keepdim=True)


def normalize_columns(Z, *, norm):
    return Z / Z.norm(dim=1, keepdim=True) * norm


def normalize_matrix(Z):
    return Z / Z.norm(dim=(1, 2), keepdim=True) * math.sqrt(Z.shape[-1])


def log_norm(K):
    return K.norm(dim=(1, 2)).log().sum()


def scatter(Z):
    return Z.mT @ Z


def divide_by_trace(K):
    """Divide each matrix by its trace."""
    return K / K.diagonal(dim1=1, dim2=2).sum(-1)[:, None, None]


def distance_to_mean(Z):
    """(1/N) Σ_v Σ_i ‖z_vi − mean_i‖²."""
    return (Z - Z.mean(0)).square().sum() / Z.shape[1]


def pseudo_code(Z, weight):
    """Appendix A of the paper: the whole matrix to norm √D, logarithm of the norm, mean square over all entries."""
    A = normalize_matrix(centred(Z))
    return log_norm(scatter(A)) + weight * (A[0] - A[1]).square().mean()


def equation_6(Z, weight):
    """With the normalisation of the pseudo-code."""
    A = normalize_matrix(centred(Z))
    return 2 * log_norm(scatter(A)) + weight * (A[0] - A[1]).square().sum() / Z.shape[1]


def two_views_late(Z, weight):
    """The later version (deprecated): divided by the trace."""
    A = normalize_columns(centred(Z) / Z.std(1, keepdim=True), norm=math.sqrt(Z.shape[-1]))
    return 2 * log_norm(divide_by_trace(scatter(A))) + weight * (A[0] - A[1]).square().mean()


def many_views_late(Z, weight):
    """The later version, which lightly has too: columns of unit norm without centring."""
    A = normalize_columns(Z, norm=1)
    return 2 * log_norm(divide_by_trace(scatter(A))) + weight * len(Z) * distance_to_mean(A)


def solo_learn_request(Z, weight):
    """Pull request #390 of solo-learn: the invariance divided by V."""
    A = normalize_columns(Z, norm=1)
    return 2 * log_norm(divide_by_trace(scatter(A))) + weight * distance_to_mean(A)


TWO, FOUR, N, D = 2, 4, 7, 5
WEIGHT = 1.4
# version, views, arguments of frossl, factor, constant: version(Z) = factor · frossl(Z, arguments) + constant
VERSIONS = [
    (pseudo_code, TWO, {"normalize": "matrix", "invariance": 2 * WEIGHT / D}, 1 / 2, 0),
    (equation_6, TWO, {"normalize": "matrix", "invariance": WEIGHT}, 1, 0),
    (two_views_late, TWO, {"invariance": WEIGHT}, 1, -4 * math.log(D)),
    *((many_views_late, V, {"center": False, "invariance": WEIGHT}, 1, -2 * V * math.log(D)) for V in (TWO, FOUR)),
    (solo_learn_request, TWO, {"center": False, "invariance": WEIGHT / TWO}, 1, -2 * TWO * math.log(D)),
    (solo_learn_request, FOUR, {"center": False, "invariance": WEIGHT / FOUR}, 1, -2 * FOUR * math.log(D)),
]


@pytest.mark.parametrize(("version", "V", "arguments", "factor", "constant"), VERSIONS)
def test_published_versions_equal_frossl_up_to_a_factor_and_a_constant(
    loss, version, V, arguments, factor, constant, randn
):
    Z = randn(V, N, D) + 0.5
    assert version(Z, WEIGHT).item() == pytest.approx(factor * loss(Z, **arguments).item() + constant, abs=1e-11)
    theirs, ours = gradient(lambda Z: version(Z, WEIGHT), Z), gradient(lambda Z: factor * loss(Z, **arguments), Z)
    torch.testing.assert_close(theirs, ours, atol=1e-13, rtol=1e-11)
