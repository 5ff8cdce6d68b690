from dataclasses import replace

import pytest

from fullrank.evaluation.result import Comparison
from fullrank.evaluation.verdict import decide, rising, still_rising, verdict, what_decides

RAW = Comparison(
    probe="kNN", against="raw pixels", accuracy=0.9, reference=0.8, difference=0.1, low=0.05, high=0.15, units=400
)


@pytest.mark.parametrize(
    ("low", "high", "expected"), [(0.05, 0.15, "better"), (-0.2, -0.01, "worse"), (-0.01, 0.2, "undecided")]
)
def test_an_interval_without_zero_decides(low, high, expected):
    assert decide(replace(RAW, low=low, high=high)) == expected


def test_few_test_images_decide_nothing():
    few = replace(RAW, units=8)
    assert decide(few) == "undecided"
    assert "8 test images are too few to decide" in verdict([few])


def test_the_strongest_alternative_counts():
    initial = replace(RAW, against="initial weights", reference=0.91, difference=-0.01, low=-0.03, high=0.01)
    text = verdict([RAW, initial])
    assert text.startswith(
        "Undecided: by kNN, the backbone has 90.0 %, initial weights, the strongest alternative, 91.0 %;"
    )
    assert "the difference is -1.0 points (95 % interval -3.0 to +1.0)" in text
    assert verdict([]) == ""


def test_needed_images_grow_with_the_square_of_the_relative_width():
    undecided = replace(RAW, difference=0.02, low=-0.02, high=0.06)
    assert what_decides(undecided) == "about 1,600 test images would decide a difference of this size (now 400)"
    assert "groups of test images" in what_decides(replace(undecided, grouped=True))
    assert "too small to decide" in what_decides(replace(undecided, difference=0.001))
    assert "too small to decide" in what_decides(replace(undecided, difference=0.0))


def test_the_curve_says_whether_more_labels_may_help():
    assert "rises from 50.0 % with 1 label per class to 60.0 % with 2" in rising({2: 0.6, 1: 0.5})
    assert "hardly rises" in rising({5: 0.6, 10: 0.601})
    assert rising({5: 0.6}) == ""
    better = verdict([RAW], {1: 0.5, 2: 0.6})
    assert "labels" not in better  # what would decide it is said only if it is undecided


def test_the_accuracy_during_pretraining_says_whether_more_epochs_may_help():
    curve = {float(epoch): 0.2 + 0.01 * epoch for epoch in range(0, 31, 3)}
    assert "rose from 38.0 % after epoch 18 to 50.0 % after epoch 30" in still_rising(curve)
    flat = {0.0: 0.2, 10.0: 0.3, 20.0: 0.4, 30.0: 0.405}
    assert "hardly changed after epoch 20" in still_rising(flat)
    assert "fell after epoch 20" in still_rising(flat | {30.0: 0.2})
    assert still_rising({0.0: 0.2, 1.0: 0.3, 2.0: 0.35, 100.0: 0.6}) == ""
    assert still_rising({}) == still_rising({0.0: 0.2, 1.0: 0.3}) == ""
    assert still_rising({80.0: 0.5, 85.0: 0.6, 90.0: 0.6, 100.0: 0.61}) == ""
    worse = replace(RAW, difference=-0.1, low=-0.15, high=-0.05)
    assert "more epochs may not help" in verdict([worse], training=flat)
    assert "epochs" not in verdict([RAW], training=flat)


def test_an_interval_that_comes_from_the_seeds_asks_for_seeds():
    undecided = replace(RAW, difference=0.02, low=-0.02, high=0.06, seeds=3)
    assert "more seeds would narrow it (now 3)" in what_decides(replace(undecided, seed_half_width=0.03))
    assert "about 1,600 test images" in what_decides(replace(undecided, seed_half_width=0.01))
