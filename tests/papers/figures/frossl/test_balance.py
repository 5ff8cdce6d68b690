"""The weights of the figure of the balance, and what it measures."""

import pytest

from fullrank_papers.figures.frossl.balance import PUBLISHED, WEIGHTS, published_factor, scaled, share_between
from fullrank_papers.theory.balance import balanced, gaussian_views


@pytest.mark.parametrize("objective", WEIGHTS)
def test_the_published_weight_is_the_balanced_one_times_its_factor(objective):
    for N, D in ((64, 64), (256, 1024)):
        weights = scaled(objective, balanced(objective, 2, N, D), published_factor(objective, N, D))
        assert weights[WEIGHTS[objective]] == pytest.approx(PUBLISHED[objective][WEIGHTS[objective]])


def test_the_share_between_views_is_what_their_correlation_leaves():
    Z = gaussian_views(2, 20_000, 4, rank=4, correlation=0.7)
    assert share_between(Z) == pytest.approx(0.3, abs=0.01)
    assert share_between(5 * Z + 3) == pytest.approx(share_between(Z))
