import sys
from pathlib import Path

import pytest
import torch

from fullrank.objectives import OBJECTIVES

sys.path.append(str(Path(__file__).parent))  # for loops.py


@pytest.fixture
def loss(request):
    """`loss(*tensors, **hyper)`: the sum of the terms of the objective that the file is named after."""
    objective = OBJECTIVES[request.path.stem.removeprefix("test_")]
    return lambda *tensors, **hyper: sum(objective(*tensors, **hyper).values())


@pytest.fixture
def simplex():
    """Two equal views of five rows with cosines −1/4, the corners of a simplex (2, 5, 5)."""
    return (torch.eye(5, dtype=torch.float64) - 1 / 5).expand(2, 5, 5)


@pytest.fixture
def is_least(loss, randn):
    """`is_least(best, value, *tensors, **hyper)`: the loss is `value` at `best`, where its gradient is zero if
    `critical`, and larger near it."""

    def check(best, value, *others, critical=False, normalized=False, **hyper):
        best = best.clone().requires_grad_()
        least = loss(best, *others, **hyper)
        assert least.item() == pytest.approx(value, abs=1e-10)
        assert not critical or torch.autograd.grad(least, best)[0].abs().max() < 1e-12
        for _ in range(20):
            near = best.detach() + 0.1 * randn(*best.shape)
            near = torch.nn.functional.normalize(near, dim=-1) if normalized else near
            assert loss(near, *others, **hyper) > value

    return check
