"""Typed access to the files of a run directory, its creation, and its lock."""

import contextlib
import errno
import itertools
import os
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import filelock

from fullrank.errors import UserError
from fullrank.evaluation.result import Evaluation
from fullrank.recipes import Recipe, code_names, read_recipe
from fullrank.run.evaluations import read_evaluations
from fullrank.run.files import read_json
from fullrank.run.metrics import Metrics
from fullrank.run.spectrum_history import SpectrumHistory
from fullrank.training import Checkpoint, list_checkpoints

RUN_SUBDIRECTORIES = ("checkpoints", "tensorboard", "wandb")
RUN_FILES = ("environment.json", "metrics.jsonl", "spectrum.npz", "views.png", "decode_errors.jsonl", "evaluation.json", "report.html")


@dataclass(frozen=True)
class Run:
    """A run directory. Each property reads its file again, and raises `UserError` if the file is damaged.

    >>> run = Run(Path("missing"))
    >>> run.checkpoints, len(run.metrics), run.spectra, run.evaluations, run.environment
    ([], 0, None, (), {})
    """

    path: Path

    @property
    def recipe(self) -> Recipe:
        """The complete recipe."""
        return read_recipe(self.path / "recipe.json")

    @property
    def checkpoints(self) -> list[Checkpoint]:
        """The complete checkpoints, oldest first."""
        return list_checkpoints(self.path / "checkpoints")

    def checkpoint(self, step: int | None = None) -> Checkpoint:
        """Return the checkpoint of `step`, by default the newest checkpoint.

        Raises:
            UserError: the checkpoint does not exist.
        """
        found = {checkpoint.step: checkpoint for checkpoint in self.checkpoints}
        if not found:
            raise UserError(f"{self.path} has no checkpoint yet; wait for the first checkpoint, or train again")
        if step is None:
            return found[max(found)]
        if step not in found:
            raise UserError(f"{self.path} has no checkpoint of step {step}; choose one of the steps {', '.join(map(str, found))}")
        return found[step]

    @property
    def metrics(self) -> Metrics:
        """The rows of metrics.jsonl."""
        return Metrics.read(self.path / "metrics.jsonl")

    @property
    def spectra(self) -> SpectrumHistory | None:
        """The spectra of the run over training, or None before the first spectrum evaluation."""
        return SpectrumHistory.read(self.path / "spectrum.npz")

    @property
    def evaluations(self) -> tuple[Evaluation, ...]:
        """The scores that `fullrank evaluate` wrote: one evaluation for each data set, the last one if several checkpoints were scored."""
        return tuple({evaluation.data: evaluation for evaluation in read_evaluations(self.path / "evaluation.json")}.values())

    @property
    def environment(self) -> dict[str, Any]:
        """The content of environment.json, empty if there is no such file."""
        path = self.path / "environment.json"
        return read_json(path) if path.exists() else {}


@contextlib.contextmanager
def run_lock(path: Path) -> Iterator[None]:
    """Lock the run directory for this process; the lock is also released when the process is killed.

    Raises:
        UserError: another process has locked the directory, or the directory cannot be written.
    """
    lock = filelock.FileLock(path / ".lock")
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        raise UserError(f"run directory {path} is in use by another process; wait for that process, or give another --out") from None
    except OSError as error:
        raise _not_writable(path, error) from error
    try:
        yield
    finally:
        lock.release()


def resume_command(path: Path) -> str:
    """Return the command that continues a run, with --trust if its recipe names code.

    >>> resume_command(Path("runs/my run"))
    "fullrank pretrain --resume 'runs/my run'"
    """
    with contextlib.suppress(UserError):
        trust = " --trust" if code_names(read_recipe(path / "recipe.json")) else ""
        return f"fullrank pretrain --resume {shlex.quote(str(path))}{trust}"
    return f"fullrank pretrain --resume {shlex.quote(str(path))}"


def create_run_directory(path: Path | None, name: str, *, overwrite: bool = False) -> Path:
    """Create the directory of a new run: `path`, or the next free `runs/NAME`.

    Raises:
        UserError: `path` is not empty and may not be overwritten, or `path` cannot be written.
    """
    try:
        if path is None:
            return _create_next_free(name)
        validate_output_dir(path, overwrite=overwrite)
        if (path / "recipe.json").exists():
            _clear(path)
        path.mkdir(parents=True, exist_ok=True)
        (path / ".lock").touch()
    except OSError as error:
        raise _not_writable(path or Path("runs"), error) from error
    return path


def validate_output_dir(path: Path, *, overwrite: bool = False) -> None:
    """Check that `path` can become the directory of a new run, without writing anything.

    Raises:
        UserError: `path` is not empty and may not be overwritten, is in use, or cannot be written.
    """
    try:
        nearest = next(folder for folder in (path, *path.parents) if folder.exists())
        if path.is_file():
            raise UserError(f"--out {path} is a file; give a folder that does not exist yet")
        if not nearest.is_dir():
            raise _not_writable(path, NotADirectoryError(errno.ENOTDIR, f"{nearest} is a file"))
        if not os.access(nearest, os.W_OK | os.X_OK):
            raise _not_writable(path, PermissionError(errno.EACCES, f"no permission to write in {nearest}"))
        is_run = (path / "recipe.json").exists()
        if path.is_dir() and any(entry.name != ".lock" for entry in path.iterdir()) and not (overwrite and is_run):
            if is_run:
                raise UserError(
                    f"{path} already contains a run; continue it with --resume {path}, replace it with --overwrite, or give another --out"
                )
            raise UserError(f"{path} already contains other files, and only a run can be overwritten; give another --out")
        if is_run:
            with run_lock(path):
                pass
    except OSError as error:  # a parent directory cannot be listed
        raise _not_writable(path, error) from error


def _create_next_free(name: str) -> Path:
    """Create `runs/NAME`, or if it exists `runs/NAME-2`, …; mkdir is atomic, so two processes never get the same directory."""
    for number in itertools.count(1):
        path = Path("runs") / (name if number == 1 else f"{name}-{number}")
        with contextlib.suppress(FileExistsError):
            path.mkdir(parents=True)
            return path
    raise AssertionError("itertools.count ended")


def _not_writable(path: Path, error: OSError) -> UserError:
    return UserError(f"cannot write the run directory {path} ({error.strerror or error}); give a writable --out")


def _clear(path: Path) -> None:
    """Remove the files of an old run, and no other files."""
    with run_lock(path):
        for folder in RUN_SUBDIRECTORIES:
            shutil.rmtree(path / folder, ignore_errors=True)
        for file in (*RUN_FILES, "recipe.json"):  # recipe.json last, because it marks the directory as a run
            (path / file).unlink(missing_ok=True)
