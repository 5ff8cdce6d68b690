"""Fig. 5 at its smoke size: which layers align."""

import json

import pytest

from fullrank.reproduce.directclr.fig5 import FIGURE


@pytest.fixture(scope="module")
def rows():
    return FIGURE.compute(FIGURE.sizes["smoke"], data=None, seed=0)


def test_alignment_is_the_identity_from_a_balanced_start_alone(rows):
    identity, released, balanced, floor, blocks = FIGURE.claims(rows)
    assert not identity.holds
    assert not released.holds
    assert balanced.holds
    assert floor.holds
    assert blocks.holds
    assert [claim.corrected for claim in (identity, released, balanced, floor, blocks)] == [False, False, True, True, False]


def test_the_floor_says_something_about_the_grown_modes_of_the_paper_s_start(rows):
    floor = rows["paper"][0]["floor"]
    assert max(floor[:5]) > 0.5
    assert floor[-1] == 0


def test_rows_survive_json_and_are_drawn(rows):
    kept = json.loads(json.dumps(rows, allow_nan=False))
    assert FIGURE.claims(kept) == FIGURE.claims(rows)
    assert len(FIGURE.plot(kept).axes) == 9  # eight and the colour bar
