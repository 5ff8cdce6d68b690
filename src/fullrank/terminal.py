"""The console for messages to the user of a command: standard error, without markup."""

import os

from rich.console import Console


def stderr() -> Console:
    """Return a console without markup or wrapping: brackets in a path are printed, and a line of a log stays one line.

    If a launcher started several processes, only the first one prints.

    >>> stderr().soft_wrap
    True
    """
    return Console(stderr=True, markup=False, emoji=False, highlight=False, soft_wrap=True, quiet=not is_rank_zero())


def is_rank_zero() -> bool:
    """Return whether this process is the only one, or the first of several processes of a launcher.

    >>> is_rank_zero()
    True
    """
    return os.environ.get("RANK", "0") == "0"
