from functools import partial

import pytest
import torch
from torch import nn

from fullrank.methods import Method, StateBuffers, at_least_float32
from fullrank.objectives import ObjectiveState, frossl


class Plain(Method):
    """A method without networks."""

    def __init__(self, objective):
        super().__init__(nn.Identity(), nn.Identity(), objective)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_an_objective_gets_float32_or_float64(dtype):
    Z, expected = torch.randn(2, 8, 4).to(dtype), torch.float64 if dtype == torch.float64 else torch.float32
    assert at_least_float32(Z).dtype == expected
    with torch.autocast("cpu", dtype=torch.bfloat16):
        terms = Plain(frossl).terms({"Z": Z})
    assert {term.dtype for term in terms.values()} == {expected}
    outside = frossl(Z.to(expected))
    assert all(torch.equal(terms[name], outside[name]) for name in outside)  # exactly: autocast has no effect


# The buffers of a state


def decay(Z, mean, count, *, rate=0.5):
    return rate * mean + (1 - rate) * Z.mean((0, 1)), count + 1


@pytest.fixture
def build_buffers():
    zeros = {"mean": ("D", torch.zeros), "count": ("1", partial(torch.zeros, dtype=torch.int64))}
    return lambda: StateBuffers(ObjectiveState(zeros, decay), frossl, D=3)


def test_buffers_are_updated_from_embeddings_and_state(build_buffers):
    buffers, Z = build_buffers(), torch.randn(2, 4, 3)
    for _ in range(2):
        buffers.update({"Z": Z, "R": torch.zeros(1)})
    torch.testing.assert_close(buffers.tensors()["mean"], 0.75 * Z.mean((0, 1)))
    assert buffers.tensors()["count"] == 2


def test_buffers_keep_their_memory_and_precision_and_have_no_gradient(build_buffers):
    buffers = build_buffers()
    mean = buffers.tensors()["mean"]
    buffers.update({"Z": torch.randn(2, 4, 3, requires_grad=True).bfloat16()})
    assert buffers.tensors()["mean"] is mean
    assert mean.dtype == torch.float32
    assert not mean.requires_grad
    assert mean.norm() > 0
