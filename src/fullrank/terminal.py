"""Where the words for the user of a command go: to standard error, as they stand."""

from rich.console import Console


def stderr() -> Console:
    """Return a console that interprets nothing and wraps nothing: brackets in a path are no markup, a line of a log stays one line.

    >>> stderr().soft_wrap
    True
    """
    return Console(stderr=True, markup=False, emoji=False, highlight=False, soft_wrap=True)
