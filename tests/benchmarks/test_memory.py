"""The peak memory of functions whose need is known."""

import pytest
import torch

from fullrank.objectives import barlow_twins, total


def three_times(x):
    y = x + 1  # 2 tensors beyond x are alive at once
    y = y + 1
    y = y + 1
    return y.sum()


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_freed_tensors_do_not_count(device):
    from memory import peak_bytes

    x = torch.ones(1000, device=device)
    assert peak_bytes(lambda: three_times(x), device) == pytest.approx(2 * 4000, abs=200)


def test_shapes_give_the_peak_of_the_profiler():
    from memory import peak_bytes

    def peak(device):
        Z = torch.randn(2, 64, 32, device=device, requires_grad=True)
        return peak_bytes(lambda: torch.autograd.grad(total(barlow_twins(Z)), Z), device)

    assert peak("meta") == pytest.approx(peak("cpu"), rel=0.05)
