"""Reading of text files that may come from a stranger: only regular files of a sensible size, so that reading ends."""

import json
import os
import stat
from pathlib import Path
from typing import Any

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


_KINDS = {stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device", stat.S_IFDIR: "a folder"}


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
