import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fullrank.spectrum import count_learned, saturation

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


def test_count_learned_rises_by_one_at_each_step_of_stepwise_learning():
    t = torch.linspace(0, 40, 401, dtype=torch.float64)
    times = torch.tensor([5.0, 10.0, 20.0])
    count = count_learned(torch.sigmoid(3 * (t[:, None] - times)))
    assert count[0] == 0
    assert count[-1] == 3
    for k, time in enumerate(times):
        assert (count[(t > time + 0.1) & (t < (times[k + 1] if k < 2 else 40) - 0.1)] == k + 1).all()
