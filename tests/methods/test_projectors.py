"""Projectors: each one in comparison with its formula, and all of them with objectives, on one process and on two."""

import math
import runpy
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lightning.fabric import Fabric

from fullrank.errors import UserError
from fullrank.methods import ProjectorConfig, TrainingLength, build_projector
from fullrank.objectives import OBJECTIVES
from fullrank.objectives.signature import tensor_names

pytestmark = pytest.mark.usefixtures("double_precision")
WORKER = Path(__file__).with_name("projectors_worker.py")
table = runpy.run_path(str(WORKER))
PROJECTORS, SELECTED_OBJECTIVES, D_B = table["PROJECTORS"], table["SELECTED_OBJECTIVES"], table["D_B"]
every_projector = pytest.mark.parametrize("projector", PROJECTORS)
CUTTING = ("low-rank", "low-rank-diagonal", "sub-vector", "dropout")


@pytest.fixture(scope="module")
def fabric():
    return Fabric(accelerator="cpu", devices=1, precision="64-true")


def built(name, features=D_B, seed=0, **numbers):
    return build_projector(ProjectorConfig(kind=name, **{"d0": 3, "groups": 2} | numbers), features, seed=seed)


def loss_of(terms):
    return torch.stack(list(terms.values())).sum()


# The MLP


def kinds(projector):
    return [type(layer).__name__ for layer in projector]


@pytest.mark.parametrize(
    ("widths", "expected"),
    [
        ((), []),
        ((7,), ["Linear"]),
        ((8, 8, 7), ["Linear", "BatchNorm1d", "ReLU", "Linear", "BatchNorm1d", "ReLU", "Linear"]),
    ],
)
def test_hidden_layers_are_linear_norm_relu_and_the_last_is_linear(widths, expected):
    projector = build_projector(ProjectorConfig(widths=widths), 5)
    assert kinds(projector) == expected
    assert projector(torch.randn(4, 5)).shape == (4, widths[-1] if widths else 5)


def test_without_widths_the_embedding_is_the_representation():
    R = torch.randn(4, 5)
    assert torch.equal(build_projector(ProjectorConfig(widths=()), 5)(R), R)


# The projectors of DirectCLR's paper


def test_a_trainable_diagonal_starts_as_the_identity_and_scales_each_dimension():
    projector, R = built("diagonal"), torch.randn(4, D_B)
    assert torch.equal(projector(R), R)
    projector[0].weight.data = torch.arange(D_B).double()
    torch.testing.assert_close(projector(R), R @ torch.diag(torch.arange(D_B).double()))
    assert [p.shape for p in projector.parameters()] == [(D_B,)]


@settings(max_examples=20, deadline=None)
@given(D=st.integers(1, 12), data=st.data())
def test_a_fixed_low_rank_projector_has_d0_singular_values_of_one(D, data):
    d0 = data.draw(st.integers(1, D))
    W = built("low-rank", features=D, d0=d0)[0].weight
    expected = (torch.arange(D) < d0).double()
    torch.testing.assert_close(torch.linalg.svdvals(W), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", ["low-rank", "low-rank-diagonal"])
def test_fixed_projectors_are_not_trained_and_are_saved(kind):
    projector = built(kind)
    assert not any(parameter.requires_grad for parameter in projector.parameters())
    other = built(kind)
    other.load_state_dict(projector.state_dict())
    R = torch.randn(4, D_B)
    assert torch.equal(other(R), projector(R))


@pytest.mark.parametrize("kind", CUTTING)
def test_d0_is_from_one_to_the_dimensions_of_the_representation(kind):
    for d0 in (1, D_B):
        built(kind, d0=d0)
    with pytest.raises(UserError, match="d0"):
        built(kind, d0=0)
    with pytest.raises(UserError, match=r"^projector.d0 is 7, but representations have 6 dimensions; choose 1 to 6"):
        built(kind, d0=D_B + 1)


# DirectCLR


# Random dropout of dimensions


def test_dropout_keeps_d0_dimensions_the_same_for_all_samples_and_different_in_each_step():
    projector, sets = built("dropout", features=40, d0=10, seed=7)[0], []
    for step in range(50):
        projector.before_step(step, TrainingLength())
        mask = projector(torch.ones(5, 40))
        assert (mask == mask[0]).all()
        assert mask[0].sum() == 10
        sets.append(mask[0])
    assert len({tuple(mask.tolist()) for mask in sets}) == 50
    expected, error = 50 * 10 / 40, math.sqrt(50 * 0.25 * 0.75)
    assert (torch.stack(sets).sum(0) - expected).abs().max() < 4 * error  # all dimensions are equally frequent


def test_dropout_is_a_function_of_seed_and_step_and_is_not_saved():
    one, other = (built("dropout", features=40, d0=10, seed=7)[0] for _ in range(2))
    assert not one.state_dict()
    one.before_step(3, TrainingLength()), one.before_step(8, TrainingLength())
    other.before_step(8, TrainingLength())
    assert torch.equal(one.dropped, other.dropped)
    different = built("dropout", features=40, d0=10, seed=8)[0]
    different.before_step(8, TrainingLength())
    assert not torch.equal(one.dropped, different.dropped)


# With every objective


@pytest.mark.parametrize("objective", [name for name, f in OBJECTIVES.items() if tensor_names(f) != ("R",)])
@every_projector
def test_every_objective_takes_every_projector(projector, objective):
    method = table["method"](projector, objective)
    method.before_step(2)
    views, _ = next(iter(table["batches"]()))
    terms = method.terms(method(views))
    assert all(term.isfinite() for term in terms.values())
    loss_of(terms).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in method.parameters() if p.requires_grad)


@pytest.mark.parametrize("objective", ["frossl", "byol"])
@every_projector
def test_a_resumed_run_takes_the_same_steps(projector, objective, fabric):
    """Random choices are a function of the step, so the weights are enough."""

    def losses(method, steps):
        optimizer = torch.optim.SGD(method.parameters(), lr=0.05)
        for step, (views, _) in [*enumerate(table["batches"](4))][steps]:
            method.train().before_step(step)
            embeddings = method(views)
            loss = loss_of(method.terms(embeddings))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            method.after_step(step, {name: embeddings[name].detach() for name in method.input_names})
            yield loss.item()

    whole = table["method"](projector, objective)
    first = list(losses(whole, slice(2)))
    saved = deepcopy(whole.state_dict())
    rest = list(losses(whole, slice(2, 4)))
    other = table["method"](projector, objective, seed=9)
    other.load_state_dict(saved)
    assert list(losses(other, slice(2, 4))) == rest
    assert len({*first, *rest}) == 4


@pytest.fixture(scope="module")
def one():
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        return table["train_all"](Fabric(accelerator="cpu", devices=1, precision="64-true"))
    finally:
        torch.set_default_dtype(default)


@pytest.fixture(scope="module")
def two(together):
    return together(WORKER, 2)


@pytest.mark.ddp
@pytest.mark.parametrize("objective", SELECTED_OBJECTIVES)
@every_projector
def test_two_processes_take_the_step_of_one(projector, objective, one, two):
    expected = one[projector, objective]
    whole = torch.cat([g.flatten() for g in expected["gradients"].values()]).norm()
    assert whole > 0
    for process in two:
        found = process[projector, objective]
        assert found["gradients"].keys() == expected["gradients"].keys()
        for name, g in found["gradients"].items():
            assert (g - expected["gradients"][name]).norm() <= 1e-10 * whole, name
        torch.testing.assert_close(found["losses"], expected["losses"], rtol=1e-10, atol=1e-10)
        for name, value in expected["state"].items():
            torch.testing.assert_close(found["state"][name], value, rtol=1e-9, atol=1e-9)
