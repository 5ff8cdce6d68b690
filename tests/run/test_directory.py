import contextlib
import inspect
import os
import stat
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch

from fullrank.errors import UserError
from fullrank.evaluation.score import Evaluation, Score
from fullrank.recipes import RECIPES, to_dict
from fullrank.run import Run, create_run_directory, run_lock, write_json
from fullrank.run.directory import recover_run, validate_output_dir
from fullrank.run.replacement import RUN_FILES, RUN_SUBDIRECTORIES, discard, restored_on_failure
from fullrank.training import save_checkpoint

HOLD = """
import sys, time, filelock
lock = filelock.FileLock(sys.argv[1]); lock.acquire()
print("held", flush=True); sys.stdin.read()
"""
needs_permissions = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere"
)


@pytest.fixture
def old(tmp_path):
    """Create a run with all of its files, and a file of the user."""
    path = tmp_path / "old"
    path.mkdir()
    for folder in RUN_SUBDIRECTORIES:
        (path / folder).mkdir()
        (path / folder / "something").write_text("old")
    for file in RUN_FILES:
        (path / file).write_text("old")
    write_json(path / "recipe.json", to_dict(RECIPES["digits"]))
    (path / "notes.txt").write_text("my own")
    return path


@pytest.fixture
def lock_in_another_process():
    """Lock a run directory from another process."""
    processes = []

    def hold(path):
        process = subprocess.Popen(
            [sys.executable, "-c", HOLD, path / ".lock"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        processes.append(process)
        assert process.stdout.readline() == "held\n"
        return process

    yield hold
    for process in processes:
        process.kill()
        process.communicate()


def contents(path):
    return sorted(entry.name for entry in path.iterdir() if entry.name not in (".lock", ".replaced"))


def files(path):
    """Relative path → content of each file of a folder, but for the lock."""
    return {
        str(file.relative_to(path)): file.read_bytes()
        for file in path.rglob("*")
        if file.is_file() and file.name != ".lock"
    }


class Killed(BaseException):
    """Raised in place of the end of the process; no code catches this exception."""


def test_a_run_without_a_path_gets_the_next_free_name():
    assert [create_run_directory(None, "digits") for _ in range(3)] == [
        Path("runs/digits"),
        Path("runs/digits-2"),
        Path("runs/digits-3"),
    ]
    assert create_run_directory(None, "cifar10") == Path("runs/cifar10")
    assert all(path.is_dir() for path in Path("runs").iterdir())


def test_the_name_of_a_file_is_not_free():
    Path("runs").mkdir()
    Path("runs/digits").write_text("in the way")
    assert create_run_directory(None, "digits") == Path("runs/digits-2")


def test_two_processes_never_get_the_same_name(monkeypatch):
    """Another process creates the folder just before this one."""
    mkdir = Path.mkdir

    def overtaken(self, *arguments, **numbers):
        if self == Path("runs/digits"):
            mkdir(self, parents=True, exist_ok=True)
        mkdir(self, *arguments, **numbers)

    monkeypatch.setattr(Path, "mkdir", overtaken)
    assert create_run_directory(None, "digits") == Path("runs/digits-2")


def test_a_directory_is_created_with_its_parents(tmp_path):
    assert create_run_directory(tmp_path / "a" / "b", "digits").is_dir()


def test_an_empty_directory_is_used(tmp_path):
    (tmp_path / "empty").mkdir()
    assert create_run_directory(tmp_path / "empty", "digits") == tmp_path / "empty"
    assert create_run_directory(tmp_path / "empty", "digits") == tmp_path / "empty"  # the lock file does not count


def test_a_run_is_not_overwritten_by_default(old):
    before = contents(old)
    with pytest.raises(
        UserError,
        match=f"{old} already contains a run; .*--resume {old}, replace it with --overwrite, or give another --out",
    ):
        create_run_directory(old, "digits")
    assert contents(old) == before
    assert (old / "metrics.jsonl").read_text() == "old"


def test_overwriting_keeps_the_old_run_aside_until_it_is_discarded(old):
    before = files(old)
    assert create_run_directory(old, "digits", overwrite=True) == old
    assert contents(old) == ["notes.txt"]
    aside = files(old / ".replaced")
    assert aside == {name: content for name, content in before.items() if name != "notes.txt"}
    discard(old)
    assert files(old) == {"notes.txt": b"my own"}


@pytest.mark.parametrize(
    "error", [UserError("no space left"), KeyboardInterrupt(), RuntimeError("a bug")], ids=lambda e: type(e).__name__
)
def test_a_new_run_that_fails_before_its_first_checkpoint_brings_the_old_run_back(old, error):
    before = files(old)
    create_run_directory(old, "digits", overwrite=True)

    def fail():
        write_json(old / "recipe.json", {})
        (old / "metrics.jsonl").write_text("new")
        raise error

    with pytest.raises(type(error)) as caught, restored_on_failure(old):
        fail()
    assert "is restored" in " ".join([str(caught.value), *getattr(caught.value, "__notes__", ())])
    assert files(old) == before


def test_a_new_run_that_fails_after_its_first_checkpoint_stays(old):
    create_run_directory(old, "digits", overwrite=True)

    def fail_later():
        write_json(old / "recipe.json", {})
        save_checkpoint(old / "checkpoints", 5, weights={"w": torch.ones(1)}, state={}, meta={})
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), restored_on_failure(old):
        fail_later()
    assert Run(old).checkpoint().step == 5
    recover_run(old)  # the process was killed before it could discard the old run
    assert contents(old) == ["checkpoints", "notes.txt", "recipe.json"]
    assert not (old / ".replaced").exists()


@pytest.mark.parametrize("moves", range(len((*RUN_FILES, *RUN_SUBDIRECTORIES)) + 1))
def test_a_kill_while_the_old_run_is_set_aside_loses_nothing(old, monkeypatch, moves):
    before, rename, count = files(old), os.replace, 0

    def killed(source, target):
        nonlocal count
        if count == moves:
            raise Killed
        count += 1
        rename(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", killed)
        with pytest.raises(Killed):
            create_run_directory(old, "digits", overwrite=True)
    with pytest.raises(UserError, match="already contains a run"):
        validate_output_dir(old)
    recover_run(old)
    assert files(old) == before


def test_after_a_kill_before_the_first_checkpoint_overwriting_keeps_the_oldest_run(old):
    before = files(old)
    create_run_directory(old, "digits", overwrite=True)
    write_json(old / "recipe.json", {"a": "new run"})
    (old / "metrics.jsonl").write_text("new")
    create_run_directory(old, "digits", overwrite=True)
    assert contents(old) == ["notes.txt"]
    recover_run(old)
    assert files(old) == before


@pytest.mark.parametrize("leftover", [".recipe.json.123.tmp", ".environment.json.9.tmp", ".lock"])
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_draft_of_a_killed_process_does_not_make_a_folder_unusable(tmp_path, leftover, overwrite):
    path = tmp_path / "run"
    path.mkdir()
    (path / leftover).write_text("ha")
    assert create_run_directory(path, "digits", overwrite=overwrite) == path
    assert contents(path) == []


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_directory_that_is_not_a_run_is_not_overwritten(tmp_path, overwrite):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "report.html").write_text("mine")
    with pytest.raises(UserError, match="already contains other files"):
        create_run_directory(tmp_path / "photos", "digits", overwrite=overwrite)
    assert (tmp_path / "photos" / "report.html").read_text() == "mine"


@pytest.mark.parametrize("overwrite", [False, True])
def test_validation_writes_nothing(tmp_path, old, overwrite):
    before = contents(old)
    validate_output_dir(tmp_path / "new" / "run", overwrite=overwrite)
    with contextlib.suppress(UserError):
        validate_output_dir(old, overwrite=overwrite)
    assert contents(tmp_path) == ["old"]
    assert contents(old) == before


def test_a_run_in_use_is_not_overwritten(old, lock_in_another_process):
    lock_in_another_process(old)
    with pytest.raises(UserError, match="is in use by another process"):
        create_run_directory(old, "digits", overwrite=True)
    assert (old / "metrics.jsonl").exists()


def test_a_file_in_place_of_the_directory_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(
        UserError, match=f"{tmp_path / 'file'} is a file, expected a folder or a new path; give another --out"
    ):
        create_run_directory(tmp_path / "file", "digits")
    with pytest.raises(
        UserError, match=f"cannot write the run directory {tmp_path / 'file' / 'run'} .*; give a writable --out"
    ):
        create_run_directory(tmp_path / "file" / "run", "digits")


def test_a_file_called_runs_is_an_error():
    Path("runs").write_text("")
    with pytest.raises(UserError, match="cannot write the run directory runs"):
        create_run_directory(None, "digits")


@needs_permissions
def test_a_directory_without_permission_is_an_error(tmp_path):
    (tmp_path / "theirs").mkdir(mode=stat.S_IRUSR | stat.S_IXUSR)
    for path in (tmp_path / "theirs", tmp_path / "theirs" / "run"):
        with pytest.raises(
            UserError, match=f"cannot write the run directory {path} .no permission .*; give a writable --out"
        ):
            create_run_directory(path, "digits")


def test_a_locked_run_is_an_error_until_the_other_process_ends(tmp_path, lock_in_another_process):
    process = lock_in_another_process(tmp_path)
    with (
        pytest.raises(UserError, match=f"run directory {tmp_path} is in use by another process; wait for that process"),
        run_lock(tmp_path),
    ):
        raise AssertionError("got in")
    process.kill()  # a killed process releases the lock too
    process.wait()
    with run_lock(tmp_path):
        pass


def test_the_lock_is_released(tmp_path):
    for _ in range(2):
        with pytest.raises(KeyError), run_lock(tmp_path):
            raise KeyError


def test_a_lock_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / ".lock").mkdir()
    with pytest.raises(UserError, match=f"cannot write the run directory {tmp_path}"), run_lock(tmp_path):
        raise AssertionError("got in")


def test_an_empty_run_has_no_results(tmp_path):
    run = Run(tmp_path)
    assert (len(run.metrics), run.spectra, run.evaluations, run.environment, run.checkpoints) == (0, None, (), {}, [])
    with pytest.raises(UserError, match=f"no run at {tmp_path}"):
        _ = run.recipe
    with pytest.raises(UserError, match=f"{tmp_path} has no checkpoint yet"):
        run.checkpoint()


def test_a_run_reads_its_files(tmp_path):
    run = Run(tmp_path)
    score = Score(features="backbone", probe="kNN", value=0.5)
    evaluation = Evaluation(
        model="run", data="mnist[test]", train_images=8, test_images=2, statement="", scores=(score,)
    )
    write_json(tmp_path / "recipe.json", to_dict(RECIPES["cifar10"]))
    write_json(tmp_path / "evaluation.json", {"evaluations": [asdict(evaluation)]})
    write_json(tmp_path / "environment.json", {"seed": 3})
    np.savez(
        tmp_path / "spectrum.npz",
        steps=np.array([0, 5]),
        samples=np.array([9, 9]),
        backbone=np.ones((2, 3), np.float32),
    )
    assert run.recipe == RECIPES["cifar10"]
    assert run.evaluations == (evaluation,)
    assert run.environment == {"seed": 3}
    assert run.spectra.steps.tolist() == [0, 5]
    assert run.spectra.eigenvalues["backbone"].shape == (2, 3)


def test_checkpoints_are_found_by_step(tmp_path):
    for step in (5, 12):
        save_checkpoint(tmp_path / "checkpoints", step, weights={"w": torch.ones(1)}, state={}, meta={})
    run = Run(tmp_path)
    assert (run.checkpoint().step, run.checkpoint(5).step) == (12, 5)
    with pytest.raises(UserError, match=f"{tmp_path} has no checkpoint of step 7; choose one of the steps 5, 12"):
        run.checkpoint(7)


def test_a_checkpoint_that_was_being_replaced_by_a_killed_process_is_recovered(tmp_path):
    save_checkpoint(tmp_path / "checkpoints", 5, weights={"w": torch.ones(1)}, state={}, meta={})
    os.replace(tmp_path / "checkpoints" / "step-00000005", tmp_path / "checkpoints" / ".previous-00000005")
    recover_run(tmp_path)
    assert Run(tmp_path).checkpoint().weights()["w"] == 1


def test_a_run_is_given_by_a_string_or_a_path(tmp_path):
    assert Run(str(tmp_path)) == Run(tmp_path)
    assert Run(str(tmp_path)).path == tmp_path
    with pytest.raises(UserError, match="run is 3, expected a path"):
        inspect.unwrap(Run.__init__)(Run.__new__(Run), 3)


def test_a_link_in_place_of_the_run_that_was_set_aside_moves_no_files(tmp_path):
    stranger, own = tmp_path / "stranger", tmp_path / "own"
    for folder in (stranger, own):
        folder.mkdir()
    (own / "recipe.json").write_text("{}")
    (stranger / ".replaced").symlink_to(own)
    with pytest.raises(UserError, match="symbolic link"):
        recover_run(stranger)
    assert (own / "recipe.json").exists()
