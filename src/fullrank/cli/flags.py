"""Typed flags by tyro, with its boxes of errors folded into one line."""

import contextlib
import io
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, TypeVar

import tyro

from fullrank.errors import UserError

T = TypeVar("T")

Model = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
"""The first argument of a verb that takes a MODEL."""

ROW = re.compile(r"[│|] (.*) [│|]")


def parse(what: Callable[..., T], arguments: Sequence[str], *, verb: str, default: Any = None, description: str | None = None) -> T:
    """Parse `arguments` into `what`, a dataclass or a function, which is called.

    Raises:
        UserError: a flag or value that does not fit, in one line with tyro's suggestion.
        SystemExit: after `--help`.
    """
    errors = io.StringIO()
    kwargs = {} if default is None else {"default": default}
    with contextlib.redirect_stderr(errors):
        try:
            build = tyro.cli(_later(what), args=list(arguments), prog=f"fullrank {verb}", description=description, **kwargs)
        except SystemExit as stop:
            if stop.code:
                raise UserError(f"{one_line(errors.getvalue())}; see fullrank {verb} --help") from None
            raise
    return build
