"""A new objective with a state that the library does not know: found, checked, optimised and trained without any other
change."""

from functools import partial

import pytest
import torch
from lightning.fabric import Fabric
from torch import nn

from fullrank.errors import UserError
from fullrank.methods import Encoder, Grouped, method_builder
from fullrank.objectives import OBJECTIVES, ObjectiveState, find_state, stateful
from fullrank.testing import CHECKS, objective_case, optimize_free_embeddings, run_check
from fullrank.training import OptimizerConfig, build_optimizer, fit


def running_mean(Z, mean, *, momentum=0.9):
    return momentum * mean.detach() + (1 - momentum) * Z.detach().mean((0, 1))


@stateful(ObjectiveState({"mean": ("D", torch.zeros)}, running_mean))
def centred(Z, mean, *, weight=1.0, momentum=0.9):
    A = Z - mean.detach()
    invariance = (A - A.mean(0)).square().mean()
    return {
        "invariance": invariance,
        "variance": -(A.square().mean((0, 1)) + 1e-3).log().mean() + weight * A.square().mean(),
    }


@pytest.mark.parametrize("check", CHECKS)
def test_a_new_stateful_objective_passes_the_conformance_check(check):
    case = objective_case(centred)
    assert (case.embedding_names, case.state_names) == (("Z",), ("mean",))
    assert [result for result in run_check(check, CHECKS[check], case) if result.status == "failed"] == []


def test_its_state_changes_while_free_embeddings_are_optimised():
    states = []

    @stateful(find_state(centred))
    def recording(Z, mean, *, momentum=0.9):
        states.append(tuple(mean.tolist()))
        return centred(Z, mean, momentum=momentum)

    case = objective_case(recording)
    states.clear()
    optimize_free_embeddings(case, N=32, D=8, steps=3)
    assert len(set(states)) == 3


@pytest.mark.parametrize("groups", [None, 2])
def test_it_trains_with_the_method_of_its_other_tensors(groups):
    objective = partial(centred, momentum=0.5)
    objective = Grouped(objective, groups=groups, seed=0) if groups else objective
    with torch.random.fork_rng():
        torch.manual_seed(0)
        encoder = Encoder(nn.Sequential(nn.Flatten(), nn.Linear(12, 6)), nn.Linear(6, 4), 4)
        method = method_builder("mine:centred", objective)(lambda: encoder, objective, 2)
    assert method.input_names == ("Z",)
    views = [torch.randn(2, 8, 3, 2, 2, generator=torch.Generator().manual_seed(0))]
    fabric = Fabric(accelerator="cpu", devices=1)
    module, optimizer = fabric.setup(method, build_optimizer(OptimizerConfig(name="sgd", lr=0.1), method))
    expected, Z = torch.zeros(4), method(views)["Z"].detach()
    for _ in fit(fabric, module, optimizer, [(views, torch.full((8,), -1))] * 3, lambda step: 0.1):
        expected, Z = running_mean(Z, expected, momentum=0.5), method(views)["Z"].detach()
    torch.testing.assert_close(method.state_dict()["state.mean"], expected)


@pytest.mark.parametrize("name", [name for name, objective in OBJECTIVES.items() if find_state(objective)])
def test_every_tensor_of_a_state_changes_after_a_batch(name):
    case = objective_case(OBJECTIVES[name])
    state = case.sample_state(torch.Generator().manual_seed(0), D=5)
    tensors = case.random_tensors(torch.Generator().manual_seed(1)) | state
    after = case.next_state(tensors)
    assert list(after) == list(state)
    assert all(after[key].shape == state[key].shape and not torch.equal(after[key], state[key]) for key in state)


def test_a_function_with_the_tensors_of_a_library_state_has_that_state():
    assert find_state(lambda Z, R, mu: {}) is find_state(OBJECTIVES["corinfomax"])
    assert find_state(partial(OBJECTIVES["moco"], temperature=0.1)) is find_state(OBJECTIVES["moco"])
    assert find_state(lambda Z: {}) is None
    with pytest.raises(UserError, match="takes 'queue' by position"):  # its update needs keys K
        objective_case(lambda Z, queue: {"loss": Z.mean()}, name="mine")
