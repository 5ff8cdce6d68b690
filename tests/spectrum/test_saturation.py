import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fullrank.errors import UserError
from fullrank.spectrum import learned, saturation

curves = st.lists(st.floats(0, 10), min_size=1, max_size=12).map(lambda values: torch.tensor(values, dtype=torch.float64))
shares = st.floats(0.05, 1.0)


@settings(deadline=None, max_examples=50)
@given(curves, shares)
def test_is_the_first_record_from_which_all_reach_the_share(curve, share):
    expected = next(t for t in range(len(curve)) if all(c >= share * curve[-1] for c in curve[t:]))
    assert saturation(curve, share=share) == expected


@settings(deadline=None, max_examples=50)
@given(curves, shares, st.floats(0.1, 100))
def test_ignores_the_scale(curve, share, scale):
    moved = saturation(scale * curve, share=share)
    near = ((curve - share * curve[-1]).abs() < 1e-9).any()  # on the threshold, rounding decides
    assert near or moved == saturation(curve, share=share)


def test_of_a_logistic_curve_is_its_known_time():
    t = torch.linspace(0, 20, 2001, dtype=torch.float64)
    curve = torch.sigmoid(t - 5)
    assert t[saturation(curve)].item() == pytest.approx(5 + torch.logit(torch.tensor(0.95)).item(), abs=0.01)


def test_of_several_curves_is_that_of_each():
    many = torch.rand(9, 2, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    each = torch.tensor([[saturation(many[:, i, k]) for k in range(3)] for i in range(2)])
    assert torch.equal(saturation(many), each)


def test_a_curve_that_overshoots_has_saturated_and_one_that_dips_has_not():
    assert saturation(torch.tensor([0.0, 3.0, 1.5, 1.0])) == 1
    assert saturation(torch.tensor([0.0, 1.0, 0.9, 1.0])) == 3


def test_a_collapse_looks_saturated_from_the_start():
    assert saturation(torch.tensor([1.0, 0.5, 0.0])) == 0


def test_steps_are_counted_one_by_one_in_stepwise_learning():
    t = torch.linspace(0, 40, 401, dtype=torch.float64)
    times = torch.tensor([5.0, 10.0, 20.0])
    count = learned(torch.sigmoid(3 * (t[:, None] - times)))
    assert count[0] == 0
    assert count[-1] == 3
    for k, time in enumerate(times):
        assert (count[(t > time + 0.1) & (t < (times[k + 1] if k < 2 else 40) - 0.1)] == k + 1).all()


def test_what_ends_at_zero_was_never_learned():
    assert learned(torch.tensor([[1.0, 0.0], [0.5, 0.0], [0.0, 0.0]])).tolist() == [0, 0, 0]


def test_says_what_it_needs():
    with pytest.raises(UserError, match=r"saturation at 1\.5 of the final value, expected a share above 0 and at most 1"):
        saturation(torch.ones(3), share=1.5)
    with pytest.raises(UserError, match="received no record of a curve"):
        saturation(torch.ones(0, 3))
