import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fullrank.errors import UserError
from fullrank.run import Run
from fullrank.run.directory import check_free, create_run, discard_replaced, is_run, run_lock
from fullrank.training import save_checkpoint


@pytest.fixture
def old(tmp_path):
    """A run with a file of the user."""
    path = tmp_path / "old"
    for name in ("recipe.json", "metrics.jsonl", "notes.txt", "tensorboard/events"):
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(name)
    save_checkpoint(path / "checkpoints", 7, weights={}, state={}, meta={})
    return path


def files(path):
    return {str(file.relative_to(path)) for file in path.rglob("*") if file.is_file() and file.name[0] != "."}


def test_a_run_without_a_path_gets_the_next_free_name():
    found = [create_run(None, "digits") for _ in range(3)]
    assert found == [Path("runs/digits"), Path("runs/digits-2"), Path("runs/digits-3")]


def test_a_directory_is_new_or_empty(tmp_path, old):
    assert create_run(tmp_path / "a" / "b", "x").is_dir()
    (tmp_path / "a" / "b" / ".recipe.json.123.tmp").touch()  # of a killed process
    create_run(tmp_path / "a" / "b", "x")
    (tmp_path / "file").touch()
    other = tmp_path / "other"
    other.mkdir()
    (other / "precious.txt").touch()
    for path, message in (
        (tmp_path / "file", "is a file"),
        (tmp_path / "file" / "run", "is a file"),
        (other, "already contains other files"),
        (old, "already contains a run; continue it with --resume .*, replace it with --overwrite"),
    ):
        for overwrite in (False, path == other):
            with pytest.raises(UserError, match=message):
                check_free(path, overwrite=overwrite)
    assert "recipe.json" in files(old)


def test_overwriting_keeps_the_old_run_until_the_first_checkpoint(old, tmp_path):
    before, aside = files(old), tmp_path / "old.old"
    create_run(old, "x", overwrite=True)
    assert (files(old), files(aside)) == (set(), before)
    (old / "recipe.json").touch()
    create_run(old, "x", overwrite=True)  # the new run has failed before its first checkpoint
    assert (files(old), files(aside)) == (set(), before)
    discard_replaced(old)
    assert files(aside) == {"notes.txt"}, "a file that is not of the run stays"


def test_a_folder_of_the_user_with_the_name_of_a_replaced_run_is_kept(old, tmp_path):
    mine = Path(shutil.copytree(old, tmp_path / "old.old"))
    with pytest.raises(UserError, match=r"old\.old exists"):
        create_run(old, "x", overwrite=True)
    discard_replaced(old)
    assert files(mine) == files(old)


def test_a_run_in_use_is_neither_locked_nor_overwritten_until_the_other_process_ends(old):
    script = "import filelock, sys, time\n"
    script += "with filelock.FileLock(sys.argv[1]): print('locked', flush=True); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", script, old / ".lock"], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "locked\n"
    for use in (lambda: check_free(old, overwrite=True), lambda: run_lock(old).__enter__()):
        with pytest.raises(UserError, match="in use by another process"):
            use()
    process.kill()
    process.wait()
    process.stdout.close()
    for _ in range(2):
        with run_lock(old):
            pass


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_directory_without_permission_is_an_error(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(UserError, match="cannot write the run directory"):
        check_free(tmp_path / "run")


def test_a_run_reads_its_files_and_finds_checkpoints_by_step(tmp_path):
    run = Run(str(tmp_path))
    assert not is_run(tmp_path)
    with pytest.raises(UserError, match="no run at"):
        _ = run.recipe
    with pytest.raises(UserError, match="no checkpoint yet"):
        run.checkpoint()
    for step in (5, 10):
        save_checkpoint(tmp_path / "checkpoints", step, weights={}, state={}, meta={})
    assert (run.checkpoint().step, run.checkpoint(5).step) == (10, 5)
    with pytest.raises(UserError, match="no checkpoint of step 7; choose one of the steps 5, 10"):
        run.checkpoint(7)
    (tmp_path / "environment.json").write_text(json.dumps({"seed": 3}))
    assert run.environment == {"seed": 3}
    (tmp_path / "environment.json").write_text("[")
    with pytest.raises(UserError, match=r"environment\.json cannot be read"):
        _ = run.environment
