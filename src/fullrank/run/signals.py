"""SIGTERM, Ctrl-C, a lost terminal (SIGHUP) and SIGUSR2 set a flag, which the training loop reads between two steps."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

# Ctrl-C; the end of a process; a lost terminal; SLURM before it ends or preempts a job of submitit.
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2)


class StopFlag:
    """The number of the first signal that arrived, or 0."""

    signum = 0


@contextmanager
def stop_on_signals(act: Callable[[], Any] = lambda: None) -> Iterator[StopFlag]:
    """Let the first signal of `STOPS` inside the context set the flag and call `act`; a second signal has its usual
    effect.

    A SIGHUP that is ignored stays ignored, so that a run under nohup goes on when its terminal closes.

    >>> with stop_on_signals() as flag:
    ...     signal.raise_signal(signal.SIGTERM)
    ...     flag.signum == signal.SIGTERM
    True
    """
    flag, before = StopFlag(), {}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def set_flag(signum: int, frame: object) -> None:
        flag.signum = signum
        restore()
        act()

    if threading.current_thread() is threading.main_thread():  # no other thread can handle signals
        heard = (n for n in STOPS if n != signal.SIGHUP or signal.getsignal(n) is not signal.SIG_IGN)
        before.update((number, signal.signal(number, set_flag)) for number in heard)
    try:
        yield flag
    finally:
        restore()
