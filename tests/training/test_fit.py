"""The loop on one process against a loop written by hand, and on two against one."""

import runpy
import subprocess
import sys
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from lightning.fabric import Fabric

from fullrank.methods import Backbone, JointEmbedding, Projector, build_backbone, build_projector
from fullrank.objectives import vicreg
from fullrank.training import Optimizer, build_optimizer, fit

WORKER = Path(__file__).with_name("fit_worker.py")
WORLD = 2


@pytest.fixture(scope="module")
def fabric():
    return Fabric(accelerator="cpu", devices=1)


@pytest.fixture
def method():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        backbone = build_backbone(Backbone(arguments={"channels": [8, 8, 8, 16], "layers": [1, 1, 1, 1]}, stem="small"))
        return JointEmbedding(backbone, build_projector(Projector(widths=(12, 6)), 16), vicreg)


@pytest.fixture
def batches():
    rng = torch.Generator().manual_seed(0)
    return [([torch.randn(2, 10, 3, 16, 16, generator=rng)], torch.arange(10) + 100 * step) for step in range(3)]


def rate(step):
    return 0.2 / (step + 1)


def run(fabric, method, batches, **numbers):
    module, optimizer = fabric.setup(method, build_optimizer(Optimizer(name="sgd", lr=9.0), method))
    return fit(fabric, module, optimizer, batches, rate, **numbers)


def by_hand(method, batches):
    """Yield the losses of SGD on the same data."""
    optimizer = build_optimizer(Optimizer(name="sgd", lr=9.0), method)
    method.train()
    for step, (views, _) in enumerate(batches):
        for group in optimizer.param_groups:
            group["lr"] = rate(step)
        terms = vicreg(torch.stack([method.projector(method.backbone(view)) for view in views[0]]))
        optimizer.zero_grad()
        torch.stack(list(terms.values())).sum().backward()
        optimizer.step()
        yield {name: term.item() for name, term in terms.items()}


def test_three_steps_are_those_of_a_loop_written_by_hand_bit_for_bit(fabric, method, batches):
    other = deepcopy(method)
    found = [{name: term.item() for name, term in step.terms.items()} for step in run(fabric, method, batches)]
    assert found == list(by_hand(other, batches))
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


def test_between_steps_the_gradients_of_the_last_one_can_be_read(fabric, method, batches):
    other = deepcopy(method)
    terms = other.terms(other.train()(batches[0][0]))
    torch.stack(list(terms.values())).sum().backward()
    next(run(fabric, method, batches))
    for mine, wanted in zip(method.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine.grad, wanted.grad)


def test_whoever_looks_between_steps_leaves_no_trace(fabric, method, batches):
    other = deepcopy(method)
    for _ in run(fabric, method, batches):
        method.eval()
        method.projector(torch.randn(4, 16)).sum().backward()
    list(by_hand(other, batches))
    assert all(torch.equal(value, other.state_dict()[name]) for name, value in method.state_dict().items())


def test_nothing_happens_before_the_first_step_is_asked_for(fabric, method, batches):
    before = deepcopy(method.state_dict())
    run(fabric, method, batches)
    assert all(torch.equal(value, before[name]) for name, value in method.state_dict().items())


def test_the_hook_is_called_after_each_step_with_its_index(fabric, method, batches):
    seen = []
    method.after_step = lambda step: seen.append((step, method.projector[0].weight.detach().clone()))
    for step in run(fabric, method, batches, start=4):
        assert seen[-1][0] == step.step - 1
        assert torch.equal(seen[-1][1], method.projector[0].weight)
    assert [index for index, _ in seen] == [4, 5, 6]


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two")
    processes = [
        subprocess.Popen([sys.executable, WORKER, str(r), str(WORLD), folder], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for r in range(WORLD)
    ]
    try:
        outputs = [process.communicate(timeout=300)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert all(process.returncode == 0 for process in processes), "\n".join(outputs)
    return [torch.load(folder / f"{r}.pt") for r in range(WORLD)]


@pytest.fixture(scope="module")
def one():
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        return runpy.run_path(str(WORKER))["train"](Fabric(accelerator="cpu", devices=1, precision="64-true"))
    finally:
        torch.set_default_dtype(default)


@pytest.mark.ddp
def test_two_processes_with_different_data_take_the_steps_of_one(one, two):
    for process in two:
        assert process["weights"].keys() == one["weights"].keys()
        for name, wanted in one["weights"].items():
            torch.testing.assert_close(process["weights"][name], wanted, rtol=1e-10, atol=1e-10)


@pytest.mark.ddp
def test_every_process_sees_the_terms_and_the_embeddings_of_the_whole_batch(one, two):
    for process in two:
        for found, wanted in zip(process["steps"], one["steps"], strict=True):
            assert found["lr"] == wanted["lr"]
            assert torch.equal(found["labels"], wanted["labels"])
            for name in ("R", "Z", "terms"):
                torch.testing.assert_close(found[name], wanted[name], rtol=1e-10, atol=1e-10)


@pytest.mark.ddp
def test_the_steps_are_worth_comparing(one):
    first, *_, last = one["steps"]
    assert abs(sum(last["terms"].values()) - sum(first["terms"].values())) > 1e-3
    assert first["Z"].dtype == torch.float64
