"""No step waits for the device, except where it is logged; counted on the CPU, and on a GPU by torch itself."""

from dataclasses import replace

import pytest
import torch
from rich.console import Console

import fullrank
from benchmarks.gpu.syncs import SyncCounter, training_loop
from fullrank.methods import ProjectorConfig
from fullrank.monitoring.run_logger import RunLogger
from fullrank.objectives import OBJECTIVES
from fullrank.recipes import SpectrumConfig, with_objective

QUIET = Console(quiet=True)


def short(small, objective="frossl"):
    """A run of three steps, of which only the last is logged."""
    recipe = replace(small, epochs=1, batch_size=400, checkpoints=1, log_every=1000, spectrum=SpectrumConfig(samples=20, every=1000))
    return with_objective(replace(recipe, projector=ProjectorConfig(widths=(24, 16))), objective)


def count(recipe, path):
    counter = SyncCounter()
    with training_loop(counter):
        fullrank.pretrain(recipe, out=path / "run", console=QUIET)
    return counter.counts


@pytest.mark.parametrize("objective", list(OBJECTIVES))
def test_no_step_waits_for_the_device(objective, small, tmp_path):
    assert not count(short(small, objective), tmp_path)


PLANTED = {
    "item": (lambda x: x.sum().item(), "_local_scalar_dense"),
    "float": (lambda x: float(x.sum()), "_local_scalar_dense"),
    "bool": (lambda x: bool(x.any()), "_local_scalar_dense"),
    "tolist": (lambda x: x.tolist(), "Tensor.tolist"),
    "cpu": (lambda x: x.cpu(), "Tensor.cpu"),
    "to cpu": (lambda x: x.to("cpu"), "Tensor.to"),
    "numpy": (lambda x: x.numpy(), "Tensor.numpy"),
    "nonzero": (lambda x: x.nonzero(), "nonzero"),
    "mask": (lambda x: x[x > 0], "index with a boolean mask"),
    "unique": (lambda x: x.unique(), "_unique2"),
    "a tensor of the host": (lambda x: x + torch.ones(x.shape), "add of tensors on the device and on the host"),
    "a blocking copy": (lambda x: torch.ones(3).to(x.device), "a copy to the device that waits"),
    "a new tensor": (lambda x: torch.tensor([1.0, 2.0], device=x.device), "torch.tensor on the device"),
    "cholesky": (lambda x: torch.linalg.cholesky(torch.eye(3, device=x.device)), "_linalg_check_errors"),
}


@pytest.mark.parametrize("name", list(PLANTED))
def test_a_planted_wait_is_counted_once_per_step(name, small, tmp_path, monkeypatch):
    wait, operation = PLANTED[name]
    after_step = RunLogger.after_step

    def with_wait(self, step, **options):
        wait(step.R)
        after_step(self, step, **options)

    monkeypatch.setattr(RunLogger, "after_step", with_wait)
    (found,) = count(short(small), tmp_path).items()
    assert operation in found[0]
    assert found[1] == 3


def test_what_does_not_wait_is_not_counted():
    counter, x = SyncCounter(), torch.randn(5, 3)
    counter.mark(x)
    host = torch.arange(3.0)
    with counter.watching():
        y = torch.where(x > 0, x, 0.0) @ torch.eye(3, device=x.device)
        y[:, 1:].add_(torch.tensor(2.0))  # a host tensor without dimensions travels with the kernel
        y.sum().backward() if y.requires_grad else y.sum()
        host.tolist(), float(host.sum()), host[host > 1]
        torch.linalg.cholesky_ex(torch.eye(3, device=x.device))
    assert not counter.counts
    assert counter.is_marked(y)
    assert not counter.is_marked(host)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("objective", list(OBJECTIVES))
def test_no_step_waits_for_a_gpu(objective, small, tmp_path):
    from benchmarks.gpu.correctness import without_waiting

    with without_waiting():
        fullrank.pretrain(short(small, objective), out=tmp_path / "run", console=QUIET)
