"""Fig. 6 at its smoke size: singular values in training, and the theory of aligned layers."""

import pytest

from fullrank_papers.figures.directclr.fig6 import FIGURE


def test_aligned_theory_needs_a_balanced_start(rows):
    small, from_the_papers, from_balanced, conserved = FIGURE.claims(rows)
    assert small.holds
    assert not from_the_papers.holds
    assert from_balanced.holds
    assert conserved.holds
    assert [claim.kind for claim in (small, from_the_papers, from_balanced, conserved)] == [
        "claim",
        "claim",
        "correction",
        "correction",
    ]


def test_theory_starts_where_training_does(rows):
    for case in ("paper", "balanced"):
        assert rows[case]["theory"]["s1"][0] == pytest.approx(rows[case]["trained"]["s1"][0])
