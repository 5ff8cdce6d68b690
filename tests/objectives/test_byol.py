import pytest

from fullrank.objectives import simsiam


def test_equals_four_times_simsiam_plus_four(loss, randn):
    P, T = randn(3, 5, 4), randn(3, 5, 4)
    assert loss(P, T).item() == pytest.approx(4 + 4 * simsiam(P, T)["prediction"].item(), abs=1e-12)
