"""The run directory: typed access to its files, its creation, and its lock.

`recipe.json`, which is written first, makes a folder a run. `--overwrite` renames the old run to NAME.old until the new
run has its first checkpoint. Nothing is repaired: a damaged file is an error that names the remedy.
"""

import itertools
import os
import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import filelock

from fullrank.errors import Notify, UserError, silent
from fullrank.evaluation.score import Evaluation, read_evaluations
from fullrank.files import DRAFT, read_json
from fullrank.models.loading import INITIAL, find_checkpoint
from fullrank.recipes import Recipe, code_names, read_recipe
from fullrank.run.metrics import Metrics
from fullrank.run.spectrum_history import SpectrumHistory
from fullrank.training import Checkpoint, list_checkpoints

TRAINING_FILES = ("environment.json", "metrics.jsonl", "spectrum.npz", "views.png", "decode_errors.jsonl", INITIAL)
RUN_FILES = (
    *TRAINING_FILES,
    *("evaluation.json", "neighbours.json", "report.html", "row.json", "checkpoints"),
    *("tensorboard", "wandb", ".lock", ".evaluation.json.lock"),
)
# The file that makes a folder a run, and the file that marks a run which a new one replaces.
RECIPE, REPLACED = "recipe.json", ".replaced"


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

    def __fspath__(self) -> str:
        return str(self.path)

    @property
    def recipe(self) -> Recipe:
        """The complete recipe."""
        return read_recipe(self.path / RECIPE)

    @property
    def checkpoints(self) -> list[Checkpoint]:
        """The complete checkpoints, oldest first."""
        return list_checkpoints(self.path / "checkpoints")

    def checkpoint(self, step: int | None = None) -> Checkpoint:
        """Return the checkpoint of `step`, by default the newest checkpoint.

        Raises:
            UserError: the checkpoint does not exist.
        """
        return find_checkpoint(self.path, step)

    @property
    def metrics(self) -> Metrics:
        """The rows of metrics.jsonl."""
        return Metrics.read(self.path / "metrics.jsonl")

    @property
    def spectra(self) -> SpectrumHistory | None:
        """The spectra of the run over training, or None before the first spectrum evaluation; see `samples`."""
        return SpectrumHistory.read(self.path / "spectrum.npz")

    @property
    def evaluations(self) -> tuple[Evaluation, ...]:
        """The scores that `fullrank evaluate` wrote: one evaluation for each data set, the last one if several
        checkpoints were scored.
        """
        found = read_evaluations(self.path / "evaluation.json")
        return tuple({evaluation.data: evaluation for evaluation in found}.values())

    @property
    def environment(self) -> dict[str, Any]:
        """The content of environment.json, empty if there is no such file."""
        path = self.path / "environment.json"
        return read_json(path) if os.path.lexists(path) else {}


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
    if "\0" in str(path) or str(path).encode(errors="replace").decode() != str(path):
        raise UserError(f"{name} is {str(path)!r}, which is not a name in UTF-8; rename the folder")
    return path


def is_run(path: Path) -> bool:
    """Return whether the folder contains a run."""
    return os.path.exists(path / RECIPE)


@contextmanager
def run_lock(path: Path) -> Iterator[None]:
    """Lock the run directory for this process, and remove the drafts that a killed process left of its files; the lock
    is also released when the process is killed.

    Raises:
        UserError: another process has locked the directory, or the directory cannot be written.
    """
    lock = filelock.FileLock(path / ".lock")
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        remedy = "wait for that process, or give another --out"
        raise UserError(f"run directory {path} is in use by another process; {remedy}") from None
    except OSError as error:
        raise _not_writable(path, error) from error
    try:
        for name in (RECIPE, *TRAINING_FILES):
            for draft in path.glob(f".{name}.*{DRAFT}"):
                draft.unlink(missing_ok=True)
        yield
    finally:
        lock.release()


def resume_command(path: Path) -> str:
    """Return the command that continues a run, with --trust if its recipe names code.

    >>> resume_command(Path("runs/my run"))
    "fullrank pretrain --resume 'runs/my run'"
    """
    trust = ""
    with suppress(UserError):
        trust = " --trust" if code_names(read_recipe(path / RECIPE)) else ""
    return f"fullrank pretrain --resume {shlex.quote(str(path))}{trust}"


def describe_saved(path: Path) -> str:
    """Return which checkpoint of a run is the newest, as a clause."""
    steps = [checkpoint.step for checkpoint in list_checkpoints(path / "checkpoints")]
    return f"the checkpoint of step {steps[-1]} is complete" if steps else "no checkpoint has been written yet"


def create_run(path: Path | None, name: str, *, overwrite: bool = False, notify: Notify = silent) -> Path:
    """Create the directory of a new run: `path`, or the next free `runs/NAME`. A run in `path` becomes NAME.old, which
    `notify` is told.

    Raises:
        UserError: `path` is not empty and may not be overwritten, or it cannot be written.
    """
    try:
        if path is not None:
            check_free(path, overwrite=overwrite)
            if is_run(path):
                with run_lock(path):
                    _set_aside(path)
                notify(f"the run that was in {path} is in {replaced_run(path)} until the first checkpoint")
            path.mkdir(parents=True, exist_ok=True)
            return path
        for number in itertools.count(1):
            path = Path("runs") / (name if number == 1 else f"{name}-{number}")
            with suppress(FileExistsError):  # mkdir is atomic, so two processes never get the same directory
                path.mkdir(parents=True)
                break
        return path or Path()
    except OSError as error:
        raise _not_writable(path or Path("runs"), error) from error


def replaced_run(path: Path) -> Path:
    """Return the folder of the run that a new run in `path` replaces."""
    path = path.resolve()
    return path.with_name(f"{path.name}.old")


def _set_aside(path: Path) -> None:
    """Rename a run to NAME.old; a run without a checkpoint that replaces another one is removed instead."""
    old = replaced_run(path)
    if (old / REPLACED).exists() and not list_checkpoints(path / "checkpoints"):
        _remove_run(path)
    elif os.path.lexists(old):
        raise UserError(f"{old} exists, the folder for the run that is replaced; move it away, or remove it")
    else:
        (path / REPLACED).touch()
        path.rename(old)


def discard_replaced(path: Path) -> None:
    """Remove the run that the run in `path` replaces, if there is one; called after each checkpoint."""
    if (replaced_run(path) / REPLACED).exists():
        _remove_run(replaced_run(path))


def _remove_run(path: Path) -> None:
    """Remove the files of a run, its mark last; other files stay, and their folder."""
    for file in (path / name for name in (RECIPE, *RUN_FILES, REPLACED)):
        if file.is_dir() and not file.is_symlink():
            shutil.rmtree(file, ignore_errors=True)
        else:
            file.unlink(missing_ok=True)
    with suppress(OSError):  # not empty
        path.rmdir()


def check_free(path: Path, *, overwrite: bool = False, option: str = "--out") -> None:
    """Check that `path` can become the directory of a new run, without writing anything.

    Args:
        path: the directory.
        overwrite: whether a run in it may be replaced.
        option: what to change if it cannot, for messages.

    Raises:
        UserError: `path` is not empty and may not be overwritten, is in use, or cannot be written.
    """
    wrong = ""
    try:
        nearest = next(folder for folder in (path, *path.parents) if folder.exists())
        if not nearest.is_dir():
            wrong = f"{nearest} is a file, expected a folder or a new path"
        elif not os.access(nearest, os.W_OK | os.X_OK):
            wrong = f"cannot write the run directory {path}: no permission in {nearest}"
        elif is_run(path) and not overwrite:
            wrong = f"{path} already contains a run; continue it with --resume {path}, replace it with --overwrite"
        elif is_run(path):
            if "TORCHELASTIC_RUN_ID" not in os.environ or os.environ.get("RANK") == "0":  # others would wait for it
                with run_lock(path):
                    pass
        elif path.is_dir() and any(not entry.name.startswith(".") for entry in path.iterdir()):
            wrong = f"{path} already contains other files, and only a run can be overwritten"
    except OSError as error:  # a parent directory cannot be listed
        raise _not_writable(path, error) from error
    if wrong:
        raise UserError(f"{wrong}; give another {option}")


def _not_writable(path: Path, error: OSError) -> UserError:
    return UserError(f"cannot write the run directory {path} ({error.strerror or error}); give a writable --out")
