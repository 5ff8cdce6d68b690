"""What ends a command otherwise than by its end: a mistake that the user can mend, the wish to stop, the death of a process."""

import difflib
from collections.abc import Mapping
from typing import TypeVar

T = TypeVar("T")


class UserError(ValueError):
    """A mistake that the user can mend: one line that says what was received, what was expected, and the remedy.

    The command line prints the line alone and exits with status 2. Every other exception is our own bug and keeps its traceback.
    """


class Interrupted(Exception):
    """The user asked to stop, by signal `signum`. The message says what was saved and how to go on; the exit status is 128 + signum."""

    def __init__(self, signum: int, message: str) -> None:
        super().__init__(message)
        self.signum = signum


class ProcessFailed(Exception):
    """One of several processes died. The message names it and says how to go on; the exit status is 1.

    Where it was our own bug, that process's traceback is a note of the exception.
    """


def suggest(name: str, options: Mapping[str, object] | list[str] | tuple[str, ...]) -> str:
    """Return `; did you mean 'x'?` for the nearest option, or an empty string.

    >>> suggest("vicregg", ["simclr", "vicreg"])
    "; did you mean 'vicreg'?"
    """
    near = difflib.get_close_matches(name, list(options), n=1, cutoff=0.6)
    return f"; did you mean '{near[0]}'?" if near else ""


def pick(name: str, options: Mapping[str, T], what: str) -> T:
    """Look `name` up in `options`.

    Raises:
        UserError: no such name; the line lists the options and suggests the nearest one.
    """
    if name in options:
        return options[name]
    raise UserError(f"unknown {what} '{name}'; choose from {', '.join(sorted(options))}{suggest(name, options)}")
