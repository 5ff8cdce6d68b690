import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fullrank.spectrum import saturation

curves = st.lists(st.floats(0, 10), min_size=1, max_size=12)


@settings(deadline=None, max_examples=50)
@given(curves, st.floats(0, 1))
def test_saturation_is_the_first_index_near_the_mean_of_the_last_fifth(curve, tolerance):
    x = torch.tensor(curve, dtype=torch.float64)
    last = x[-max(1, len(curve) // 5) :].mean()
    near = [t for t in range(len(curve)) if abs(x[t] - last) <= tolerance * last]
    assert saturation(x, tolerance=tolerance) == (near[0] if near else len(curve) - 1)


def test_a_late_fluctuation_does_not_move_it():
    curve = torch.cat([torch.linspace(0, 1, 10), torch.ones(90)])
    noisy = curve.clone()
    noisy[85] = 0.7
    assert saturation(curve) == saturation(noisy) == saturation(3 - curve) == 9


def test_each_column_is_a_curve():
    curves = torch.rand(20, 3, 2, generator=torch.Generator().manual_seed(0))
    found = saturation(curves)
    assert found.tolist() == [[int(saturation(curves[:, i, j])) for j in range(2)] for i in range(3)]
