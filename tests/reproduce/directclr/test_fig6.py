"""Fig. 6 at its smoke size: singular values in training, and the theory of aligned layers."""

import json

import pytest

from fullrank.reproduce.directclr.fig6 import FIGURE


@pytest.fixture(scope="module")
def rows():
    return FIGURE.compute(FIGURE.sizes["smoke"], data=None, seed=0)


def test_aligned_theory_needs_a_balanced_start(rows):
    small, from_the_papers, from_balanced, conserved = FIGURE.claims(rows)
    assert small.holds
    assert not from_the_papers.holds
    assert from_balanced.holds
    assert conserved.holds
    assert [claim.corrected for claim in (small, from_the_papers, from_balanced, conserved)] == [False, False, True, True]


def test_theory_starts_where_training_does(rows):
    for case in ("paper", "balanced"):
        assert rows[case]["theory"]["s1"][0] == pytest.approx(rows[case]["trained"]["s1"][0])


def test_rows_survive_json_and_plot(rows):
    loaded = json.loads(json.dumps(rows, allow_nan=False))
    assert FIGURE.claims(loaded) == FIGURE.claims(rows)
    assert len(FIGURE.plot(loaded).axes) == 6
