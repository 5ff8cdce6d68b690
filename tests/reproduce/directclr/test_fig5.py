"""Fig. 5 at its smoke size: alignment from three starts."""

from fullrank.reproduce.directclr.fig5 import FIGURE


def test_only_a_balanced_start_aligns_all_modes(rows):
    identity, released, balanced, floor, blocks = FIGURE.claims(rows)
    assert not identity.holds
    assert not released.holds
    assert balanced.holds
    assert floor.holds
    assert blocks.holds
    assert [claim.corrected for claim in (identity, released, balanced, floor, blocks)] == [False, False, True, True, False]


def test_bound_is_informative_for_grown_modes(rows):
    floor = rows["paper"][0]["floor"]
    assert max(floor[:5]) > 0.5
    assert floor[-1] == 0
