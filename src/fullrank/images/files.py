"""Read files whose names come from strangers: only regular files, only below the folder of the data set, and only up to
a size.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from fullrank.files import special_kind

# Pixels are stored with at most this many bytes: eight bands of 16 bits. A longer file than its pixels can need is not
# read.
BYTES_PER_PIXEL = 16


class OutsideError(ValueError):
    """A name leads out of the folders that may contain the files of a data set."""


def read_regular_file(path: str | Path, *, max_bytes: int, below: Sequence[str] | None = None) -> bytes:
    """Return the content of a regular file. A FIFO, a socket or a device is never opened: it could block, or have no
    end.

    Args:
        path: the file; symbolic links are followed.
        max_bytes: refuse a longer file.
        below: real paths of the folders that may contain the file, after all symbolic links; None allows every folder.

    Raises:
        OSError: the file does not exist or cannot be read.
        ValueError: the file is not regular, too long, or outside `below`.
    """
    if below is not None and not is_below(path, below):
        raise OutsideError("the file is outside the folder of the data set, and is not read")
    check_regular(os.stat(path))
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        check_regular(status)  # again, because the file may have been replaced
        if status.st_size > max_bytes:
            raise ValueError(f"the file has {status.st_size} bytes, more than an image of data.max_pixels can need")
        return file.read()


def is_below(path: str | Path, folders: Sequence[str]) -> bool:
    """Return whether a path, after all symbolic links, is one of the folders or inside one; the folders are real
    paths.
    """
    real = os.path.join(os.path.realpath(path), "")
    return any(real.startswith(os.path.join(folder, "")) for folder in folders)


def check_regular(status: os.stat_result) -> None:
    """Raise ValueError if the status is not that of a regular file."""
    if kind := special_kind(status):
        raise ValueError(f"this is {kind}, not a regular file")
