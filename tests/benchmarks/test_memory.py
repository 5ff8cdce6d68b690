"""The peak memory of functions whose need is known."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from fullrank.objectives import barlow_twins, total


def three_times(x):
    y = x + 1  # 2 tensors beyond x are alive at once
    y = y + 1
    y = y + 1
    return y.sum()


def test_freed_tensors_do_not_count():
    from memory import counted_peak, peak_bytes

    x, shape = torch.ones(1000), torch.ones(1000, device="meta")
    assert peak_bytes(lambda: three_times(x), "cpu") == pytest.approx(2 * 4000, abs=200)
    assert counted_peak(lambda: three_times(shape)) == pytest.approx(2 * 4000, abs=200)


def test_shapes_give_the_peak_of_the_profiler():
    from memory import counted_peak, profiled_peak

    def gradient(Z):
        return torch.autograd.grad(total(barlow_twins(Z)), Z)

    Z = torch.randn(2, 64, 32, requires_grad=True)
    with FakeTensorMode():
        shape = torch.randn(2, 64, 32, requires_grad=True)
        counted = counted_peak(lambda: gradient(shape))
    assert counted == pytest.approx(profiled_peak(lambda: gradient(Z)), rel=0.05)
