"""Exceptions that stop a command: a mistake of the user, an interruption, and the failure of a process."""

import difflib
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")
Notify = Callable[[str], Any]


def silent(line: str) -> None:
    """Say nothing."""


def utf8(name: str) -> str:
    r"""Return the name of a file, which may be no UTF-8, with the other bytes as escape sequences.

    >>> utf8("a\udcff.png")
    'a\\udcff.png'
    """
    return name.encode("utf-8", "backslashreplace").decode()


def printable(text: str) -> str:
    r"""Return the text as one line, with each control character as its escape sequence: a file's name must not command
    the terminal.

    >>> printable("a\x1b[2Jb.png\nc")
    'a\\x1b[2Jb.png c'
    """
    line = " ".join(text.splitlines())
    return "".join(
        c.encode("unicode_escape").decode() if unicodedata.category(c) in ("Cc", "Cf", "Cs") else c for c in line
    )


class UserError(ValueError):
    """A mistake that the user can fix. The message is one line: what was received, what was expected, and the remedy.

    The command line prints only this line and exits with status 2. Every other exception is a bug of fullrank and keeps
    its traceback.
    """

    def __init__(self, message: str):
        super().__init__(printable(message))  # a message contains names of files, which may contain any character


class NotFiniteError(UserError):
    """Numbers are NaN or infinite."""


class Interrupted(Exception):
    """Signal `signum` stopped the run. The message says how to continue; the exit status is 128 + signum."""

    def __init__(self, signum: int, message: str) -> None:
        super().__init__(message)
        self.signum = signum


class ProcessFailed(Exception):
    """The failure of one of several processes. The message names the process and says how to continue; the exit status
    is 1.

    If the cause is a bug of fullrank, the traceback of that process is a note of the exception.
    """


def exception_line(error: BaseException) -> str:
    """Return the type of an exception and the first line of its message.

    >>> exception_line(KeyError("Z"))
    "KeyError: 'Z'"
    """
    first = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {first}"[:300]


@contextmanager
def explain_errors(what: str, remedy: str) -> Iterator[None]:
    """Turn an exception of any type, such as those of libraries that read a damaged file, into a UserError.

    >>> with explain_errors("the number cannot be read", "give digits"):
    ...     int("x")
    Traceback (most recent call last):
    fullrank.errors.UserError: the number cannot be read (ValueError: invalid literal for int() with base 10: 'x'); \
give digits
    """
    try:
        yield
    except (UserError, Interrupted, MemoryError):
        raise
    except Exception as error:
        raise UserError(f"{what} ({exception_line(error)}); {remedy}") from error


def suggest(name: str, options: Mapping[str, object] | list[str] | tuple[str, ...]) -> str:
    """Return `; did you mean 'x'?` for the nearest option in upper or lower case, or an empty string.

    >>> suggest("VICReg", ["simclr", "vicreg"])
    "; did you mean 'vicreg'?"
    """
    known = {option.lower(): option for option in options}
    matches = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.6)
    return f"; did you mean '{known[matches[0]]}'?" if matches else ""


def pick(name: str, options: Mapping[str, T], what: str) -> T:
    """Return `options[name]`.

    Raises:
        UserError: the name is unknown; the message lists the options and suggests the nearest one.
    """
    if name in options:
        return options[name]
    raise UserError(f"unknown {what} '{name}'; choose from {', '.join(sorted(options))}{suggest(name, options)}")
