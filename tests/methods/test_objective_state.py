import pytest
import torch

from fullrank.methods.objective_state import ObjectiveState, no_memory


def decay(Z, mean, count, *, rate=0.5):
    return rate * mean + (1 - rate) * Z.mean((0, 1)), count + 1


@pytest.fixture
def memory():
    return ObjectiveState(decay, mean=torch.zeros(3), count=torch.zeros((), dtype=torch.int64))


def test_it_moves_by_the_function_of_embeddings_and_buffers(memory):
    Z = torch.randn(2, 4, 3)
    memory.update({"Z": Z, "R": torch.zeros(1)})
    memory.update({"Z": Z, "R": torch.zeros(1)})
    torch.testing.assert_close(memory.tensors()["mean"], 0.75 * Z.mean((0, 1)))
    assert memory.tensors()["count"] == 2


def test_it_keeps_no_gradient_and_its_own_place_and_precision(memory):
    buffer = memory.tensors()["mean"]
    memory.update({"Z": torch.randn(2, 4, 3, requires_grad=True).bfloat16()})
    assert memory.tensors()["mean"] is buffer
    assert buffer.dtype == torch.float32
    assert not buffer.requires_grad
    assert buffer.norm() > 0


def test_it_is_saved_with_the_weights(memory):
    memory.update({"Z": torch.ones(2, 4, 3)})
    other = ObjectiveState(decay, mean=torch.ones(3), count=torch.ones((), dtype=torch.int64))
    other.load_state_dict(memory.state_dict())
    assert torch.equal(other.tensors()["mean"], torch.full((3,), 0.5))
    assert other.tensors()["count"] == 1


def test_no_memory_holds_nothing_and_never_minds():
    memory = no_memory()
    memory.update({"Z": torch.ones(2, 4, 3)})
    assert memory.tensors() == memory.state_dict() == {}
