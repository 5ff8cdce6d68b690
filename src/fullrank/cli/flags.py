"""Parse typed flags with tyro, and shorten tyro's error boxes to one line."""

import contextlib
import functools
import io
import re
import warnings
from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeVar

import tyro

from fullrank.errors import UserError

T = TypeVar("T")

# The positional argument of the commands that take a MODEL.
Model = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]


def call(function: Callable[..., T], arguments: Sequence[str], *, command: str) -> T:
    """Call the function of a command; the function's signature defines the flags, and its docstring the help.

    Raises:
        UserError: a flag or value is wrong. Exceptions of the function are not changed.
    """

    @functools.wraps(function)
    def deferred(*values: Any, **named: Any) -> Callable[[], T]:
        return functools.partial(function, *values, **named)

    return parse(deferred, arguments, command=command)()  # called after parsing, because `parse` captures the output


def parse(what: Callable[..., T], arguments: Sequence[str], *, command: str, **options: Any) -> T:
    """Parse `arguments` into `what`, a dataclass or a function.

    Args:
        what: the dataclass, or the function, which is called.
        arguments: the command line after the command.
        command: the command, for the messages.
        **options: of `tyro.cli`: the `default` of the dataclass, the `description` in the help.

    Raises:
        UserError: a flag or value is wrong; the message is one line with tyro's suggestion.
        SystemExit: after `--help`.
    """
    run = functools.partial(tyro.cli, what, args=list(arguments), prog=f"fullrank {command}", **options)
    output = io.StringIO()
    with warnings.catch_warnings(action="ignore"):  # about types that tyro cannot check; pydantic does
        try:
            with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):  # then tyro draws no frames
                return run()
        except SystemExit as stop:
            if stop.code:
                raise UserError(f"{one_line(output.getvalue())}; see fullrank {command} --help") from None
        return run()  # again, to print the help on the terminal


def flag_words(arguments: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Return the name of each flag, without hyphens, with the words after it.

    >>> flag_words(["digits", "--objective", "frossl", "vicreg", "--batch-size=64", "--trust"])
    [('objective', ['frossl', 'vicreg']), ('batch_size', ['64']), ('trust', [])]
    """
    found: list[tuple[str, list[str]]] = []
    for argument in arguments:
        flag, equals, value = argument.partition("=")
        if flag.startswith("--"):
            found.append((flag[2:].replace("-", "_"), [value] if equals else []))
        elif found:
            found[-1][1].append(argument)
    return found


def one_line(box: str) -> str:
    r"""Return an error box of tyro as one line: the message and the proposed flags, without the help of the flags.

    >>> one_line(" Oh\n ---\n  Unrecognized options: --lr\n  ---\n  Perhaps you meant:\n      --optimizer.lr FLOAT\n")
    'unrecognized options: --lr; did you mean --optimizer.lr FLOAT?'
    """
    parts: list[list[str]] = [[]]
    for row in (line[2:].rstrip() for line in box.splitlines()[1:]):
        if set(row) == {"-"}:
            parts.append([])
        elif row:
            parts[-1].append(row)
    message, *others = [part for part in parts if part and "full helptext" not in part[0]]
    text = " ".join(row.strip() for row in message if not row.startswith(" " * 8)).rstrip(".")
    flags = [row.strip() for rows in others for row in rows[1:] if re.match(r" {4}-", row)]
    hint = f"; did you mean {' or '.join(flags)}?" if flags and "helptext" not in others[0][0] else ""
    hint = hint or (f"; expected {flags[0]}" if flags else "")
    return text[:1].lower() + text[1:] + hint
