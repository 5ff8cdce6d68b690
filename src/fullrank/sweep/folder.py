"""The folder of a sweep: one run directory a cell, the logs of the processes, and the locks by which callers share the
cells.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import filelock

from fullrank.errors import UserError

LOGS = "logs"
FOLDER = "folder (--out of a sweep, --runs of a campaign)"
"""The folder of a sweep in messages: the commands name it by different flags."""


def log_path(folder: Path, cell: str) -> Path:
    """Return the file with the output of a cell's process."""
    return folder / LOGS / f"{cell}.log"


def create_folder(folder: Path) -> None:
    """Create the folder of a sweep with its folder of logs.

    Raises:
        UserError: it cannot be written.
    """
    try:
        (folder / LOGS).mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(13, "no permission to write in it")
    except OSError as error:
        raise UserError(
            f"the folder {folder} cannot be written ({error.strerror}); give a writable {FOLDER}"
        ) from error


@contextlib.contextmanager
def cell_lock(folder: Path, cell: str, *, wait: float = 0.0) -> Iterator[bool]:
    """Try to lock a cell for this process, and yield whether that succeeded; the lock is also released when the process
    is killed.

    `wait` is how many seconds are tried; `is_locked` of another process holds the lock for an instant.

    The run directory has a lock of its own, but training and evaluation take that lock one after the other; this one
    holds a cell from the first to the last.
    """
    lock = filelock.FileLock(folder / LOGS / f".{cell}.lock")
    try:
        lock.acquire(timeout=wait)
    except filelock.Timeout:
        yield False
        return
    try:
        yield True
    finally:
        lock.release()


def is_locked(folder: Path, cell: str) -> bool:
    """Return whether a process has locked the cell."""
    with cell_lock(folder, cell) as acquired:
        return not acquired
