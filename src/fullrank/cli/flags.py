"""Parse typed flags with tyro, and shorten tyro's error boxes to one line."""

import contextlib
import difflib
import functools
import io
import json
import re
import warnings
from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeVar

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from fullrank.errors import UserError
from fullrank.files import parse_json

T = TypeVar("T")

# A kind of value in a box of tyro → what it is.
KINDS = {"FLOAT": "a number", "INT": "a whole number", "HOURS": "a number of hours such as 8"}
# The positional argument of the commands that take a MODEL.
Model = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
REGISTRY = ConstructorRegistry()


@REGISTRY.primitive_rule
def _json_rule(kind: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[dict[str, Any]] | None:
    """Read a dictionary from one word, a JSON object."""
    if kind.type_origin is not dict:
        return None
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="JSON",
        instance_from_str=_json_object,
        is_instance=lambda value: isinstance(value, dict),
        str_from_instance=lambda value: [json.dumps(value)],
    )


def _json_object(words: list[str]) -> dict[str, Any]:
    value = parse_json(words[0])
    if not isinstance(value, dict):
        raise ValueError(f"{words[0]} is not a JSON object")
    return value


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
    run = functools.partial(
        tyro.cli, what, args=list(arguments), prog=f"fullrank {command}", registry=REGISTRY, **options
    )
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
    r"""Return an error box of tyro as one line: the message, and the nearest flag or what was expected.

    >>> one_line(" Oh\n ---\n  Unrecognized options: --lr\n  ---\n  Perhaps you meant:\n      --optimizer.lr FLOAT\n")
    'unrecognized options: --lr; did you mean --optimizer.lr?'
    """
    _, message, *others = re.split(r"\n +-+ *\n", box)  # title, message, flags; rows of help have ten blanks
    text = " ".join(re.sub(r"(?m)^ {10}.*", "", message).split()).rstrip(".")
    flags = [flag.strip() for part in others for flag in re.findall(r"(?m)^ {6}(-.*)", part)]
    if flags and text.startswith("Unrecognized"):
        wrong, names = re.findall(r"--[^\s,]+", text), re.findall(r"--[\w.-]+", " ".join(flags))
        text += f"; did you mean {difflib.get_close_matches(wrong[0], names, n=1, cutoff=0)[0]}?"
    elif flags and (received := re.search(r"('.*?')(?=\]|$| Got)", text)):
        flag, _, kind = flags[0].replace("{None}|", "").partition(" ")
        text = f"{flag} is {received[1]}, expected {KINDS.get(kind, kind)}"
    return text[:1].lower() + text[1:]
