"""The console for messages to the user: standard error, without markup."""

import os

from rich.console import Console


def stderr() -> Console:
    """Return a console without markup or wrapping: brackets in a path are printed, and a long line is not broken.

    If a launcher started several processes, only the first process prints.

    >>> stderr().soft_wrap
    True
    """
    return Console(stderr=True, markup=False, emoji=False, highlight=False, soft_wrap=True, quiet=not is_rank_zero())


def is_rank_zero() -> bool:
    """Return whether this process is the first of the processes that a launcher started, or the only process.

    >>> is_rank_zero()
    True
    """
    return os.environ.get("RANK", "0") == "0"
