"""The terminal: the console for messages to the user, readers that go away, and characters that a terminal cannot show.

Messages go to standard error, without markup. A command never ends because its reader has gone (`fullrank … | head`, a
lost connection).
"""

import codecs
import contextlib
import errno
import io
import os
import sys
import unicodedata
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from fullrank.errors import printable

if TYPE_CHECKING:
    from rich.console import Console, ConsoleRenderable

READER_IS_GONE = {errno.EPIPE, errno.EIO}
"""Errors of a write to a closed pipe, and to a terminal whose connection is lost."""

ASCII = {"→": "->", "≥": ">=", "≤": "<=", "×": "x", "·": "-", "–": "-", "—": "-", "−": "-", "✓": "+", "✗": "x"}
"""Characters of the help and the messages → their ASCII form, where Unicode does not define one."""


def stderr() -> "Console":
    """Return a console without markup or wrapping: brackets in a path are printed, and a long line is not broken.

    Control characters are printed as escape sequences, because a message may contain a text from a stranger's file. If
    a launcher started several processes, only the first process prints.

    >>> stderr().soft_wrap
    True
    """
    from rich.console import Console  # not at the top, because the help needs no rich

    file: Any = sys.stderr and LastingStream(sys.stderr)
    console = Console(
        file=file, stderr=True, markup=False, emoji=False, highlight=False, soft_wrap=True, quiet=not is_rank_zero()
    )
    console.push_render_hook(PrintableText())  # pyright: ignore[reportArgumentType]  no subclass of RenderHook, which is in rich
    return console


class PrintableText:
    r"""A render hook of rich: texts are printed without control characters, line by line.

    >>> from rich.text import Text
    >>> PrintableText().process_renderables([Text("a\x1b[2J\nb")])
    [<text 'a\\x1b[2J\nb' [] ''>]
    """

    def process_renderables(self, renderables: "list[ConsoleRenderable]") -> "list[ConsoleRenderable]":
        """Return the renderables with printable texts."""
        from rich.text import Text

        for text in renderables:
            if isinstance(text, Text) and not text.plain.replace("\n", "").isprintable():
                text.plain = "\n".join(map(printable, text.plain.split("\n")))
        return renderables


def is_rank_zero() -> bool:
    """Return whether this process is the first of the processes that a launcher started, or the only process.

    >>> is_rank_zero()
    True
    """
    if "TORCHELASTIC_RUN_ID" in os.environ:
        return os.environ.get("RANK", "0") == "0"
    return os.environ.get("SLURM_STEP_NUM_TASKS", "1") == "1" or os.environ.get("SLURM_PROCID", "0") == "0"


class LastingStream:
    """A text stream that discards all output once its reader has gone: a closed pipe, or a terminal whose connection is
    lost.

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
        """Write the text, or discard it if the reader has gone."""
        with self._discard_without_reader():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Write what is buffered, or discard it if the reader has gone."""
        with self._discard_without_reader():
            self._stream.flush()

    @contextlib.contextmanager
    def _discard_without_reader(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno not in READER_IS_GONE:
                raise
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self._stream.fileno())  # so that later writes, also the last flush of Python, succeed
            os.close(null)
            self._stream.flush()


@contextlib.contextmanager
def lasting_streams() -> Iterator[None]:
    """Inside the context, standard output and standard error outlive their readers, and write a substitute for what
    they cannot encode.
    """
    codecs.register_error("fullrank", substitute)
    before = {name: stream for name in ("stdout", "stderr") if (stream := getattr(sys, name))}
    errors = {name: stream.errors for name, stream in before.items() if isinstance(stream, io.TextIOWrapper)}
    try:
        for name, stream in before.items():
            if name in errors:
                stream.reconfigure(errors="fullrank")
            setattr(sys, name, LastingStream(stream))
        yield
    finally:
        for name, stream in before.items():
            LastingStream(stream).flush()
            setattr(sys, name, stream)
            if name in errors:
                stream.reconfigure(errors=errors[name])


def substitute(error: UnicodeError) -> tuple[str, int]:
    r"""Return a readable substitute for characters that a stream cannot encode: an error handler of `codecs`.

    >>> codecs.register_error("fullrank", substitute)
    >>> "Größe ≥ 3 … \udcff 猫".encode("ascii", "fullrank")
    b'Grosse >= 3 ... \\udcff \\u732b'
    """
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(map(_to_ascii, error.object[error.start : error.end])), error.end


def _to_ascii(character: str) -> str:
    decomposed = unicodedata.normalize("NFKD", {"ß": "ss"}.get(character, character)).encode("ascii", "ignore").decode()
    return ASCII.get(character) or decomposed or character.encode("ascii", "backslashreplace").decode()
