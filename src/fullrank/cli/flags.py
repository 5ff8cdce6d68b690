"""Parse typed flags with tyro, and shorten tyro's error boxes to one line."""

import contextlib
import functools
import io
import os
import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, TypeVar

import tyro

from fullrank.errors import UserError

T = TypeVar("T")

LONGEST_NAME, LONGEST_PATH = 255, 4096
"""Bytes of the longest file name and the longest path on Linux."""

Model = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
"""The positional argument of the commands that take a MODEL."""


def call(function: Callable[..., T], arguments: Sequence[str], *, command: str) -> T:
    """Call the function of a command; the function's signature defines the flags, and its docstring the help.

    Raises:
        UserError: a flag or value is wrong. Exceptions of the function are not changed.
    """

    @functools.wraps(function)
    def deferred(*values: Any, **named: Any) -> Callable[[], T]:
        return functools.partial(function, *values, **named)

    return parse(deferred, arguments, command=command)()  # called after parsing, because `parse` captures the output


def check_arguments(arguments: Sequence[str], *, command: str) -> None:
    """Check that no argument is empty, contains a zero byte, or is longer than a path can be. An empty path would be
    the working directory.

    Raises:
        UserError: an argument is one of these.
    """
    for i, argument in enumerate(arguments):
        flag, equals, value = argument.partition("=")
        if not argument or (equals and not value and flag.startswith("--")):
            where = flag or (arguments[i - 1] if i and arguments[i - 1].startswith("--") else f"argument {i + 1}")
            raise UserError(
                f"{where} is empty, expected a value; is a variable of the shell not set? See fullrank {command} --help"
            )
        if "\0" in argument:
            raise UserError(f"argument {argument!r} contains a zero byte, expected text; see fullrank {command} --help")
        text = value if equals else argument
        longest = 0 if text.startswith(("{", "[")) else max(len(os.fsencode(part)) for part in text.split("/"))
        if longest > LONGEST_NAME or len(text) > LONGEST_PATH:
            size = f"at most {LONGEST_NAME} bytes in a name and {LONGEST_PATH} in a path"
            raise UserError(
                f"argument {i + 1}, '{argument[:40]}…', has {len(argument)} characters, expected {size}; shorten it"
            )


def parse(
    what: Callable[..., T],
    arguments: Sequence[str],
    *,
    command: str,
    default: Any = None,
    description: str | None = None,
    hints: Mapping[str, str] = MappingProxyType({}),
) -> T:
    """Parse `arguments` into `what`, a dataclass.

    Args:
        what: the dataclass, or a function.
        arguments: the command line after the command.
        command: the command, for the messages.
        default: the values of flags that are not given.
        description: the first paragraph of the help.
        hints: unknown flag, with hyphens → what to say instead of the suggestions of tyro.

    Raises:
        UserError: a flag or value is wrong; the message is one line with tyro's suggestion.
        SystemExit: after `--help`.
    """
    check_arguments(arguments, command=command)
    options: dict[str, Any] = {"args": list(arguments), "prog": f"fullrank {command}", "description": description}
    if default is not None:
        options["default"] = default
    output = io.StringIO()
    try:
        with (
            contextlib.redirect_stdout(output),
            contextlib.redirect_stderr(output),
        ):  # without a terminal, tyro prints no colours or frames
            return tyro.cli(what, **options)
    except SystemExit as stop:
        if stop.code:
            text = one_line(output.getvalue())
            unknown = re.match(r"unrecognized options: (--[^\s=,;]+)", text)
            if unknown and (hint := hints.get(unknown[1].replace("_", "-"))):
                text = f"unrecognized options: {unknown[1]}; {hint}"
            raise UserError(f"{text}; see fullrank {command} --help") from None
    return tyro.cli(what, **options)  # again, to print the help on the terminal


def one_line(box: str) -> str:
    r"""Return an error box of tyro as one line: the message and the proposed flags, without the help of the flags.

    >>> one_line(" Oh\n ---\n  Unrecognized options: --lr\n  ---\n  Perhaps you meant:\n      --optimizer.lr FLOAT\n          Help.\n")
    'unrecognized options: --lr; did you mean --optimizer.lr FLOAT?'
    >>> one_line(" Oh\n ---\n  Error parsing --epochs: no number\n  ---\n  Argument helptext:\n      --epochs INT\n      Help.\n")
    'error parsing --epochs: no number; expected --epochs INT'
    """
    message, *others = sections(box)
    text = " ".join(row.strip() for row in message if not row.startswith(" " * 8))
    flags = [row.strip() for _, *rows in others for row in rows if re.match(r" {4}-", row)]
    hint = (
        ""
        if not flags
        else f"; expected {flags[0]}"
        if "helptext" in others[0][0]
        else f"; did you mean {' or '.join(flags)}?"
    )
    return text[:1].lower() + text[1:].rstrip(".") + hint


def sections(box: str) -> list[list[str]]:
    """Return the rows between the horizontal lines of a box, without its title and the reference to the help."""
    parts: list[list[str]] = [[]]
    for row in (line[2:].rstrip() for line in box.splitlines()[1:]):
        if set(row) == {"-"}:
            parts.append([])
        elif row:
            parts[-1].append(row)
    return [part for part in parts if part and "full helptext" not in part[0]]
