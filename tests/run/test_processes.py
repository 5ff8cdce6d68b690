"""A run on two processes equals the run on one process, also after it was stopped, killed and resumed."""

import json
import os
import re
import signal
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console

import fullrank
from fullrank.cli import main
from fullrank.errors import UserError
from fullrank.recipes import ProbeConfig, to_dict, with_objective
from fullrank.run import Run
from fullrank.training import OptimizerConfig

pytestmark = pytest.mark.ddp
STEPS = 22


@pytest.fixture(scope="module")
def small_steps(small):
    """`small_steps(precision)`: a recipe with steps so small that they do not amplify rounding.

    At the learning rate of the recipe, rounding errors grow up to tenfold a step, also on one process. These steps are
    still large
    enough: steps half as large again change the loss by 1e-3.
    """

    def recipe(precision):
        machine = replace(small.machine, precision=precision)
        optimizer, probe = OptimizerConfig(name="sgd", lr=1e-4), ProbeConfig(epochs=(1.0, 2.0))
        return replace(with_objective(small, "vicreg"), optimizer=optimizer, probe=probe, machine=machine)

    return recipe


@pytest.fixture(scope="module")
def whole(small_steps, train):
    """`small_steps` in double precision, on one process."""
    return train(small_steps("64-true"))


@pytest.fixture
def as_json(tmp_path):
    """`as_json(recipe)`: the path of a recipe's file."""

    def write(recipe):
        path = tmp_path / "recipe.json"
        path.write_text(json.dumps(to_dict(recipe)))
        return path

    return write


def assert_same_but_for_rounding(run, other, tolerance):
    """The same curve, and ‖w − w'‖ ≤ `tolerance` ‖w‖ for all weights and statistics."""
    rows, others = (each.metrics.train for each in (run, other))
    assert [row.step for row in rows] == [row.step for row in others] == list(range(1, STEPS + 1))
    for row, same in zip(rows, others, strict=True):
        assert row.loss == pytest.approx(same.loss, rel=tolerance)
    scores, others = (each.metrics.online for each in (run, other))
    assert (
        [(row.step, row.images) for row in scores]
        == [(row.step, row.images) for row in others]
        == [(11, 359), (22, 359)]
    )
    for row, same in zip(scores, others, strict=True):
        assert row.accuracy == pytest.approx(
            same.accuracy, abs=1e-12 if tolerance < 1e-10 else 2 / 359
        )  # float32: a few ties
    weights, same = run.checkpoint().weights(), other.checkpoint().weights()
    assert weights.keys() == same.keys()
    w, v = (torch.cat([weights[name].flatten().double() for name in weights]) for weights in (weights, same))
    assert (w - v).norm() <= tolerance * w.norm()
    assert (run.spectra.steps == other.spectra.steps).all()


def when_logged(path, step, act):
    """Call `act` in another thread when the run at `path` has logged `step`; return the thread."""

    def wait():
        while f'"step": {step},' not in (log.read_text() if (log := path / "metrics.jsonl").exists() else ""):
            time.sleep(0.005)
        act()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


def kill_rank_1():
    """Kill the process of rank 1 that this process has started."""
    children = Path(f"/proc/{os.getpid()}/task/{threading.main_thread().native_id}/children").read_text().split()
    (pid,) = (pid for pid in children if b"\0RANK=1\0" in Path(f"/proc/{pid}/environ").read_bytes())
    os.kill(int(pid), signal.SIGKILL)


def test_the_command_line_trains_one_run_with_one_log(small_steps, train, as_json, tmp_path, capfd):
    recipe = small_steps("32-true")
    path = tmp_path / "runs" / "two"
    assert main(["pretrain", str(as_json(recipe)), "--devices", "2", "--out", str(path)]) == 0
    out, err = capfd.readouterr()
    assert out == ""
    assert_same_but_for_rounding(Run(path), train(recipe), 1e-5)
    assert [entry.name for entry in path.parent.iterdir()] == ["two"]
    assert max(Counter(re.findall(r'"kind": "\w+", "step": \d+', (path / "metrics.jsonl").read_text())).values()) == 1
    assert len(list((path / "tensorboard").iterdir())) == 1
    assert Run(path).recipe.machine.devices == 2
    assert json.loads((path / "environment.json").read_text())["processes"] == 2
    assert (path / "report.html").exists()
    lines = err.splitlines()
    assert lines[0].startswith("digits has no test split")
    steps = [int(line.split("/")[0].removeprefix("step ")) for line in lines if line.startswith("step ")]
    assert steps[-1] == STEPS
    assert len({*steps}) == len(steps) <= 20
    assert lines[-3:] == [f"run: {path}", f"report: {path / 'report.html'}", f"next: fullrank evaluate {path}"]
    others = [line for line in lines if not line.startswith("step ")]
    assert len(set(others)) == len(others) == 1 + 4 + 2 + 3, (
        "the split, the forecast, the scores, the end, and no line of a launcher"
    )


def test_torchrun_trains_the_same_run(whole, small_steps, as_json, tmp_path, start):
    path = tmp_path / "run"
    torchrun = ("-m", "torch.distributed.run", "--nproc-per-node", "2")
    process = start(as_json(small_steps("64-true")), "--out", path, by=torchrun)
    _, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    assert_same_but_for_rounding(Run(path), whole, 1e-12)
    assert err.count(f"step {STEPS}/{STEPS} ") == err.count(f"run: {path}") == 1


def test_a_run_is_equal_after_kill_and_resume_on_another_number_of_processes(
    whole, small_steps, as_json, tmp_path, capfd
):
    path = tmp_path / "run"
    killer = when_logged(path, 7, kill_rank_1)
    assert main(["pretrain", str(as_json(small_steps("64-true"))), "--devices", "2", "--out", str(path)]) == 1
    killer.join()
    err = capfd.readouterr().err
    named = r"fullrank: process 1 of 2 \(counted from 0\) was terminated by SIGKILL \(possibly out of memory\); "
    saved = Run(path).checkpoint().step
    continued = rf"the checkpoint of step {saved} is complete; continue with: fullrank pretrain --resume {path}"
    assert re.fullmatch(named + continued, err.splitlines()[-1])
    assert "Traceback" not in err

    reached = max(row.step for row in Run(path).metrics)
    assert saved <= reached < STEPS - 2
    when_logged(path, reached + 1, lambda: os.kill(os.getpid(), signal.SIGTERM))
    assert main(["pretrain", "--resume", str(path)]) == 143
    last = capfd.readouterr().err.splitlines()[-1]
    saved = Run(path).checkpoint().step
    assert last == f"fullrank: stopped after step {saved} of {STEPS}; continue with: fullrank pretrain --resume {path}"
    assert reached < saved < STEPS

    assert main(["pretrain", "--resume", str(path), "--devices", "1"]) == 0
    assert_same_but_for_rounding(Run(path), whole, 1e-12)


def test_a_user_error_of_one_process_is_raised_and_writes_nothing(small, tmp_path, monkeypatch):
    (tmp_path / "losses.py").write_text(
        "from fullrank.distributed import rank\nfrom fullrank.errors import UserError\nfrom fullrank.objectives import frossl\n"
        "def loss(Z):\n    if rank() == 1:\n        raise UserError('not here; fix it')\n    return frossl(Z)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match=r"^not here; fix it$"):
        fullrank.pretrain(
            with_objective(small, "losses:loss"), out=tmp_path / "run", devices=2, console=Console(quiet=True)
        )
    assert not (tmp_path / "run").exists()
