"""The contract of signatures: wrong tensors are one line, and an unknown objective with a state needs no other
change."""

import pickle
from functools import partial

import pytest
import torch
from lightning.fabric import Fabric
from torch import nn

from fullrank.errors import UserError
from fullrank.methods import METHODS, Encoder, Grouped, method_builder
from fullrank.objectives import OBJECTIVES, ObjectiveState, find_state, stateful
from fullrank.objectives.signature import tensor_names
from fullrank.training import OptimizerConfig, build_optimizer, fit


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_list_or_one_view_is_told_which_shape_is_wanted(name):
    first, *others = tensor_names(OBJECTIVES[name])
    with pytest.raises(UserError, match=rf"{name}: {first} is a list, expected a tensor .*torch\.stack"):
        OBJECTIVES[name](list(torch.randn(2, 8, 4)), *[torch.randn(2, 8, 4) for _ in others])
    with pytest.raises(UserError, match=rf"{name}: {first} has the shape \(8, 4\), expected"):
        OBJECTIVES[name](torch.randn(8, 4), *[torch.randn(2, 8, 4) for _ in others])


def test_wrong_views_and_axes_are_errors():
    with pytest.raises(UserError, match=r"vicreg: Z has the shape \(3, 8, 4\).*2 views"):
        OBJECTIVES["vicreg"](torch.randn(3, 8, 4))
    with pytest.raises(UserError, match=r"frossl: got 2 arguments.*torch\.stack\(\[z1, z2\]\)"):
        OBJECTIVES["frossl"](*torch.randn(2, 8, 4))
    with pytest.raises(UserError, match=r"frossl: Z has the type torch.int64, expected floats"):
        OBJECTIVES["frossl"](torch.ones(2, 8, 4, dtype=torch.int64))
    with pytest.raises(UserError, match=r"byol: T has the shape \(2, 6, 4\).* N = 8"):
        OBJECTIVES["byol"](torch.randn(2, 8, 4), T=torch.randn(2, 6, 4))
    with pytest.raises(TypeError, match="missing"):
        OBJECTIVES["byol"](torch.randn(2, 8, 4))


def test_an_objective_keeps_its_name_signature_and_state():
    moco = OBJECTIVES["moco"]
    assert (moco.__name__, tensor_names(moco), list(moco.state.tensors)) == ("moco", ("Q", "K", "queue"), ["queue"])
    again = pickle.loads(pickle.dumps(partial(moco, temperature=0.5)))
    assert again.func is moco


def running_mean(Z, mean, *, momentum=0.9):
    return momentum * mean.detach() + (1 - momentum) * Z.detach().mean((0, 1))


@stateful(ObjectiveState({"mean": ("D", torch.zeros)}, running_mean))
def centred(Z, mean, *, momentum=0.9):
    A = Z - mean.detach()
    return {"invariance": (A - A.mean(0)).square().mean(), "variance": -(A.square().mean((0, 1)) + 1e-3).log().mean()}


@pytest.mark.parametrize("groups", [None, 2])
def test_an_unknown_stateful_objective_trains_with_the_method_of_its_other_tensors(groups):
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


def test_a_function_with_the_tensors_of_a_library_state_has_that_state():
    assert method_builder("mine:loss", lambda P, T, queue: {}) is METHODS["nnclr"]
    assert find_state(lambda Z, R, mu: {}) is find_state(OBJECTIVES["corinfomax"])
    assert find_state(partial(OBJECTIVES["moco"], temperature=0.1)) is find_state(OBJECTIVES["moco"])
    assert find_state(lambda Z: {}) is None
