"""No step makes the host wait for the device, except where it is logged; counted on the CPU, and on a GPU by torch
itself."""

from dataclasses import replace

import pytest
import torch
from rich.console import Console

import fullrank
from benchmarks.gpu.syncs import SyncCounter, training_loop, without_waiting
from fullrank.methods import ProjectorConfig
from fullrank.objectives import OBJECTIVES
from fullrank.recipes import SpectrumConfig, with_objective
from fullrank.run.logger import RunLogger
from fullrank.testing.case import loss_of, objective_case

QUIET = Console(quiet=True)
# The projector alone, a queue and a teacher, prototypes, a teacher's head, no projector.
METHODS = ("frossl", "moco", "swav", "dino", "directclr")


def short(small, objective="frossl"):
    """A run of three steps of LARS with a limit of the gradient, of which only the last is logged."""
    spectrum = SpectrumConfig(samples=20, every=1000)
    optimizer = replace(small.optimizer, name="lars", clip_norm=1.0)
    recipe = replace(small, epochs=1, batch_size=400, checkpoints=1, log_every=1000, spectrum=spectrum)
    recipe = with_objective(replace(recipe, optimizer=optimizer, projector=ProjectorConfig(widths=(24, 16))), objective)
    if objective == "swav":
        recipe = replace(recipe, method={"queue": 400})
    return replace(recipe, hyper=recipe.hyper | {"d0": 4}) if "d0" in recipe.hyper else recipe


def count(recipe, path):
    counter = SyncCounter()
    with training_loop(counter):
        fullrank.pretrain(recipe, out=path / "run", console=QUIET)
    return counter.counts


@pytest.mark.parametrize("objective", METHODS)
def test_no_step_waits_for_the_device(objective, small, tmp_path):
    assert not count(short(small, objective), tmp_path)


# LeJEPA draws its directions on the host, equal on all processes, and copies them, which this counter takes for a mix.
@pytest.mark.parametrize("name", [name for name in OBJECTIVES if name not in ("lejepa", "visreg", "rdmreg")])
def test_no_objective_waits_for_the_device(name):
    case = objective_case(OBJECTIVES[name], hyper={"d0": 4} if name.startswith("directclr") else None)
    counter = SyncCounter()
    tensors = {key: t.float().requires_grad_(key in case.embedding_names) for key, t in case.random_tensors().items()}
    counter.mark(*tensors.values())
    with counter.watching():
        loss_of(case, tensors).backward()
        case.next_state({key: t.detach() for key, t in tensors.items()})
    assert not counter.counts


def test_a_wait_that_is_planted_into_the_loop_is_counted_in_each_step(small, tmp_path, monkeypatch):
    after_step, log_train = RunLogger.after_step, RunLogger.log_train

    def waiting_step(self, step, **options):
        step.R.sum().item()
        self.run.method.backbone.conv1.weight[0, 0].tolist()
        after_step(self, step, **options)

    def waiting_log(self, step, probed):
        step.R.sum().item()  # allowed
        log_train(self, step, probed)

    monkeypatch.setattr(RunLogger, "after_step", waiting_step)
    monkeypatch.setattr(RunLogger, "log_train", waiting_log)
    found = {name.rpartition(" ")[2]: times for name, times in count(short(small), tmp_path).items()}
    assert found == {"_local_scalar_dense": 3, "Tensor.tolist": 3}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("objective", [name for name in OBJECTIVES if name != "ivne"])  # eigvalsh waits on a GPU
def test_no_step_waits_for_a_gpu(objective, small, tmp_path):
    with without_waiting():
        fullrank.pretrain(short(small, objective), out=tmp_path / "run", console=QUIET)
