"""The balanced weights keep the ratio of the two gradients; the closed form of FroSSL's ratio."""

import math

import pytest

from fullrank.recipes import resolve
from fullrank_papers.theory.balance import balanced, gaussian_views, gradient_ratio

SIZES = ((64, 256), (256, 256), (256, 1024))


def spread(objective, weights, rank):
    views = {(N, D): gaussian_views(2, N, D, rank=rank, correlation=0.8) for N, D in SIZES}
    ratios = [gradient_ratio(objective, Z, **weights(*size)) for size, Z in views.items()]
    return max(ratios) / min(ratios)


@pytest.mark.parametrize("objective", ["frossl", "barlow_twins", "vicreg"])
def test_the_balanced_weight_keeps_the_ratio_of_the_gradients(objective):
    fixed = balanced(objective, 2, 256, 1024)
    assert spread(objective, lambda N, D: balanced(objective, 2, N, D), 12) < 2
    assert spread(objective, lambda N, D: fixed, 12) > 3


@pytest.mark.parametrize("V", [4, 8])
def test_the_balance_of_frossl_does_not_depend_on_the_number_of_aligned_views(V):
    two, more = (
        gradient_ratio(
            "frossl", gaussian_views(v, 256, 64, rank=12, correlation=0.95), **balanced("frossl", v, 256, 64)
        )
        for v in (2, V)
    )
    assert more == pytest.approx(two, rel=0.05)


@pytest.mark.parametrize(("V", "rho"), [(2, 0.0), (2, 0.8), (4, 0.5)])
def test_the_closed_form_for_independent_features(V, rho):
    N, D = 512, 1024
    S = (V - 1) * (1 + (V - 2) * rho) - ((V - 1) * rho) ** 2
    expected = 0.7 / 2 * math.sqrt(D / N) * (1 + D / N) * math.sqrt(S)
    Z = gaussian_views(V, N, D, rank=D, correlation=rho)
    assert 1 / gradient_ratio("frossl", Z, invariance=0.7) == pytest.approx(expected, rel=0.03)


def test_the_probability_of_the_positive_stays_the_same():
    def positive(N):
        return math.exp(1 / balanced("simclr", 2, N, 128)["temperature"]) / (N - 1)

    assert positive(512) == pytest.approx(positive(64))
    assert balanced("simclr", 2, 256, 128)["temperature"] == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("recipe", "weight", "published"),
    [
        ("cifar10-barlow_twins", "redundancy", 0.0051),
        ("cifar10-vicreg", "covariance", 1.0),
        ("cifar10", "invariance", 1.0),
    ],
)
def test_a_published_recipe_has_the_balanced_weight(recipe, weight, published):
    assert resolve(recipe, {f"hyper.{weight}": "balanced"}).hyper[weight] == pytest.approx(published)
