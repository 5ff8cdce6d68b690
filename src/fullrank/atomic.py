"""A file appears whole or not at all, and replaces another one only when asked to."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fullrank.errors import UserError


@contextmanager
def atomic_write(path: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """Yield a draft beside `path` to write to; it takes the name of `path` at the end, or is removed if anything fails.

    Raises:
        UserError: the file is there already and is not to be overwritten, or it cannot be written.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "new" / "one.txt"
    >>> with atomic_write(path) as draft:
    ...     draft.write_text("all of it"), path.exists()
    (9, False)
    >>> path.read_text(), [file.name for file in path.parent.iterdir()]
    ('all of it', ['one.txt'])
    """
    if path.is_dir():
        raise UserError(f"{path} is a folder, expected a file; give a file name in it")
    if path.exists() and not overwrite:
        raise UserError(f"{path} exists already; choose another file, or replace it with --overwrite (overwrite=True in Python)")
    draft = path.with_name(f".{path.name}.{os.getpid()}.draft")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.touch()  # says before the work that it can be written
    except OSError as error:
        raise UserError(f"cannot write {path} ({error.strerror}); choose another folder, or mend its permissions") from error
    try:
        yield draft
        os.replace(draft, path)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise UserError(f"no space left for {path}; free some, or choose another disk") from error
        raise
    finally:
        draft.unlink(missing_ok=True)
