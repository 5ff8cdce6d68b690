"""Several processes: one run, equal to that of one process, also after it was stopped, killed and resumed."""

import importlib
import json
import multiprocessing
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console

import fullrank
from fullrank.cli import main
from fullrank.errors import ProcessFailed, UserError
from fullrank.recipes import MachineConfig, ProbeConfig, Recipe, to_dict, with_objective
from fullrank.run import Run
from fullrank.run.processes import explain_failure, launch_fabric, launched_world_size, resolve_devices, run_processes
from fullrank.training import OptimizerConfig

ROOT = Path(__file__).parents[2]
STEPS = 22
CPU, CPU2, CPU4000 = (Recipe(machine=MachineConfig(accelerator="cpu", devices=n)) for n in (1, 2, 4000))


@pytest.fixture
def torchrun(monkeypatch):
    """`torchrun(4)`: the environment variables of one of four processes."""

    def launch(world):
        ranks = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
        for name, value in (ranks | {"TORCHELASTIC_RUN_ID": "x"}).items():
            monkeypatch.setenv(name, str(value))

    return launch


def test_the_number_of_devices_is_that_of_the_caller_of_the_recipe_or_of_torchrun(torchrun):
    assert launched_world_size() == 0
    assert resolve_devices(CPU).machine.devices == 1
    assert resolve_devices(CPU2).machine.devices == 2
    with pytest.raises(UserError, match="asks for 4000 devices, but this machine has"):
        resolve_devices(CPU4000)
    torchrun(4)
    assert resolve_devices(CPU).machine.devices == 4
    with pytest.raises(UserError, match="torchrun started 4 processes, but the run asks for 2"):
        resolve_devices(CPU2)


def test_processes_of_another_launcher_do_not_become_several_runs_but_a_job_of_slurm_is_one(monkeypatch):
    for name in ("SLURM_NTASKS", "SLURM_JOB_ID"):
        monkeypatch.setenv(name, "4")
    assert launch_fabric(CPU).world_size == 1
    assert not torch.distributed.is_initialized()
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "2")
    with pytest.raises(UserError, match="SLURM_STEP_NUM_TASKS is 2, but torchrun did not start this process"):
        launched_world_size()


@pytest.fixture(scope="module")
def small_steps(small):
    """A recipe in double precision with steps so small that they do not amplify rounding, which grows up to tenfold a
    step at the learning rate of `small`, also on one process.
    """
    optimizer, probe = OptimizerConfig(name="sgd", lr=1e-4), ProbeConfig(epochs=(1.0, 2.0))
    machine = replace(small.machine, precision="64-true")
    return replace(with_objective(small, "vicreg"), optimizer=optimizer, probe=probe, machine=machine)


@pytest.fixture(scope="module")
def whole(small_steps, train):
    """`small_steps` on one process."""
    return train(small_steps)


@pytest.fixture
def recipe_file(small_steps, tmp_path):
    path = tmp_path / "recipe.json"
    path.write_text(json.dumps(to_dict(small_steps)))
    return str(path)


def assert_same_but_for_rounding(run, other, tolerance=1e-12):
    """The same curve and scores, and ‖w − w'‖ ≤ `tolerance` ‖w‖ for all weights and statistics."""
    for name in ("train", "online", "spectrum"):
        rows, others = (getattr(each.metrics, name) for each in (run, other))
        assert [row.step for row in rows] == [row.step for row in others]
    for row, same in zip(run.metrics.train, other.metrics.train, strict=True):
        assert row.loss == pytest.approx(same.loss, rel=tolerance)
    for row, same in zip(run.metrics.online, other.metrics.online, strict=True):
        assert row.accuracy == pytest.approx(same.accuracy, abs=tolerance)
    weights, same = run.checkpoint().weights(), other.checkpoint().weights()
    assert weights.keys() == same.keys()
    w, v = (torch.cat([weights[name].flatten().double() for name in weights]) for weights in (weights, same))
    assert (w - v).norm() <= tolerance * w.norm()


def when_logged(path, step, act):
    """Call `act` in another thread when the run at `path` has logged `step`."""

    def wait():
        while f'"step": {step},' not in (log.read_text() if (log := path / "metrics.jsonl").exists() else ""):
            time.sleep(0.005)
        act()

    threading.Thread(target=wait, daemon=True).start()


def workers():
    """The pids of the processes of a run that this process has started, by rank."""
    found = multiprocessing.active_children()  # SpawnProcess-1 is that of rank 0
    return [process.pid for process in sorted(found, key=lambda process: int(process.name.rpartition("-")[2]))]


def test_a_process_that_fails_before_it_writes_does_not_offer_the_run_that_it_would_replace(copy):
    for overwrite, expected in ((True, "nothing was written"), (False, f"--resume {copy}")):
        with pytest.raises(ProcessFailed, match=expected), explain_failure(copy, overwrite=overwrite):
            raise ProcessFailed("out of memory")


@pytest.mark.ddp
def test_a_killed_process_ends_the_run_which_continues_on_two_and_on_one_process(whole, recipe_file, tmp_path, capfd):
    path = tmp_path / "runs" / "two"
    when_logged(path, 7, lambda: os.kill(workers()[1], signal.SIGKILL))
    assert main(["pretrain", recipe_file, "--devices", "2", "--out", str(path)]) == 1
    out, err = capfd.readouterr()
    assert out == ""
    assert "Traceback" not in err
    saved = Run(path).checkpoint().step
    assert err.splitlines()[-1] == (
        "fullrank: process 1 of 2 (counted from 0) was terminated by SIGKILL (possibly out of memory); "
        f"the checkpoint of step {saved} is complete; continue with: fullrank pretrain --resume {path}"
    )
    assert workers() == []

    reached = max(row.step for row in Run(path).metrics)
    assert saved <= reached < STEPS - 2
    when_logged(path, reached + 1, lambda: os.kill(workers()[1], signal.SIGTERM))
    assert main(["pretrain", "--resume", str(path)]) == 143
    saved = Run(path).checkpoint().step
    last = f"fullrank: stopped after step {saved} of {STEPS}; continue with: fullrank pretrain --resume {path}"
    assert capfd.readouterr().err.splitlines()[-1] == last
    assert reached < saved < STEPS

    assert main(["pretrain", "--resume", str(path), "--devices", "1"]) == 0
    assert_same_but_for_rounding(Run(path), whole)
    assert [entry.name for entry in path.parent.iterdir()] == ["two"]


@pytest.mark.ddp
def test_a_signal_stops_all_processes_after_the_same_step(small_steps, tmp_path):
    path, signum = tmp_path / "run", signal.SIGINT
    handler = signal.getsignal(signum)
    when_logged(path, 9, lambda: os.kill(os.getpid(), signum))
    with pytest.raises(fullrank.errors.Interrupted, match=r"stopped after step \d+ of 22") as stop:
        fullrank.pretrain(small_steps, out=path, devices=2, console=Console(quiet=True))
    assert stop.value.signum == signum
    assert signal.getsignal(signum) is handler
    run = Run(path)
    assert run.checkpoint().step == max(row.step for row in run.metrics)


def script_of_the_page(recipe_file, path, tmp_path):
    """Return the command of docs/clusters.md on two nodes of one process, with commands in place of SLURM's."""
    (script,) = re.findall(r"```bash\n(#!/bin/bash.*?)```", (ROOT / "docs/clusters.md").read_text(), re.DOTALL)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    changes = {"imagenet --data /data/imagenet --out runs/imagenet": f"{recipe_file} --out {path}"}
    for written, tested in (changes | {"--nproc-per-node 4": "--nproc-per-node 1", "29500": str(port)}).items():
        assert written in script
        script = script.replace(written, tested)
    torchrun = f'exec {sys.executable} -m torch.distributed.run "$@"'
    commands = {"srun": '"$@" & "$@" && wait $!', "scontrol": "echo 127.0.0.1", "torchrun": torchrun}
    for name, command in commands.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{command}\n")
        (tmp_path / name).chmod(0o755)
    return ["env", f"PATH={tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID=7", "bash", "-c", script]


@pytest.mark.ddp
@pytest.mark.parametrize("nodes", [1, 2])
def test_torchrun_trains_one_run_with_one_log(whole, recipe_file, tmp_path, nodes):
    path = tmp_path / "run"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["-m", "fullrank", "pretrain", recipe_file, "--out", str(path)]
    command = script_of_the_page(recipe_file, path, tmp_path) if nodes == 2 else command
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert_same_but_for_rounding(Run(path), whole)
    assert done.stderr.count(f"step {STEPS}/{STEPS} ") == done.stderr.count(f"run: {path}") == 1
    assert Run(path).recipe.machine.devices == Run(path).environment["processes"] == 2
    assert len(re.findall(r'"kind": "train"', (path / "metrics.jsonl").read_text())) == STEPS


@pytest.mark.ddp
def test_the_error_of_one_process_is_raised_and_nothing_is_written(small, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "losses.py").write_text(
        "from fullrank.distributed import rank\nfrom fullrank.errors import NotFiniteError\n"
        "from fullrank.objectives import frossl\n"
        "def loss(Z):\n    if rank() == 1:\n        raise NotFiniteError('not here; fix it')\n    return frossl(Z)\n"
        "def crash():\n    1 / 0\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match=r"^not here; fix it$"):
        fullrank.pretrain(with_objective(small, "losses:loss"), devices=2, console=Console(quiet=True))
    assert not list((tmp_path / "runs").glob("*"))
    with pytest.raises(ProcessFailed, match=r"process [01] of 2 .* failed with ZeroDivisionError: division") as raised:
        run_processes(importlib.import_module("losses").crash, {}, 2)
    assert "1 / 0" in raised.value.__notes__[0]
