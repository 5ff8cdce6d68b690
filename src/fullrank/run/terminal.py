"""The terminal: messages go to standard error, without markup, and never end a run because their reader has gone."""

import os
import sys
from typing import Any

from rich.console import Console

from fullrank.errors import printable


class Terminal(Console):
    """A console without markup or wrapping: brackets in a path are printed, and a long line is not broken.

    Control characters are printed as escape sequences, because a message may contain a text from a stranger's file.
    """

    def __init__(self, **options: Any) -> None:
        plain: dict[str, Any] = {"markup": False, "emoji": False, "highlight": False, "soft_wrap": True}
        file: Any = sys.stderr and LastingStream(sys.stderr)
        super().__init__(file=file, stderr=True, **plain | options)

    def print(self, *objects: Any, **options: Any) -> None:
        """Print; a text without its control characters."""
        texts = ("\n".join(map(printable, x.split("\n"))) if isinstance(x, str) else x for x in objects)
        super().print(*texts, **options)


class LastingStream:
    """A text stream that writes to nowhere once its reader has gone: a closed pipe, or a lost terminal.

    >>> import io
    >>> stream = LastingStream(io.StringIO())
    >>> stream.write("step 1"), stream.getvalue()
    (6, 'step 1')
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write and flush the text."""
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())
        return len(text)


def stderr() -> Terminal:
    """Return the console for messages; of the processes that torchrun has started, only the first one prints.

    >>> stderr().soft_wrap
    True
    """
    return Terminal(quiet=not is_rank_zero())


def is_rank_zero() -> bool:
    """Return whether this process is the only one, or the first of those that torchrun has started.

    >>> is_rank_zero()
    True
    """
    return "TORCHELASTIC_RUN_ID" not in os.environ or os.environ.get("RANK", "0") == "0"
