"""Typed access to the files of a run directory, its creation, and its lock."""

import contextlib
import errno
import itertools
import os
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import filelock

from fullrank.errors import UserError
from fullrank.evaluation.score import Evaluation
from fullrank.recipes import Recipe, code_names, read_recipe
from fullrank.evaluation.stored import read_evaluations
from fullrank.run.files import read_json
from fullrank.run.metrics import Metrics
from fullrank.run.replacement import ASIDE, is_leftover, is_run, recover, set_aside
from fullrank.run.spectrum_history import SpectrumHistory
from fullrank.structure import structure
from fullrank.training import Checkpoint, list_checkpoints


@dataclass(frozen=True, init=False)
class Run:
    """A run directory. Each property reads its file again, and raises `UserError` if the file is damaged.

    >>> run = Run("missing")
    >>> run.checkpoints, len(run.metrics), run.spectra, run.evaluations, run.environment
    ([], 0, None, (), {})
    """

    path: Path

    def __init__(self, path: str | Path) -> None:
        object.__setattr__(self, "path", as_path(path, "run"))

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
            aside = (
                f"; the run that it replaces is in {self.path / ASIDE}"
                if (self.path / ASIDE / "recipe.json").exists()
                else ""
            )
            raise UserError(f"{self.path} has no checkpoint yet; wait for the first checkpoint, or train again{aside}")
        if step is None:
            return found[max(found)]
        if step not in found:
            raise UserError(
                f"{self.path} has no checkpoint of step {step}; choose one of the steps {', '.join(map(str, found))} "
                "(--keep_checkpoints decides how many checkpoints a run keeps)"
            )
        return found[step]

    @property
    def metrics(self) -> Metrics:
        """The rows of metrics.jsonl.

        Raises:
            UserError: the file is damaged, or has no rows although the run has a checkpoint.
        """
        metrics = Metrics.read(self.path / "metrics.jsonl")
        if not metrics and (checkpoints := self.checkpoints):
            raise UserError(
                f"{self.path / 'metrics.jsonl'} has no rows, but the run has a checkpoint of step {checkpoints[-1].step}; "
                f"restore the file, or continue without the log: {resume_command(self.path)}"
            )
        return metrics

    @property
    def spectra(self) -> SpectrumHistory | None:
        """The spectra of the run over training, or None before the first spectrum evaluation."""
        return SpectrumHistory.read(self.path / "spectrum.npz")

    @property
    def evaluations(self) -> tuple[Evaluation, ...]:
        """The scores that `fullrank evaluate` wrote: one evaluation for each data set, the last one if several
        checkpoints were scored.
        """
        return tuple(
            {evaluation.data: evaluation for evaluation in read_evaluations(self.path / "evaluation.json")}.values()
        )

    @property
    def environment(self) -> dict[str, Any]:
        """The content of environment.json, empty if there is no such file.

        Raises:
            UserError: the file is damaged, or a duration is not a number.
        """
        path = self.path / "environment.json"
        environment = read_json(path) if os.path.lexists(path) else {}
        for name in ("duration_seconds", "cpu_seconds", "spectrum_share", "online_share"):
            structure(environment.get(name, 0.0), float, f"{path}: {name}")
        return environment


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
        raise UserError(
            f"run directory {path} is in use by another process; wait for that process, or give another --out"
        ) from None
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
        path.mkdir(parents=True, exist_ok=True)
        with run_lock(path):
            set_aside(path)
    except OSError as error:
        raise _not_writable(path or Path("runs"), error) from error
    return path


def validate_output_dir(path: Path, *, overwrite: bool = False, option: str = "--out") -> None:
    """Check that `path` can become the directory of a new run, without writing anything.

    Args:
        path: the directory.
        overwrite: whether a run in it may be replaced.
        option: what to change if it cannot, for messages.

    Raises:
        UserError: `path` is not empty and may not be overwritten, is in use, or cannot be written.
    """
    try:
        nearest = next(folder for folder in (path, *path.parents) if folder.exists())
        if path.is_file():
            raise UserError(f"{path} is a file, expected a folder or a new path; give another {option}")
        if not nearest.is_dir():
            raise _not_writable(path, NotADirectoryError(errno.ENOTDIR, f"{nearest} is a file"), option)
        if not os.access(nearest, os.W_OK | os.X_OK):
            raise _not_writable(path, PermissionError(errno.EACCES, f"no permission to write in {nearest}"), option)
        contains_run = is_run(path)
        if (
            path.is_dir()
            and not (overwrite and contains_run)
            and (contains_run or any(not is_leftover(e.name) for e in path.iterdir()))
        ):
            if contains_run:
                raise UserError(
                    f"{path} already contains a run; continue it with --resume {path}, replace it with --overwrite, or give another --out"
                )
            raise UserError(
                f"{path} already contains other files, and only a run can be overwritten; give another {option}"
            )
        if contains_run:
            with run_lock(path):
                pass
    except OSError as error:  # a parent directory cannot be listed
        raise _not_writable(path, error, option) from error


def _create_next_free(name: str) -> Path:
    """Create `runs/NAME`, or if it exists `runs/NAME-2`, …; mkdir is atomic, so two processes never get the same
    directory.
    """
    for number in itertools.count(1):
        path = Path("runs") / (name if number == 1 else f"{name}-{number}")
        with contextlib.suppress(FileExistsError):
            path.mkdir(parents=True)
            return path
    raise AssertionError("itertools.count ended")


def _not_writable(path: Path, error: OSError, option: str = "--out") -> UserError:
    return UserError(f"cannot write the run directory {path} ({error.strerror or error}); give a writable {option}")


def recover_run(path: Path) -> None:
    """Complete what a killed process has left unfinished: bring back a run that was set aside, and a checkpoint that
    was being replaced.

    Raises:
        UserError: the directory is in use, or cannot be written.
    """
    first = os.environ.get("RANK", "0") == "0"  # of the processes that a launcher has started
    try:
        if first and (os.path.exists(path / ASIDE) or any((path / "checkpoints").glob(".previous-*"))):
            with run_lock(path):
                recover(path)
    except OSError as error:
        raise _not_writable(path, error) from error


def as_path(value: object, name: str) -> Path:
    """Return a path that was given as a string or as a path.

    Raises:
        UserError: the value is neither, or not the name of a file: it has a NUL or is not UTF-8.

    >>> as_path("runs/digits", "out")
    PosixPath('runs/digits')
    """
    if not isinstance(value, str | os.PathLike):
        raise UserError(f"{name} is {value!r}, expected a path: a string or a pathlib.Path")
    path = Path(value)
    try:
        valid = "\0" not in str(path) and bool(str(path).encode())
    except UnicodeEncodeError:
        valid = False
    if not valid:
        raise UserError(f"{name} is {str(path)!r}, which is not a name in UTF-8; rename the folder")
    return path
