"""Where the words for the user of a command go: to standard error, as they stand."""

import os

from rich.console import Console


def stderr() -> Console:
    """Return a console that interprets nothing and wraps nothing: brackets in a path are no markup, a line of a log stays one line.

    Of several processes that one launcher started, the first alone is heard.

    >>> stderr().soft_wrap
    True
    """
    return Console(stderr=True, markup=False, emoji=False, highlight=False, soft_wrap=True, quiet=not is_rank_zero())


def is_rank_zero() -> bool:
    """Whether this process is the only one, or the first of those that one launcher started.

    >>> is_rank_zero()
    True
    """
    return os.environ.get("RANK", "0") == "0"
