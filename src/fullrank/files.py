"""Files: reading those that may come from somebody else, so that it ends; writing a file complete or not at all."""

import errno
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fullrank.errors import UserError

MAX_BYTES = 16 * 2**20
MAX_LOG_BYTES = 2**30


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
    if path.exists() and not path.is_file():
        kind = "a folder" if path.is_dir() else "a FIFO, a socket or a device"
        raise OSError(f"it is {kind}, expected a file")


def paths_beside(path: str) -> list[str]:
    """Return the paths of the files and folders in the folder of a path that was perhaps mistyped."""
    folder = Path(path).parent
    with suppress(OSError):
        return [str(folder / other) for other in os.listdir(folder)]
    return []


def check_suffix(out: Path | str, suffixes: tuple[str, ...]) -> str:
    """Return the suffix of a file to write, in lower case.

    Raises:
        UserError: it is none of `suffixes`.

    >>> check_suffix("features.NPZ", (".parquet", ".npz"))
    '.npz'
    """
    suffix = Path(out).suffix.lower()
    if suffix not in suffixes:
        raise UserError(f"{out} ends in '{suffix}', expected {' or '.join(suffixes)}; give such a file (--out)")
    return suffix


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


def check_new(*paths: Path | None, overwrite: bool, suffixes: tuple[str, ...] = ()) -> None:
    """Raise an error if a file exists and may not be replaced, or ends in none of the suffixes."""
    for path in paths if suffixes else ():
        if path:
            check_suffix(path, suffixes)
    if not overwrite and (taken := [path for path in paths if path and os.path.exists(path)]):
        remedy = "choose another file, or replace this one with --overwrite (overwrite=True in Python)"
        raise UserError(f"{taken[0]} exists already; {remedy}")


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
    check_new(path, overwrite=overwrite)
    temporary = path.with_name(f".{path.name}.{os.getpid()}{DRAFT}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.unlink(missing_ok=True)  # of a killed process with this number, or an untrusted link to another file
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


# The end of the names of temporary files, `.NAME.PID.tmp`; a killed process may leave one.
DRAFT = ".tmp"


class NoSpaceError(UserError):
    """The disk is full."""


# The error numbers of a full disk.
FULL = (errno.ENOSPC, errno.EDQUOT)


def sync(path: Path) -> None:
    """Flush a file or folder to the disk, so that a power cut cannot leave an empty file under the final name."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _not_writable(path: Path, error: OSError) -> UserError:
    return UserError(f"cannot write {path} ({error.strerror}); choose another folder, or fix its permissions")


def read_json(path: Path) -> dict[str, Any]:
    """Read a file that contains one JSON object.

    Raises:
        UserError: the file is missing or damaged.
    """
    try:
        value = parse_json(read_text(path))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}); restore it, or start a new run") from error
    if not isinstance(value, dict):
        raise UserError(f"{path} contains a {type(value).__name__}, expected an object; restore it")
    return value


def read_jsonl(path: Path) -> tuple[list[dict[str, Any]], int | None]:
    """Read a file that contains one JSON object per line; a process that is killed may leave an incomplete last line.

    Returns:
        The objects of all complete lines ([] for a missing file), and the number of an incomplete last line or None.

    Raises:
        UserError: the file cannot be read, or any other line is not a JSON object.
    """
    try:
        lines = read_text(path, max_bytes=MAX_LOG_BYTES, errors="replace").split("\n")
    except FileNotFoundError:
        return [], None
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror or error}); restore it") from error
    objects: list[dict[str, Any]] = []
    for number, line in enumerate(lines, start=1):
        try:
            value = parse_json(line)
            if not isinstance(value, dict):
                raise ValueError(f"got a {type(value).__name__}")
        except ValueError as error:
            if number == len(lines):
                return objects, number if line else None
            raise UserError(f"{path}, line {number}: not a JSON object ({error}); fix or remove the line") from error
        objects.append(value)
    return objects, None


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically; an existing file is replaced.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "note.txt"
    >>> write_text(path, "the whole text")
    >>> [(file.name, file.read_text()) for file in path.parent.iterdir()]
    [('note.txt', 'the whole text')]
    """
    with atomic_write(path, overwrite=True) as draft:
        draft.write_text(text, "utf-8")


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file atomically; an existing file is replaced."""
    write_text(path, json.dumps(value, indent=2) + "\n")
