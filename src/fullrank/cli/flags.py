"""Typed flags by tyro, with its boxes of errors folded into one line."""

import contextlib
import io
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import tyro

from fullrank.errors import UserError

T = TypeVar("T")


def parse(what: Callable[..., T], arguments: Sequence[str], *, verb: str, default: Any = None, description: str | None = None) -> T:
    """Parse `arguments` into `what`, a dataclass or a function, which is called.

    Raises:
        UserError: a flag or value that does not fit, in one line with tyro's suggestion.
        SystemExit: after `--help`.
    """
    errors = io.StringIO()
    kwargs = {} if default is None else {"default": default}
    try:
        with contextlib.redirect_stderr(errors):
            return tyro.cli(what, args=list(arguments), prog=f"fullrank {verb}", description=description, **kwargs)
    except SystemExit as stop:
        if not stop.code:
            print(errors.getvalue(), end="", file=sys.stderr)
            raise
        raise UserError(f"{one_line(errors.getvalue())}; see fullrank {verb} --help") from None


def one_line(box: str) -> str:
    r"""Fold the text of a box of tyro's into a line.

    >>> one_line("╭─ Options ─╮\n│ Unrecognized: --lr │\n│ ───── │\n│ Perhaps you meant: │\n│     --optimizer.lr FLOAT │\n╰──╯")
    'Unrecognized: --lr; Perhaps you meant: --optimizer.lr FLOAT'
    """
    rows = [row.strip().strip("│").strip() for row in box.splitlines() if not row.startswith(("╭", "╰"))]
    text = " ".join(";" if row and set(row) == {"─"} else row for row in rows if row and "full helptext" not in row)
    return " ".join(text.replace(" ;", ";").split()).strip("; ")
