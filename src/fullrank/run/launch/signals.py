"""SIGTERM, Ctrl-C and a lost terminal (SIGHUP) set a flag, which the training loop reads between two steps."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class StopFlag:
    """The number of the first signal that arrived, or 0."""

    signum = 0


@contextmanager
def stop_on_signals() -> Iterator[StopFlag]:
    """Let the first SIGINT, SIGTERM or SIGHUP inside the context set the flag; a second signal has its usual effect.

    A SIGHUP that is ignored stays ignored, so that a run under nohup goes on when its terminal closes.

    >>> with stop_on_signals() as flag:
    ...     signal.raise_signal(signal.SIGTERM)
    ...     flag.signum == signal.SIGTERM
    True
    """
    flag = StopFlag()
    if threading.current_thread() is not threading.main_thread():  # only the main thread can handle signals
        yield flag
        return
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    if handlers[signal.SIGHUP] is signal.SIG_IGN:
        del handlers[signal.SIGHUP]

    def restore() -> None:
        for number, handler in handlers.items():
            signal.signal(number, handler)

    def set_flag(signum: int, frame: FrameType | None) -> None:
        flag.signum = signum
        restore()

    for number in handlers:
        signal.signal(number, set_flag)
    try:
        yield flag
    finally:
        restore()
