import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fullrank.spectrum import saturation

curves = st.lists(st.floats(0, 10), min_size=1, max_size=12).map(
    lambda values: torch.tensor(values, dtype=torch.float64)
)
shares = st.floats(0.05, 1.0)


@settings(deadline=None, max_examples=50)
@given(curves, shares)
def test_saturation_is_the_first_index_from_which_all_values_reach_the_share(curve, share):
    expected = next(t for t in range(len(curve)) if all(c >= share * curve[-1] for c in curve[t:]))
    assert saturation(curve, share=share) == expected


def test_a_curve_that_ends_at_zero_has_index_zero():
    assert saturation(torch.tensor([1.0, 0.5, 0.0])) == 0
