"""A run directory: its files, read back, and the lock that keeps two processes from writing one run."""

import contextlib
import errno
import itertools
import json
import os
import shlex
import shutil
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import filelock
import numpy as np
from jaxtyping import Float32, Int64

from fullrank.atomic import atomic_write
from fullrank.errors import UserError
from fullrank.recipes import Recipe, read_recipe
from fullrank.training import Checkpoint, list_checkpoints


@dataclass(frozen=True)
class Run:
    """A run, on disk. Every property reads its file anew, and raises `UserError` where that is damaged.

    >>> run = Run(Path("nowhere"))
    >>> run.checkpoints, run.metrics, run.spectra, run.evaluation
    ([], [], {}, None)
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
        """Return the newest checkpoint, or that of `step`.

        Raises:
            UserError: there is none.
        """
        found = {checkpoint.step: checkpoint for checkpoint in self.checkpoints}
        if not found:
            raise UserError(f"{self.path} has no checkpoint yet; wait for the first, or train again")
        if step is None:
            return found[max(found)]
        if step not in found:
            raise UserError(f"{self.path} has no checkpoint of step {step}; it has {', '.join(map(str, found))}")
        return found[step]

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The rows of metrics.jsonl."""
        return read_rows(self.path / "metrics.jsonl")

    @property
    def spectra(self) -> dict[str, Float32[np.ndarray, "T D"] | Int64[np.ndarray, " T"]]:
        """The arrays of spectrum.npz: steps (T,), samples (T,), and eigenvalues (T, D) by place; empty before the first spectrum."""
        path = self.path / "spectrum.npz"
        if not path.exists():
            return {}
        try:
            with path.open("rb") as file, np.load(file) as arrays:  # NumPy leaves a damaged file open that it opens itself
                return {name: arrays[name] for name in arrays.files}
        except (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error) as error:
            raise UserError(f"{path} cannot be read ({error}); it is derived: remove it and measure with `fullrank spectrum`") from error

    @property
    def evaluation(self) -> dict[str, Any] | None:
        """What `fullrank evaluate` wrote, or None."""
        path = self.path / "evaluation.json"
        return read_json(path) if path.exists() else None


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Read a file of one JSON object a line; none where there is no such file.

    A last line without its newline, as a process leaves it that was killed while it wrote, counts where it is a whole object.

    Raises:
        UserError: any other line that is not a JSON object, with its number.
    """
    if not path.exists():
        return []
    *lines, last = path.read_text(errors="replace").split("\n")
    remedy = "mend or remove that line"
    rows = [_object(line, f"{path} is corrupted at line {number}", remedy) for number, line in enumerate(lines, start=1)]
    with contextlib.suppress(UserError):
        rows.append(_object(last, "half a line", remedy))
    return rows


def read_json(path: Path) -> dict[str, Any]:
    """Read a file of one JSON object.

    Raises:
        UserError: it is missing or damaged.
    """
    problem, remedy = f"{path} cannot be read", "restore it, or start a new run"
    try:
        return _object(path.read_text(), problem, remedy)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{problem} ({error}); {remedy}") from error


def _object(text: str, problem: str, remedy: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise UserError(f"{problem} ({error}); {remedy}") from error
    if not isinstance(value, dict):
        raise UserError(f"{problem} (a {type(value).__name__}, expected an object); {remedy}")
    return value


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "note.txt"
    >>> write_text(path, "all of it")
    >>> [(file.name, file.read_text()) for file in path.parent.iterdir()]
    [('note.txt', 'all of it')]
    """
    with atomic_write(path, overwrite=True) as draft:
        draft.write_text(text)


def write_json(path: Path, value: Any) -> None:
    """Write JSON whole or not at all."""
    write_text(path, json.dumps(value, indent=2) + "\n")


@contextlib.contextmanager
def run_lock(path: Path) -> Iterator[None]:
    """Hold the run directory for this process; the lock is released when the process ends, however it ends.

    Raises:
        UserError: another process holds it, or it cannot be written.
    """
    lock = filelock.FileLock(path / ".lock")
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        raise UserError(f"run directory {path} is in use by another process; wait for it, or give another --out") from None
    except OSError as error:
        raise _not_writable(path, error) from error
    try:
        yield
    finally:
        lock.release()


def resume_command(path: Path) -> str:
    """Return the command that continues a run.

    >>> resume_command(Path("runs/my run"))
    "fullrank pretrain --resume 'runs/my run'"
    """
    return f"fullrank pretrain --resume {shlex.quote(str(path))}"


def create(path: Path | None, name: str, *, overwrite: bool = False) -> Path:
    """Make the folder of a new run: `path`, or the next free `runs/NAME`.

    Raises:
        UserError: `path` holds something already and `overwrite` was not asked, or it cannot be written.
    """
    try:
        if path is None:
            return _next_free(name)
        validate_output_dir(path, overwrite=overwrite)
        if (path / "recipe.json").exists():
            _clear(path)
        path.mkdir(parents=True, exist_ok=True)
        (path / ".lock").touch()
    except OSError as error:
        raise _not_writable(path or Path("runs"), error) from error
    return path


def validate_output_dir(path: Path, *, overwrite: bool = False) -> None:
    """Say why `path` cannot become the folder of a new run, so that it is known before the images are read. Nothing is written.

    Raises:
        UserError: it holds something already and `overwrite` was not asked, is in use, or cannot be written.
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
            remedy = f"{f'continue it with --resume {path}, replace it with --overwrite, or ' if is_run else ''}give another --out"
            raise UserError(f"{path} holds {'a run' if is_run else 'other files'} already, and is never overwritten unasked; {remedy}")
        if is_run:
            with run_lock(path):
                pass
    except OSError as error:  # a folder on the way that cannot even be looked into
        raise _not_writable(path, error) from error


def _next_free(name: str) -> Path:
    """Make `runs/NAME`, or the first of `runs/NAME-2` … that is free: the making decides, so two processes never get the same."""
    for number in itertools.count(1):
        path = Path("runs") / (name if number == 1 else f"{name}-{number}")
        with contextlib.suppress(FileExistsError):
            path.mkdir(parents=True)
            return path
    raise AssertionError("itertools.count ended")


def _not_writable(path: Path, error: OSError) -> UserError:
    return UserError(f"cannot write the run directory {path} ({error.strerror or error}); give an --out that you may write to")


FOLDERS = ("checkpoints", "tensorboard", "wandb")
FILES = ("environment.json", "metrics.jsonl", "spectrum.npz", "views.png", "decode_errors.jsonl", "evaluation.json", "report.html")


def _clear(path: Path) -> None:
    """Remove an old run's own files, and nothing else."""
    with run_lock(path):
        for folder in FOLDERS:
            shutil.rmtree(path / folder, ignore_errors=True)
        for file in (*FILES, "recipe.json"):  # last: until then it is a run, which may be overwritten
            (path / file).unlink(missing_ok=True)
