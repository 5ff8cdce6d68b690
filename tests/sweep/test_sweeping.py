"""Runs of a sweep: as jobs of submitit, resumed, retried, shared by several callers, and stopped together."""

import os
import re
import signal
import threading
import time
from dataclasses import replace
from io import StringIO

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from fullrank.errors import Interrupted, ProcessFailed, UserError
from fullrank.images.parallel import process_context
from fullrank.recipes import DataConfig, import_function, with_objective
from fullrank.run import Run
from fullrank.run.directory import run_lock
from fullrank.sweep import Cell, EvaluationPlan, Jobs, identify, jobs, read_row, require_success, run_cell, run_sweep

QUIET = Console(quiet=True)
KNN = EvaluationPlan(probes=("knn",))
NOTHING = EvaluationPlan(probes=())
HERE = Jobs(cluster="debug")
FRAGILE = """
from pathlib import Path

CALLS = []

def fragile(Z, *, weight: float = 1.0):
    CALLS.append(1)
    if len(CALLS) > 12 and (Path(__file__).parent / "fail").exists():
        raise RuntimeError("the cable was pulled")
    return {"spread": -weight * Z.var(1).clamp(max=1).mean(), "invariance": (Z - Z.mean(0)).square().mean()}
"""


@pytest.fixture
def tiny(small):
    data = replace(small.data, subset=256)
    return replace(small, epochs=1, batch_size=64, checkpoints=5, keep_checkpoints=2, data=data)


@pytest.fixture
def long(tiny):
    return replace(tiny, epochs=400, checkpoints=100)


def cells(recipe, count, evaluate=KNN):
    return [Cell(f"seed{seed}", replace(recipe, seed=seed), {}, evaluate) for seed in range(count)]


def sweep_of(found, folder, jobs=HERE, **options):
    return run_sweep(lambda rows: found, folder, jobs, **{"console": QUIET} | options)


def test_a_second_call_takes_what_is_done_and_measures_what_is_new(tiny, tmp_path):
    rows = sweep_of(cells(tiny, 2), tmp_path)
    assert [(row.seed, row.status, row.steps, row.data) for row in rows] == [(k, "done", 4, "digits") for k in (0, 1)]
    assert all(0 < row.scores["digits"]["knn"] <= 1 and row.effective_rank["backbone"] > 1 for row in rows)
    assert all(row.train_images == 256 and row.test_images == 359 and row.environment["torch"] for row in rows)
    before = (tmp_path / "seed0" / "row.json").stat().st_mtime_ns
    assert sweep_of(cells(tiny, 2), tmp_path) == rows
    assert (tmp_path / "seed0" / "row.json").stat().st_mtime_ns == before
    (more,) = sweep_of(cells(tiny, 1, EvaluationPlan(probes=("knn", "few-shot"))), tmp_path)  # only evaluates
    assert more.score("few-shot")
    assert (more.score("knn"), more.seconds) == (rows[0].score("knn"), rows[0].seconds)
    with pytest.raises(UserError, match=r"optimizer\.momentum .*give another folder \(--out .*run seed0"):
        sweep_of(cells(replace(tiny, optimizer=replace(tiny.optimizer, momentum=0.5)), 2), tmp_path)


def test_one_failed_job_does_not_end_the_others_and_the_next_call_goes_on(tiny, tmp_path, monkeypatch):
    """Two real processes at the same time; one raises."""
    (tmp_path / "fragile_objective.py").write_text(FRAGILE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    import_function("fragile_objective:fragile")
    (tmp_path / "fail").touch()
    folder, recipe = tmp_path / "sweep", replace(with_objective(tiny, "fragile_objective:fragile"), epochs=5)
    found = [Cell("own", recipe, {}, NOTHING), Cell("frossl", tiny, {}, NOTHING)]
    own, frossl = sweep_of(found, folder, Jobs(parallel=2))
    assert (own.status, frossl.status) == ("failed", "done")
    assert "the cable was pulled" in own.error
    with pytest.raises(ProcessFailed, match="1 of 2 runs failed"):
        require_success([own, frossl], "fullrank sweep …")
    assert read_row(folder / "own") is None
    (tmp_path / "fail").unlink()
    own, again = sweep_of(found, folder)
    assert (own.status, own.steps) == ("done", 20)
    assert again == frossl


def wait_for(condition, seconds=120):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.1)


def is_locked(path):
    try:
        with run_lock(path):
            return False
    except UserError:
        return True


def when_it_has_a_checkpoint(path, action):
    def wait_and_act():
        wait_for(lambda: Run(path).checkpoints)
        action()

    threading.Thread(target=wait_and_act).start()


def test_ctrl_c_stops_the_jobs_with_checkpoints(long, tmp_path):
    when_it_has_a_checkpoint(tmp_path / "seed0", lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(Interrupted, match="stopped: 0 of 1 runs are done, the others go on with the same command"):
        sweep_of(cells(long, 1), tmp_path, Jobs())
    assert not is_locked(tmp_path / "seed0")
    assert 0 < Run(tmp_path / "seed0").checkpoint().step < 1600


def call(found, folder):
    sweep_of(found, folder, Jobs())


def test_a_job_whose_caller_was_killed_goes_on_alone_and_is_left_to_itself(long, tmp_path):
    caller = process_context().Process(target=call, args=(cells(long, 1), tmp_path))
    caller.start()
    wait_for(lambda: Run(tmp_path / "seed0").checkpoints)
    caller.kill()
    caller.join()
    (row,) = sweep_of(cells(long, 1), tmp_path)
    assert row.status == "failed"
    assert "in use by another process" in row.error
    (log,) = (tmp_path / "logs" / "seed0").glob("*.out")
    (controller,) = re.findall(r"job_id=(\d+)", log.read_text())
    os.kill(int(controller), signal.SIGTERM)  # submitit passes it on
    wait_for(lambda: not is_locked(tmp_path / "seed0"))


def test_a_resumed_cell_has_the_row_of_an_uninterrupted_one(tiny, tmp_path, power_cut):
    (cell,) = cells(replace(tiny, epochs=2, checkpoints=4), 1)
    with power_cut(after=5):
        run_cell(cell, tmp_path, console=QUIET)
    assert 0 < Run(tmp_path / "seed0").checkpoint().step < 8
    (resumed,) = sweep_of([cell], tmp_path)
    whole = run_cell(cell, tmp_path / "whole", console=QUIET)
    same = {"seconds": 0.0, "cpu_seconds": 0.0, "environment": {}}
    assert replace(resumed, **same) == replace(whole, **same)


SBATCH = """#!/bin/bash
number=$((RANDOM + 100000)); echo "Submitted batch job $number"
export SUBMISSION=$(dirname $1)/$number/${number}_submission.sh
count=$(sed -n 's/^#SBATCH --array=0-\\([0-9]*\\).*/\\1/p' $1)
for i in $(seq 0 $count); do
  export SLURM_JOB_ID=$number SLURM_ARRAY_JOB_ID=$number SLURM_ARRAY_TASK_ID=$i SLURM_JOB_NUM_NODES=1 SLURM_NTASKS=1
  export SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0
  (sleep 1; exec bash $SUBMISSION) > $(dirname $1)/$i.log 2>&1 &
done
"""
SRUN = """#!/bin/bash
while [[ $1 == --* || $1 == -* ]]; do if [[ $1 == --output || $1 == --error ]]; then shift; fi; shift; done
echo $$ > $(dirname $0)/pid$SLURM_ARRAY_TASK_ID; exec "$@"
"""
SACCT = """#!/bin/bash
echo "JobID|State|NodeList"
"""
SCONTROL = """#!/bin/bash
echo $@ >> $(dirname $0)/requeued
(sleep 1; unset SUBMITIT_TARGET; exec bash $SUBMISSION) > $(dirname $0)/requeued.log 2>&1 &
"""


@pytest.fixture
def slurm_commands(tmp_path, monkeypatch):
    """The folder of commands that stand for those of SLURM."""
    (tmp_path / "bin").mkdir()
    for name, text in (("sbatch", SBATCH), ("srun", SRUN), ("sacct", SACCT), ("scontrol", SCONTROL)):
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    monkeypatch.setattr(jobs, "POLL_SECONDS", 0.1)
    return tmp_path / "bin"


def test_without_slurm_its_jobs_are_an_error(tiny, tmp_path):
    with pytest.raises(UserError, match="--cluster slurm"):
        sweep_of(cells(tiny, 2), tmp_path / "sweep", Jobs(cluster="slurm"))


def test_slurm_runs_the_cells_as_one_array_and_queues_a_preempted_one_again(tiny, tmp_path, slurm_commands):
    cpu = replace(tiny, epochs=20, machine=replace(tiny.machine, accelerator="cpu"))
    logs, rows = tmp_path / "sweep" / "logs", tmp_path / "sweep" / "seed0" / "metrics.jsonl"

    def preempt():
        wait_for(lambda: rows.exists() and '"train"' in rows.read_text())
        os.kill(int((slurm_commands / "pid0").read_text()), signal.SIGUSR2)

    threading.Thread(target=preempt, daemon=True).start()
    slurm = Jobs(cluster="slurm", partition="gpu", hours=2.0, parallel=2)
    found = sweep_of(cells(cpu, 2, NOTHING), tmp_path / "sweep", slurm)
    assert [(row.status, row.steps) for row in found] == [("done", 80)] * 2
    (batch,) = logs.rglob("*_submission.sh")
    text = batch.read_text()
    for line in ("--array=0-1%2", "--partition=gpu", "--time=120", "--signal=USR2@180"):
        assert line in text
    assert "gpus-per-node" not in text
    assert re.fullmatch(r"requeue \d+_0\n", (slurm_commands / "requeued").read_text())
    outputs = ((logs / "0.log").read_text(), (slurm_commands / "requeued.log").read_text())
    assert ["before the first step" in output for output in outputs] == [True, False]  # the second one resumes


def test_everything_wrong_is_found_before_the_first_run(tiny, tmp_path):
    good = Cell("good", tiny, {}, KNN)
    for cells, message in (
        ([good, Cell("bad", replace(tiny, batch_size=5000), {}, KNN)], r"only 256 training images.* \(run bad\)"),
        ([Cell("bad", tiny, {}, EvaluationPlan(probes=("kn",)))], "unknown probe 'kn'"),
        ([Cell("bad", tiny, {}, EvaluationPlan(transfer=(str(tmp_path / "none"),)))], "no file or folder"),
        ([Cell("bad", tiny, {}, EvaluationPlan(transfer=("digits",)))], "two data sets are both called 'digits'"),
        ([good, good], "two runs have the same name"),
    ):
        with pytest.raises(UserError, match=message):
            sweep_of(cells, tmp_path / "sweep")
    assert not (tmp_path / "sweep").exists()
    (tmp_path / "sweep" / "good").mkdir(parents=True)
    (tmp_path / "sweep" / "good" / "thesis.txt").write_text("mine")
    with pytest.raises(UserError, match=r"already contains other files, .*give another folder \(--out of a sweep"):
        sweep_of([good], tmp_path / "sweep")
    with pytest.raises(UserError, match="expected the name of one folder"):
        Cell("../up", tiny)


def test_a_diverged_run_is_a_result(tiny, tmp_path):
    wild = replace(tiny, epochs=5, optimizer=replace(tiny.optimizer, lr=1e6, weight_decay=1.0))
    cell, output = Cell("wild", wild, {"optimizer.lr": 1e6}, KNN), StringIO()
    (row,) = sweep_of([cell], tmp_path, console=Console(file=output, width=400))
    assert (row.status, row.diverged) == ("failed", True)
    assert "wild: diverged: " in output.getvalue()
    assert sweep_of([cell], tmp_path) == [row] == [read_row(tmp_path / "wild")]  # not tried again


def test_a_data_set_is_known_by_its_pixels(tmp_path):
    rng = np.random.default_rng(0)
    pixels = [(label, rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)) for label in "ab" for _ in range(5)]
    for folder, suffix in (("png", "png"), ("bmp", "bmp"), ("jpeg", "jpg")):
        for number, (label, image) in enumerate(pixels):
            path = tmp_path / folder / label / f"{number}.{suffix}"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(path)
    name, digest = identify(DataConfig(source=str(tmp_path / "png")))
    assert name == "png"
    assert identify(DataConfig(source=str(tmp_path / "bmp")))[1] == digest
    assert identify(DataConfig(source=str(tmp_path / "jpeg")))[1] != digest
