"""Fig. 3 at its smoke size: what strong augmentation does to one layer, and where it begins."""

import json

import pytest

from fullrank.reproduce.directclr.fig3 import FIGURE


@pytest.fixture(scope="module")
def rows():
    return FIGURE.compute(FIGURE.sizes["smoke"], data=None, seed=0)


def test_strong_augmentation_collapses_and_the_printed_normalisation_leaves_nothing_weak(rows):
    strong, weak, printed, threshold, settled = FIGURE.claims(rows)
    assert strong.holds
    assert weak.holds
    assert not printed.holds
    assert threshold.holds
    assert settled.holds
    assert [claim.corrected for claim in (strong, weak, printed, threshold, settled)] == [False, False, False, True, True]


def test_eight_singular_values_vanish_and_eight_grow(rows):
    strongest = rows["block"][-1]
    assert strongest[7] > 1
    assert strongest[8] < 0.01


def test_rows_survive_json_and_are_drawn(rows):
    kept = json.loads(json.dumps(rows, allow_nan=False))
    assert FIGURE.claims(kept) == FIGURE.claims(rows)
    assert len(FIGURE.plot(kept).axes) == 2
