"""Atomic writing: a file appears complete or not at all, also after a power cut; an existing file is replaced only on request."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fullrank.errors import UserError


@contextmanager
def atomic_write(path: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """Yield a temporary path in the folder of `path`; rename that file to `path` at the end, or remove the file after an error.

    Raises:
        UserError: the file exists and `overwrite` is False, or the file cannot be written.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "new" / "one.txt"
    >>> with atomic_write(path) as temporary:
    ...     temporary.write_text("all of it"), path.exists()
    (9, False)
    >>> path.read_text(), [file.name for file in path.parent.iterdir()]
    ('all of it', ['one.txt'])
    """
    if os.path.isdir(path):  # os.path returns False if a parent folder cannot be read; Path.is_dir would raise
        raise UserError(f"{path} is a folder, expected a file; give a file name in this folder")
    if os.path.exists(path) and not overwrite:
        raise UserError(f"{path} exists already; choose another file, or replace this one with --overwrite (overwrite=True in Python)")
    temporary = path.with_name(f".{path.name}.{os.getpid()}{DRAFT}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.unlink(missing_ok=True)  # of a killed process with this number, or a stranger's link to another file
        temporary.touch(exist_ok=False)  # fails before the work if the file cannot be written
    except OSError as error:
        raise _not_writable(path, error) from error
    try:
        yield temporary
        try:
            sync(temporary)
            os.replace(temporary, path)
            sync(path.parent)
        except PermissionError as error:
            raise _not_writable(path, error) from error
    except OSError as error:
        if error.errno in FULL:
            raise NoSpaceError(f"no space left for {path}; free some space, or choose another disk") from error
        raise
    finally:
        temporary.unlink(missing_ok=True)


DRAFT = ".tmp"
"""The end of the names of temporary files, `.NAME.PID.tmp`; a killed process may leave one."""


class NoSpaceError(UserError):
    """The disk is full."""


FULL = (errno.ENOSPC, errno.EDQUOT)
"""The error numbers of a full disk."""


def sync(path: Path) -> None:
    """Flush a file or folder to the disk, so that a power cut cannot leave an empty file under the final name."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _not_writable(path: Path, error: OSError) -> UserError:
    return UserError(f"cannot write {path} ({error.strerror}); choose another folder, or fix its permissions")
