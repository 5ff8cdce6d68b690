"""Fig. 3 at its smoke size: strong augmentation of one layer, and its threshold."""

from fullrank_papers.figures.directclr.fig3 import FIGURE


def test_only_the_printed_normalisation_is_refuted(rows):
    strong, weak, printed, threshold, trained = FIGURE.claims(rows)
    assert strong.holds
    assert weak.holds
    assert not printed.holds
    assert threshold.holds
    assert trained.holds
    assert [claim.kind for claim in (strong, weak, printed, threshold, trained)] == [
        "claim",
        "claim",
        "claim",
        "correction",
        "correction",
    ]


def test_eight_singular_values_vanish_and_eight_grow(rows):
    strongest = rows["block"][-1]
    assert strongest[7] > 1
    assert strongest[8] < 0.01
