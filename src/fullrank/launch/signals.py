"""SIGTERM and Ctrl-C, turned into a flag that the loop reads between two steps."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class StopFlag:
    """Which signal came, if any; 0 before."""

    signum = 0


@contextmanager
def stop_on_signals() -> Iterator[StopFlag]:
    """Within the block, SIGINT and SIGTERM set the flag; a second one acts at once, as it would without us.

    >>> with stop_on_signals() as flag:
    ...     signal.raise_signal(signal.SIGTERM)
    ...     flag.signum == signal.SIGTERM
    True
    """
    flag = StopFlag()
    if threading.current_thread() is not threading.main_thread():  # Python delivers signals to the main thread alone
        yield flag
        return
    signals = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.getsignal(number) for number in signals}

    def handle(signum: int, frame: FrameType | None) -> None:
        flag.signum = signum
        for number in signals:
            signal.signal(number, before[number])

    for number in signals:
        signal.signal(number, handle)
    try:
        yield flag
    finally:
        for number in signals:
            signal.signal(number, before[number])
