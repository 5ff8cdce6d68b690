"""Compare the training loop with a loop written by hand, and two processes with one."""

import math
import runpy
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from lightning.fabric import Fabric

from fullrank.errors import UserError
from fullrank.methods import BackboneConfig, JointEmbedding
from fullrank.methods.backbones import build_backbone
from fullrank.methods.projectors import ProjectorConfig, build_projector
from fullrank.objectives import vicreg
from fullrank.training import OptimizerConfig, build_optimizer, fit
from process_group import in_float64

WORKER = Path(__file__).with_name("fit_worker.py")
SCRIPT = runpy.run_path(str(WORKER))


@pytest.fixture(scope="module")
def fabric():
    return Fabric(accelerator="cpu", devices=1)


@pytest.fixture
def method():
    """A small network with BatchNorm."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        arguments = {"channels": [8, 8, 8, 16], "layers": [1, 1, 1, 1]}
        backbone = build_backbone(BackboneConfig(arguments=arguments, stem="small"))
        return JointEmbedding(backbone, build_projector(ProjectorConfig(widths=(12, 6)), 16), vicreg)


@pytest.fixture
def batches():
    rng = torch.Generator().manual_seed(0)
    return [([torch.randn(2, 10, 3, 16, 16, generator=rng)], torch.arange(10) + 100 * step) for step in range(3)]


def rate(step):
    return 0.2 / (step + 1)


def run(fabric, method, batches, **numbers):
    module, optimizer = fabric.setup(method, build_optimizer(OptimizerConfig(name="sgd", lr=9.0), method))
    return fit(fabric, module, optimizer, batches, rate, **numbers)


def manual_loop(method, batches):
    """Yield the losses of SGD on the same data."""
    optimizer = build_optimizer(OptimizerConfig(name="sgd", lr=9.0), method)
    method.train()
    for step, (views, _) in enumerate(batches):
        for group in optimizer.param_groups:
            group["lr"] = rate(step)
        terms = vicreg(torch.stack([method.projector(method.backbone(view)) for view in views[0]]))
        optimizer.zero_grad()
        torch.stack(list(terms.values())).sum().backward()
        optimizer.step()
        yield {name: term.item() for name, term in terms.items()}


def test_three_steps_equal_a_loop_written_by_hand_bit_for_bit(fabric, method, batches):
    other = deepcopy(method)
    found = [{name: term.item() for name, term in step.terms.items()} for step in run(fabric, method, batches)]
    assert found == list(manual_loop(other, batches))
    assert all(torch.equal(value, other.state_dict()[name]) for name, value in method.state_dict().items())


def test_a_step_covers_the_batch_and_is_detached(fabric, method, batches):
    for index, step in enumerate(run(fabric, method, batches, start=7)):
        assert step.step == 8 + index
        assert step.lr == rate(7 + index)
        assert step.R.shape == (2, 10, 16)
        assert {name: tuple(Z.shape) for name, Z in step.embeddings.items()} == {"Z": (2, 10, 6)}
        assert torch.equal(step.labels, batches[index][1])
        tensors = [*step.terms.values(), step.R, *step.embeddings.values()]
        assert not any(tensor.requires_grad or tensor.grad_fn for tensor in tensors)


@pytest.mark.parametrize("share", [0.25, 2.0])
def test_a_longer_gradient_than_the_limit_is_scaled_down_to_it(fabric, method, batches, share):
    terms = deepcopy(method).train()
    torch.stack(list(terms.terms(terms(batches[0][0])).values())).sum().backward()
    norm = math.sqrt(sum(p.grad.square().sum().item() for p in terms.parameters()))
    next(run(fabric, method, batches, clip_norm=share * norm))
    for mine, other in zip(method.parameters(), terms.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, min(share, 1) * other.grad, rtol=1e-4, atol=1e-7)


def test_terms_that_change_during_training_are_one_line(fabric, method, batches):
    def changing(Z):
        return vicreg(Z) | ({"new": Z.mean()} if changing.calls.pop() else {})

    changing.calls = [True, False]
    method.objective = changing
    with pytest.raises(UserError, match="covariance, new in step 2, but invariance, variance, covariance before"):
        list(run(fabric, method, batches))


def test_only_the_decay_of_the_weights_follows_its_schedule(fabric, method, batches):
    config = OptimizerConfig(name="adamw", lr=1.0, weight_decay=0.04, last_weight_decay=0.4)
    module, optimizer = fabric.setup(method, build_optimizer(config, method))
    decays = []
    for _ in fit(fabric, module, optimizer, batches, rate, weight_decay=lambda step: (step + 1) / 8):
        decays.append({group["weight_decay"] for group in optimizer.param_groups if group["params"]})
    assert decays == [{0.125, 0.0}, {0.25, 0.0}, {0.375, 0.0}]
    weights = {id(p) for group in optimizer.param_groups if group["weight_decay"] for p in group["params"]}
    assert weights == {id(p) for p in method.parameters() if p.ndim > 1}


# Two processes and one


@pytest.fixture(scope="module")
def two_processes(together):
    return together(WORKER)


@pytest.fixture(scope="module")
def here():
    """Name → the three steps of `fit_worker` in this process, on the whole batch without micro-batches."""
    train = SCRIPT["train"]
    with in_float64():
        fabric = Fabric(accelerator="cpu", devices=1, precision="64-true")
        numbers = {"undivided": {}, "divided without BatchNorm": {"batchnorm": False}}
        numbers["clipped"] = {"batchnorm": False, "clip_norm": SCRIPT["CLIP"]}
        numbers |= {"random": {"objective": SCRIPT["sliced"]}, "labels": {"objective": SCRIPT["supervised"]}}
        return {name: train(fabric, **each) for name, each in numbers.items()}


@pytest.mark.ddp
@pytest.mark.parametrize("name", ["undivided", "random", "labels", "divided without BatchNorm", "clipped"])
def test_two_processes_take_the_steps_of_one(name, here, two_processes):
    wanted = here[name]["weights"]
    for process in two_processes:
        assert process[name]["weights"].keys() == wanted.keys()
        for key, weight in wanted.items():
            torch.testing.assert_close(process[name]["weights"][key], weight, rtol=1e-10, atol=1e-10)
    unclipped = here["divided without BatchNorm"]["weights"]["projector.0.weight"]
    assert not torch.allclose(here["clipped"]["weights"]["projector.0.weight"], unclipped, rtol=1e-3)


def test_an_objective_that_takes_labels_gets_those_of_the_batch(here):
    for step in here["labels"]["steps"]:
        none = torch.full_like(step["labels"], -1)
        own, unlabelled = (SCRIPT["supervised"](step["Z"], each)["contrast"].item() for each in (step["labels"], none))
        assert own == pytest.approx(step["terms"]["contrast"].item(), rel=1e-12)
        assert own != pytest.approx(unlabelled, rel=1e-3)


@pytest.mark.ddp
def test_every_process_has_the_terms_and_the_embeddings_of_the_whole_batch(here, two_processes):
    for process in two_processes:
        for found, wanted in zip(process["undivided"]["steps"], here["undivided"]["steps"], strict=True):
            assert found["lr"] == wanted["lr"]
            assert torch.equal(found["labels"], wanted["labels"])
            for name in ("R", "Z", "terms"):
                torch.testing.assert_close(found[name], wanted[name], rtol=1e-10, atol=1e-10)
