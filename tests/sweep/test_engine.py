"""The engine: cells in processes, resumed, retried, shared by several callers, and stopped together."""

import os
import re
import signal
import threading
import time
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from fullrank.errors import Interrupted, ProcessFailed, UserError
from fullrank.recipes import DataConfig, import_function, with_objective
from fullrank.run import Run
from fullrank.sweep import Cell, EvaluationPlan, engine, executor, read_row, require_success, run_sweep
from fullrank.sweep.dataset import identify
from fullrank.sweep.folder import cell_lock, log_path
from fullrank.sweep.grid import grid_plan
from fullrank.sweep.row import write_row
from fullrank.sweep.run_cell import new_row, run_cell
from fullrank.sweep.single import list_cells, run_single_cell
from fullrank.sweep.worker import Outcome

QUIET = Console(quiet=True)
KNN = EvaluationPlan(probes=("knn",))
FRAGILE = """
from pathlib import Path
from torch import Tensor

CALLS = []

def fragile(Z: Tensor, *, weight: float = 1.0):
    CALLS.append(1)
    if len(CALLS) > 12 and (Path(__file__).parent / "fail").exists():
        raise RuntimeError("the cable was pulled")
    return {"spread": -weight * Z.var(1).clamp(max=1).mean(), "invariance": (Z - Z.mean(0)).square().mean()}
"""


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """The engine looks often at its processes, which end soon."""
    monkeypatch.setattr(executor, "POLL_SECONDS", 0.02)


@pytest.fixture
def tiny(small):
    return replace(
        small, epochs=1, batch_size=64, checkpoints=5, keep_checkpoints=2, data=replace(small.data, subset=256)
    )


def cells(recipe, count, evaluate=KNN):
    return [Cell(f"seed{seed}", replace(recipe, seed=seed), {}, evaluate) for seed in range(count)]


def trainings(folder, cell):
    """Return how often a cell's process has begun to train."""
    return len(re.findall(r"^cell .*, process", log_path(folder, cell).read_text(), re.M))


def test_cells_run_at_the_same_time_and_a_second_call_takes_what_is_done(tiny, tmp_path):
    output = StringIO()
    rows = run_sweep(lambda rows: cells(tiny, 2), tmp_path, parallel=2, console=Console(file=output, width=200))
    assert "2 of 2 cells to run, 8 steps; 2 at a time" in output.getvalue()
    assert "[2/2]" in output.getvalue()
    assert [(row.seed, row.status, row.steps, row.data) for row in rows] == [
        (0, "done", 4, "digits"),
        (1, "done", 4, "digits"),
    ]
    assert all(0 < row.scores["digits"]["knn"] <= 1 and row.effective_rank["backbone"] > 1 for row in rows)
    assert all(row.seconds > 0 and row.cpu_seconds > 0 for row in rows)
    assert all(row.train_images == 256 and row.test_images == 359 and row.environment["torch"] for row in rows)
    assert Run(tmp_path / "seed0").evaluations[0].scores[0].accuracy == rows[0].score("knn")
    again = run_sweep(lambda rows: cells(tiny, 2), tmp_path, console=QUIET)
    assert again == rows
    assert trainings(tmp_path, "seed0") == 1

    more = EvaluationPlan(probes=("knn", "few-shot"))
    with_more = run_sweep(lambda rows: cells(tiny, 1, more), tmp_path, console=QUIET)[0]  # only evaluates
    assert with_more.score("few-shot")
    assert (with_more.score("knn"), with_more.seconds) == (rows[0].score("knn"), rows[0].seconds)
    assert (
        run_sweep(lambda rows: cells(tiny, 1), tmp_path, console=QUIET)[0] == with_more
    )  # which has all that is asked for

    with pytest.raises(
        UserError,
        match=r"seed0 was made with another recipe \(optimizer\.momentum .*; repeat .* give another folder \(--out .*cell seed0",
    ):
        run_sweep(
            lambda rows: cells(replace(tiny, optimizer=replace(tiny.optimizer, momentum=0.5)), 2),
            tmp_path,
            console=QUIET,
        )


def test_one_failure_does_not_end_the_others_and_the_next_call_goes_on(tiny, tmp_path, monkeypatch):
    (tmp_path / "fragile_objective.py").write_text(FRAGILE)
    monkeypatch.syspath_prepend(tmp_path)
    import_function("fragile_objective:fragile")
    (tmp_path / "fail").touch()
    folder, recipe = (
        tmp_path / "sweep",
        replace(with_objective(tiny, "fragile_objective:fragile"), epochs=5, checkpoints=10),
    )
    plan = [Cell("own", recipe, {}, KNN), Cell("frossl", tiny, {}, KNN)]
    own, frossl = run_sweep(lambda rows: plan, folder, console=QUIET)
    assert (own.status, frossl.status) == ("failed", "done")
    assert "the cable was pulled" in own.error
    with pytest.raises(ProcessFailed, match="1 of 2 cells failed"):
        require_success([own, frossl], "fullrank sweep …")
    assert read_row(folder / "own") is None
    (tmp_path / "fail").unlink()
    own, again = run_sweep(lambda rows: plan, folder, console=QUIET)
    assert (own.status, own.steps) == ("done", 20)
    assert again == frossl
    assert "step 20/20" in log_path(folder, "own").read_text()
    assert log_path(folder, "own").read_text().count("length: ") == 1  # the second call has resumed


def test_of_equal_scores_the_first_value_is_chosen_whichever_cell_ends_first(tiny, tmp_path, monkeypatch):
    ended = []

    def end_in_reverse(missing, folder, slots, *, on_end, **_):
        for cell in reversed(missing):
            ended.append(cell.name)
            (folder / cell.name).mkdir()
            name, images = identify(cell.recipe.data)
            write_row(folder / cell.name, replace(new_row(cell, name, images), scores={name: {"knn": 0.5}}))
            on_end(cell, Outcome("done"))

    def build(values):
        return replace(tiny, optimizer=replace(tiny.optimizer, lr=values["optimizer.lr"]))

    monkeypatch.setattr(engine, "run_cells", end_in_reverse)
    plan = grid_plan({"optimizer.lr": [0.1, 0.2, 0.3]}, build, evaluate=KNN, chosen="optimizer.lr")
    output = StringIO()
    rows = run_sweep(plan, tmp_path, console=Console(file=output, width=200))
    assert output.getvalue().count("3 of these cells choose a value; the cells with the chosen values follow") == 1
    assert ended == ["choice-lr0.3", "choice-lr0.2", "choice-lr0.1", "lr0.1-seed0"]
    assert [row.cell for row in rows] == ["choice-lr0.1", "choice-lr0.2", "choice-lr0.3", "lr0.1-seed0"]
    assert run_sweep(plan, tmp_path, console=QUIET) == rows  # read from the folder, the choice is the same


def wait_for(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)


def during_training(folder, cell, action):
    """Call `action` as soon as a cell has a checkpoint, from a thread."""

    def act():
        wait_for(lambda: Run(folder / cell).checkpoints)
        action()

    thread = threading.Thread(target=act)
    thread.start()
    return thread


def test_a_killed_process_is_a_failure_of_its_cell_and_leaves_no_lock(tiny, tmp_path):
    long = replace(tiny, epochs=60, checkpoints=200)

    def kill():
        (number,) = re.findall(r"process (\d+)", log_path(tmp_path, "seed0").read_text())
        os.kill(int(number), signal.SIGKILL)

    thread = during_training(tmp_path, "seed0", kill)
    (row,) = run_sweep(lambda rows: cells(long, 1), tmp_path, console=QUIET)
    thread.join()
    assert row.status == "failed"
    assert "SIGKILL" in row.error
    with cell_lock(tmp_path, "seed0") as acquired:
        assert acquired  # the lock has gone with the process


def test_a_stopped_sweep_resumes_bit_for_bit(tiny, tmp_path):
    long = replace(tiny, epochs=8, checkpoints=16)
    thread = during_training(tmp_path, "seed0", lambda: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(Interrupted, match="stopped: 0 of 1 cells are done") as stop:
        run_sweep(lambda rows: cells(long, 1), tmp_path, console=QUIET)
    thread.join()
    assert stop.value.signum == signal.SIGTERM
    reached = Run(tmp_path / "seed0").checkpoint().step
    assert 0 < reached < 32
    (resumed,) = run_sweep(lambda rows: cells(long, 1), tmp_path, console=QUIET)
    whole = run_cell(cells(long, 1)[0], tmp_path / "whole", console=QUIET)
    same = {"seconds": 0.0, "cpu_seconds": 0.0, "environment": {}}
    assert replace(resumed, **same) == replace(whole, **same)


def test_two_callers_share_the_cells(tiny, tmp_path):
    """A job of a cluster trains one cell while a sweep runs the other, waits for the first, and takes its row."""
    plan = lambda rows: cells(tiny, 2)  # noqa: E731
    job = threading.Thread(target=run_single_cell, args=(plan, tmp_path, "seed1", QUIET))
    job.start()
    wait_for(lambda: (tmp_path / "seed1").exists())
    rows = run_sweep(plan, tmp_path, console=QUIET)
    job.join()
    assert [(row.cell, row.status) for row in rows] == [("seed0", "done"), ("seed1", "done")]
    assert trainings(tmp_path, "seed0") == 1
    assert not log_path(tmp_path, "seed1").exists()  # the job ran it


def test_a_cell_that_another_caller_gave_up_is_run(tiny, tmp_path):
    locked, waiting = threading.Event(), StringIO()

    def hold():
        with cell_lock(tmp_path, "seed0"):
            locked.set()
            wait_for(lambda: "another process runs this cell" in waiting.getvalue())

    (tmp_path / "logs").mkdir()
    other = threading.Thread(target=hold)
    other.start()
    locked.wait()
    (row,) = run_sweep(lambda rows: cells(tiny, 1), tmp_path, console=Console(file=waiting, width=200))
    other.join()
    assert (row.status, trainings(tmp_path, "seed0")) == ("done", 1)
    assert waiting.getvalue().count("seed0: another process runs this cell") == 1


def test_everything_wrong_is_found_before_the_first_run(tiny, tmp_path):
    good = Cell("good", tiny, {}, KNN)
    for bad, message in (
        (Cell("bad", replace(tiny, batch_size=5000), {}, KNN), "only 256 training images"),
        (Cell("bad", replace(tiny, views=(replace(tiny.views[0], count=1),)), {}, KNN), "at least 2"),
        (Cell("bad", tiny, {}, EvaluationPlan(probes=("kn",))), "unknown probe 'kn'"),
        (Cell("bad", tiny, {}, EvaluationPlan(transfer=(str(tmp_path / "none"),))), "no file or folder"),
        (Cell("bad", tiny, {}, EvaluationPlan(transfer=("digits",))), "digits and digits are both called 'digits'"),
        (Cell("good", tiny, {}, KNN), "two cells are called 'good'"),
    ):
        with pytest.raises(UserError, match=message):
            run_sweep(lambda rows, bad=bad: [good, bad], tmp_path / "sweep", console=QUIET)
    assert not (tmp_path / "sweep").exists()
    (tmp_path / "sweep" / "good").mkdir(parents=True)
    (tmp_path / "sweep" / "good" / "thesis.txt").write_text("mine")
    with pytest.raises(
        UserError,
        match=r"already contains other files, .*give another folder \(--out of a sweep, --runs of a campaign\)",
    ):
        run_sweep(lambda rows: [good], tmp_path / "sweep", console=QUIET)
    with pytest.raises(UserError, match="expected the name of one folder"):
        Cell("../up", tiny)


def test_a_diverged_run_is_a_result(tiny, tmp_path):
    wild = replace(tiny, epochs=5, optimizer=replace(tiny.optimizer, lr=1e6, weight_decay=1.0))
    cell = Cell("wild", wild, {"optimizer.lr": 1e6}, KNN)
    output = StringIO()
    for _ in range(2):  # the second call trains nothing
        run_single_cell(lambda rows: [cell], tmp_path, "0", Console(file=output, width=400))
    assert output.getvalue().count("wild: diverged: ") == 2
    row = read_row(tmp_path / "wild")
    assert row is not None
    assert (row.status, row.diverged) == ("failed", True)
    assert run_sweep(lambda rows: [cell], tmp_path, console=QUIET) == [row]  # not tried again


def test_a_single_cell_is_found_by_number_or_name_and_is_not_run_twice(tiny, tmp_path, capsys):
    plan = lambda rows: cells(tiny, 2)  # noqa: E731
    with pytest.raises(UserError, match="--cell 2 is neither a number from 0 to 1"):
        run_single_cell(plan, tmp_path, "2", QUIET)
    (tmp_path / "logs").mkdir()
    with cell_lock(tmp_path, "seed1"), pytest.raises(UserError, match="is being run by another process"):
        run_single_cell(plan, tmp_path, "seed1", QUIET)
    run_single_cell(plan, tmp_path, "1", QUIET)
    before = (tmp_path / "seed1" / "row.json").stat().st_mtime_ns
    run_single_cell(plan, tmp_path, "seed1", QUIET)
    assert (tmp_path / "seed1" / "row.json").stat().st_mtime_ns == before
    list_cells(plan, tmp_path, "fullrank sweep digits")
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        ["0", "to run", "fullrank sweep digits --cell seed0"],
        ["1", "done", "fullrank sweep digits --cell seed1"],
    ]
    (tmp_path / "seed1" / "row.json").unlink()
    list_cells(plan, tmp_path, "fullrank sweep digits")
    assert [line.split("\t")[1] for line in capsys.readouterr().out.splitlines()] == ["to run", "unfinished"]


def test_a_data_set_is_known_by_its_pixels(tmp_path):
    import numpy as np
    from PIL import Image

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
