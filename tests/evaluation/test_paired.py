"""Confidence intervals of paired differences, compared with scipy's paired t-test."""

import math

import numpy as np
import pytest
from scipy.stats import ttest_rel

from fullrank.evaluation.paired import PairedDifference, paired_difference


@pytest.mark.parametrize("n", [2, 3, 10])
def test_interval_equals_paired_t_test(n):
    rng = np.random.default_rng(n)
    a, b = rng.normal(size=(2, n))
    gap = paired_difference(a.tolist(), b.tolist())
    low, high = ttest_rel(a, b).confidence_interval(0.95)
    np.testing.assert_allclose([gap.mean - gap.half_width, gap.mean + gap.half_width], [low, high])


def test_one_pair_is_not_significant():
    gap = paired_difference([0.9], [0.1])
    assert (gap.sd, gap.half_width, gap.exceeds(0.0), gap.is_within(1.0)) == (None, math.inf, None, None)
    assert gap.format(" points", scale=100.0) == "+80.00 points, n = 1"


def test_equality_requires_the_whole_interval():
    assert PairedDifference(0.001, 0.002, 3).is_within(0.02) is True
    assert PairedDifference(0.001, 0.02, 3).is_within(0.02) is None
    assert PairedDifference(-0.019, 0.002, 3).is_within(0.02) is None
    assert PairedDifference(-0.03, 0.002, 3).is_within(0.02) is False
    assert PairedDifference(-0.021, 0.002, 3).is_within(0.02) is None
