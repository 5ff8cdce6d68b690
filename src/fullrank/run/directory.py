"""A run directory: its files, read back, and the lock that keeps two processes from writing one run."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import filelock
import numpy as np

from fullrank.atomic import draft_of
from fullrank.errors import UserError
from fullrank.recipes import Recipe, read_recipe
from fullrank.training import Checkpoint, list_checkpoints


@dataclass(frozen=True)
class Run:
    """A run, on disk. Every property reads its file anew."""

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
        """Return the newest checkpoint, or that of `step`. Raises UserError where there is none."""
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
    def spectra(self) -> dict[str, np.ndarray]:
        """The arrays of spectrum.npz; empty before the first spectrum."""
        path = self.path / "spectrum.npz"
        if not path.exists():
            return {}
        try:
            with np.load(path) as arrays:
                return {name: arrays[name] for name in arrays.files}
        except (OSError, ValueError, KeyError) as error:
            raise UserError(f"{path} cannot be read ({error}); it is derived: remove it and measure with `fullrank spectrum`") from error

    @property
    def evaluation(self) -> dict[str, Any] | None:
        """What `fullrank evaluate` wrote, or None."""
        path = self.path / "evaluation.json"
        return read_json(path) if path.exists() else None


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Read a file of one JSON object a line. A half-written last line, as a killed process leaves it, is passed over.

    Raises:
        UserError: any other line that is not a JSON object, with its number.
    """
    if not path.exists():
        return []
    lines = path.read_text(errors="replace").splitlines()
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
            if not isinstance(row, dict):
                raise ValueError("not an object")
            rows.append(row)
        except ValueError as error:
            if number == len(lines):
                break
            raise UserError(f"{path} is corrupted at line {number} ({error}); mend or remove that line") from error
    return rows


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object. Raises UserError where it is damaged."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}); restore it, or start a new run") from error


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    with draft_of(path, overwrite=True) as draft:
        draft.write_text(text)


def write_json(path: Path, value: Any) -> None:
    """Write JSON whole or not at all."""
    write_text(path, json.dumps(value, indent=2) + "\n")


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the run directory for this process; the lock is released when the process ends, however it ends.

    Raises:
        UserError: another process holds it.
    """
    lock = filelock.FileLock(path / ".lock")
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        raise UserError(f"run directory {path} is in use by another process; wait for it, or give another --out") from None
    try:
        yield
    finally:
        lock.release()


def create(path: Path | None, name: str, *, overwrite: bool = False) -> Path:
    """Make the folder of a new run: `path`, or the next free `runs/NAME`.

    Raises:
        UserError: `path` holds something already and `overwrite` was not asked, or it cannot be written.
    """
    if path is None:
        candidates = (Path("runs") / (name if number == 1 else f"{name}-{number}") for number in range(1, 1_000_000))
        path = next(candidate for candidate in candidates if not candidate.exists())
    try:
        if path.exists() and not path.is_dir():
            raise UserError(f"--out {path} is a file; give a folder that does not exist yet")
        if path.is_dir() and any(entry.name != ".lock" for entry in path.iterdir()):
            _clear(path, overwrite)
        path.mkdir(parents=True, exist_ok=True)
        (path / ".lock").touch()
    except OSError as error:
        raise UserError(
            f"cannot write the run directory {path} ({error.strerror or error}); give an --out that you may write to"
        ) from error
    return path


FILES = ("recipe.json", "environment.json", "metrics.jsonl", "spectrum.npz", "views.png", "skipped.jsonl", "evaluation.json", "report.html")


def _clear(path: Path, overwrite: bool) -> None:
    """Remove an old run's own files, and nothing else."""
    is_run = (path / "recipe.json").exists()
    if not (overwrite and is_run):
        remedy = f"continue it with --resume {path}, replace it with --overwrite, or give another --out" if is_run else "give another --out"
        raise UserError(f"{path} holds {'a run' if is_run else 'other files'} already, and is never overwritten unasked; {remedy}")
    with locked(path):
        for folder in ("checkpoints", "tensorboard"):
            shutil.rmtree(path / folder, ignore_errors=True)
        for file in FILES:
            (path / file).unlink(missing_ok=True)
