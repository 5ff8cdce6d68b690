"""Requirements of every method. The method of a new library objective is tested without a change here."""

import runpy
from copy import deepcopy
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from lightning.fabric import Fabric

from fullrank import methods
from fullrank.errors import UserError
from fullrank.methods.backbones import build_backbone, feature_dim
from fullrank.methods.heads import Prototypes
from fullrank.objectives import OBJECTIVES, OF_SUMS, find_objective
from fullrank.objectives.signature import hyperparameters, tensor_names
from fullrank.training import OptimizerConfig, build_optimizer, fit
from process_group import in_float64

WORKER = Path(__file__).with_name("methods_worker.py")
table = runpy.run_path(str(WORKER))
D = table["D"]
every_method = pytest.mark.parametrize("name", methods.METHODS)
every_case = pytest.mark.parametrize("name", table["CASES"])  # every method, and every projector


@pytest.fixture(scope="module")
def fabric():
    return Fabric(accelerator="cpu", devices=1)


def first_views(name, **n):
    return next(iter(table["batches"](name, **n)))[0]


def loss_of(method, views):
    return torch.stack(list(method.terms(method(views)).values())).sum()


@every_method
def test_the_objective_gets_its_tensors_from_the_views_and_the_state(name):
    method = table["method"](name)
    embeddings = method(first_views(name))
    assert {"R", "Z", *method.input_names} <= embeddings.keys()
    assert {*method.input_names, *method.state_tensors()} == {*tensor_names(OBJECTIVES[name])}
    assert all(term.isfinite() for term in method.terms(embeddings).values())


@every_method
def test_three_steps_change_weights_and_state(name, fabric):
    before = table["method"](name).state_dict()
    after = table["train"](name, fabric)["state"]
    for key, value in after.items():
        if not key.endswith(("weight", "bias")) or value.ndim > 1:  # a bias before BatchNorm gets no gradient
            assert not torch.equal(value, before[key]), key


RESNET = methods.BackboneConfig(arguments={"channels": [8, 8, 8, 8], "layers": [1, 1, 1, 1]}, stem="small")
VIT = methods.BackboneConfig(name="test_vit", arguments={"img_size": 32})


@every_method
@pytest.mark.parametrize("spec", [RESNET, VIT], ids=["resnet", "vit"])
def test_every_method_trains_a_resnet_and_a_vit(name, spec, fabric):
    def make_encoder():
        backbone = build_backbone(spec)
        projector = methods.ProjectorConfig(widths=() if "directclr" in name else (16, 6))
        features = feature_dim(backbone)
        return methods.Encoder(backbone, methods.build_projector(projector, features), projector.dimensions(features))

    method = table["method"](name, make_encoder=make_encoder)
    rng = torch.Generator().manual_seed(0)
    views = [torch.rand(2, 12, 3, 32, 32, generator=rng)]
    module, optimizer = fabric.setup(method, build_optimizer(OptimizerConfig(name="adamw", lr=1e-3), method))
    before = deepcopy(method.backbone.state_dict())
    for step in fit(fabric, module, optimizer, [(views, torch.full((12,), -1))] * 2, lambda step: 1e-3):
        assert all(term.isfinite() for term in step.terms.values())
    weights = [key for key, _ in method.backbone.named_parameters()]
    assert any(not torch.equal(method.backbone.state_dict()[key], before[key]) for key in weights)


def start(name, method, fabric, step):
    """The optimizer, and the training from a step on."""
    module, optimizer = fabric.setup(method, build_optimizer(OptimizerConfig(name="adamw", lr=1e-2), method))
    batches = table["batches"](name, start=step)
    return optimizer, fit(fabric, module, optimizer, batches, lambda step: 1e-2, start=step)


@every_case
def test_a_resumed_method_continues_bit_for_bit(name, fabric):
    whole = table["method"](name)
    optimizer, training = start(name, whole, fabric, 0)
    next(training), next(training)
    saved = deepcopy((whole.state_dict(), optimizer.state_dict()))
    last = next(training)

    other = table["method"](name, seed=7)
    assert any(not torch.equal(value, saved[0][key]) for key, value in other.state_dict().items())
    other.load_state_dict(saved[0])
    optimizer, training = start(name, other, fabric, 2)
    optimizer.load_state_dict(saved[1])
    again = next(training)
    assert {key: t.item() for key, t in again.terms.items()} == {key: t.item() for key, t in last.terms.items()}
    assert all(torch.equal(value, other.state_dict()[key]) for key, value in whole.state_dict().items())


def test_prototypes_are_frozen_in_their_first_epochs(fabric):
    for name in ("swav", "dino"):
        method = table["method"](name, freeze=1.0)  # of two steps
        assert isinstance(method.head, Prototypes)
        seen = [method.head.weight.detach().clone()]
        config = OptimizerConfig(name="sgd", lr=0.05, weight_decay=0.0)
        module, optimizer = fabric.setup(method, build_optimizer(config, method))
        for _ in fit(fabric, module, optimizer, table["batches"](name), lambda step: 0.05):
            seen.append(method.head.weight.detach().clone())
        assert [torch.equal(a, b) for a, b in pairwise(seen)] == [True, True, False]


def test_the_queue_of_swav_holds_the_last_embeddings_and_is_used_when_full_and_from_its_start_on(fabric, monkeypatch):
    for start, expected in ((0.0, [None, None, 20]), (1.5, [None, None, None])):
        method, used = table["method"]("swav", queue_start=start), []
        objective = method.objective

        def record(S, queue=None, *, of=objective, seen=used, **hyper):
            seen.append(None if queue is None else queue.clone())
            return of(S, queue, **hyper)

        method.objective = record
        module, optimizer = fabric.setup(method, build_optimizer(OptimizerConfig(name="sgd"), method))
        Z = []
        for step in fit(fabric, module, optimizer, table["batches"]("swav"), lambda step: 0.0):
            Z.insert(0, step.embeddings["Z"][:2])
            rows = torch.nn.functional.normalize(torch.cat(Z, 1), dim=-1)[:, :20]
            torch.testing.assert_close(method.queue[:, : rows.shape[1]], rows)
            assert not method.queue[:, rows.shape[1] :].any()
        assert [None if queue is None else queue.shape[1] for queue in used] == expected
        if used[-1] is not None:
            before = torch.nn.functional.normalize(torch.cat(Z[1:], 1), dim=-1)[:, :20]
            cosines = before @ torch.nn.functional.normalize(method.head.weight, dim=-1).mT
            torch.testing.assert_close(used[-1], cosines.detach())
            assert not used[-1].requires_grad
            method.eval()
            assert len(method.optional_tensors(3)) == 1  # the loss on held-out images uses the queue too


def test_the_temperature_of_dinos_teacher_rises_over_its_warm_up():
    method, views = table["method"]("dino", temperature_warmup=3.0), first_views("dino")
    embeddings = method(views)
    S, T, c = embeddings["S"], embeddings["T"], method.state_tensors()["c"]
    for step, temperature in ((0, 0.2), (3, 0.12), (6, 0.04), (9, 0.04)):  # two steps per epoch
        method.current_step = step
        expected = OBJECTIVES["dino"](S, T, c, teacher_temperature=temperature)
        for name, term in method.terms(embeddings).items():
            torch.testing.assert_close(term, expected[name])
    constant = table["method"]("dino", temperature_warmup=0.0)
    assert not constant.schedules


@pytest.mark.parametrize("name", ["byol + moco", "swav + dino"])
def test_a_sum_has_one_kind_of_networks(name):
    with pytest.raises(UserError, match="need different networks"):
        methods.method_builder(name, find_objective(name))
    assert methods.method_builder("", find_objective("byol + moco_v3")).__name__ == "build_byol"


def test_each_view_can_have_a_separate_encoder(fabric):
    method = table["method"]("frossl", shared=False)
    assert len(method.view_encoders) == 2
    first, second = method.backbone[0].weight, method.view_encoders[0][0][0].weight
    assert not torch.equal(first, second)
    views = first_views("frossl")
    Z = method.eval()(views)["Z"]
    torch.testing.assert_close(Z[0], method.projector(method.backbone(views[0][0])))
    torch.testing.assert_close(Z[1], method.view_encoders[0][1](method.view_encoders[0][0](views[0][1])))
    torch.testing.assert_close(Z[2], method.view_encoders[1][1](method.view_encoders[1][0](views[1][0])))
    loss_of(method, views).backward()
    assert all(p.grad is not None for p in method.parameters())


@pytest.mark.parametrize("builder", dict.fromkeys(methods.METHODS.values()), ids=lambda builder: builder.__name__)
def test_docs_objectives_shows_each_builder_with_its_defaults(builder):
    numbers = ", ".join(f"{name}={default!r}" for name, default in hyperparameters(builder).items())
    page = Path(__file__).parents[2] / "docs/methods.md"
    assert f"`{builder.__name__}({numbers})`" in page.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def one():
    with in_float64():
        return table["main"](Fabric(accelerator="cpu", devices=1, precision="64-true"))


@pytest.fixture(scope="module")
def two(together):
    """The results of each of two processes, for all methods in one process group."""
    return together(WORKER, 2)


@pytest.mark.ddp
@pytest.mark.parametrize("name", [*table["CASES"], *(f"{objective.__name__} shared" for objective in OF_SUMS)])
def test_two_processes_take_the_steps_of_one(name, one, two):
    expected = one[name]
    whole = torch.cat([g.flatten() for g in expected["gradients"]]).norm()
    for process in two:
        found = process[name]
        for g, e in zip(found["gradients"], expected["gradients"], strict=True):
            assert (g - e).norm() <= 1e-10 * whole
        torch.testing.assert_close(torch.stack(found["losses"]), torch.stack(expected["losses"]), rtol=1e-9, atol=1e-9)
        assert found["state"].keys() == expected["state"].keys()
        for key, value in expected["state"].items():
            torch.testing.assert_close(
                found["state"][key], value, rtol=1e-8, atol=1e-9, msg=lambda text, key=key: f"{key}: {text}"
            )


@pytest.mark.ddp
def test_processes_share_the_work_of_an_objective_of_sums(one, two):
    assert (one["shared"], *(process["shared"] for process in two)) == (0, 3 * len(OF_SUMS), 3 * len(OF_SUMS))


@pytest.mark.ddp
def test_sharing_exchanges_no_embeddings_forward_or_backward(one, two):
    assert set(one["exchanges"].values()) == {0}
    for process in two:
        assert {0 < numbers <= 2 * table["D"] ** 2 for numbers in process["exchanges"].values()} == {True}


@pytest.mark.ddp
@every_case
def test_the_state_is_the_same_on_every_process(name, two):
    first, other = (process[name]["state"] for process in two)
    assert all(torch.equal(value, other[key]) for key, value in first.items())
