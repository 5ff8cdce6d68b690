"""Atomic writing: a file appears complete or not at all, and replaces another one only on request."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fullrank.errors import UserError


@contextmanager
def atomic_write(path: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """Yield a temporary path in the folder of `path`; the file is renamed to `path` at the end, or removed if an error occurs.

    Raises:
        UserError: the file exists and `overwrite` is False, or it cannot be written.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "new" / "one.txt"
    >>> with atomic_write(path) as temporary:
    ...     temporary.write_text("all of it"), path.exists()
    (9, False)
    >>> path.read_text(), [file.name for file in path.parent.iterdir()]
    ('all of it', ['one.txt'])
    """
    if path.is_dir():
        raise UserError(f"{path} is a folder, expected a file; give a file name in it")
    if path.exists() and not overwrite:
        raise UserError(f"{path} exists already; choose another file, or replace it with --overwrite (overwrite=True in Python)")
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.touch()  # fails before the work if the file cannot be written
    except OSError as error:
        raise UserError(f"cannot write {path} ({error.strerror}); choose another folder, or fix its permissions") from error
    try:
        yield temporary
        os.replace(temporary, path)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise UserError(f"no space left for {path}; free some space, or choose another disk") from error
        raise
    finally:
        temporary.unlink(missing_ok=True)
