import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fullrank.errors import UserError
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


@settings(deadline=None, max_examples=50)
@given(curves, shares, st.floats(0.1, 100))
def test_saturation_ignores_the_scale(curve, share, scale):
    moved = saturation(scale * curve, share=share)
    near = ((curve - share * curve[-1]).abs() < 1e-9).any()  # rounding decides at the threshold
    assert near or moved == saturation(curve, share=share)


def test_a_logistic_curve_saturates_at_its_known_time():
    t = torch.linspace(0, 20, 2001, dtype=torch.float64)
    curve = torch.sigmoid(t - 5)
    assert t[saturation(curve)].item() == pytest.approx(5 + torch.logit(torch.tensor(0.95)).item(), abs=0.01)


def test_several_curves_are_independent():
    many = torch.rand(9, 2, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    each = torch.tensor([[saturation(many[:, i, k]) for k in range(3)] for i in range(2)])
    assert torch.equal(saturation(many), each)


def test_a_curve_that_dips_saturates_after_the_dip():
    assert saturation(torch.tensor([0.0, 3.0, 1.5, 1.0])) == 1
    assert saturation(torch.tensor([0.0, 1.0, 0.9, 1.0])) == 3


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


def test_curves_that_end_at_zero_are_not_counted():
    assert count_learned(torch.tensor([[1.0, 0.0], [0.5, 0.0], [0.0, 0.0]])).tolist() == [0, 0, 0]


def test_wrong_input_raises():
    with pytest.raises(UserError, match=r"share is 1\.5"):
        saturation(torch.ones(3), share=1.5)
    with pytest.raises(UserError, match="curves has no rows"):
        saturation(torch.ones(0, 3))
