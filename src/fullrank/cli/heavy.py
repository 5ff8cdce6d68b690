"""Imports of torch and other large libraries, which a command does only after it has checked its arguments."""

import contextlib
import signal
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def heavy_imports() -> Iterator[None]:
    """Let Ctrl-C end this process at once inside the context: an exception while modules are imported would show as a
    traceback.
    """
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    ):
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
