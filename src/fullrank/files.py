"""Files: reading those that may come from somebody else, so that it ends; writing a file complete or not at all."""

import errno
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fullrank.errors import UserError

MAX_BYTES = 16 * 2**20


def read_text(path: Path, *, max_bytes: int = MAX_BYTES, errors: str = "strict") -> str:
    """Read a text file in UTF-8.

    Args:
        path: the file.
        max_bytes: refuse a longer file.
        errors: what to do with bytes that are not UTF-8, as in `bytes.decode`.

    Raises:
        OSError: the file does not exist, is a folder or a device, or is larger than `max_bytes`.
        UnicodeDecodeError: the file is not UTF-8.
    """
    check_file(path)
    with path.open("rb") as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise OSError(f"it has more than {max_bytes // 2**20} MiB")
    return data.decode("utf-8", errors)


def check_file(path: Path) -> None:
    """Check that a path is not a folder, a FIFO or a device: to open a FIFO or to read a device may never end.

    Raises:
        OSError: it is.
    """
    if path.exists() and (kind := special_kind(os.stat(path))):
        raise OSError(f"it is {kind}, expected a file")


def special_kind(status: os.stat_result) -> str | None:
    """Return what a path is that is not a regular file, None for a regular file.

    >>> special_kind(os.stat("."))
    'a folder'
    """
    return None if stat.S_ISREG(status.st_mode) else _KINDS.get(stat.S_IFMT(status.st_mode), "a special file")


_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}


def parse_json(text: str) -> Any:
    """Parse JSON.

    Raises:
        ValueError: the text is not JSON, or is nested too deeply.

    >>> parse_json("[" * 100_000)
    Traceback (most recent call last):
    ValueError: nested too deeply
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


@contextmanager
def atomic_write(path: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """Yield a temporary path in the folder of `path`; rename that file to `path` at the end, or remove the file after
    an error.

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
        raise UserError(
            f"{path} exists already; choose another file, or replace this one with --overwrite (overwrite=True in Python)"
        )
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
