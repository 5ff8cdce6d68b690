import os
import signal
import threading

import pytest

from fullrank.run.signals import STOPS, stop_on_signals


@pytest.fixture(autouse=True)
def caught():
    """Install handlers of a program, which collect the signals, and restore the old ones at the end."""
    caught = []
    before = {number: signal.signal(number, lambda number, frame: caught.append(number)) for number in STOPS}
    yield caught
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", STOPS, ids=lambda number: number.name)
def test_the_first_signal_sets_the_flag_and_the_second_has_its_usual_effect(number, caught):
    acted = []
    with stop_on_signals(lambda: acted.append(1)) as flag:
        assert flag.signum == 0
        os.kill(os.getpid(), number)
        assert (flag.signum, acted, caught) == (number, [1], [])
        signal.raise_signal(signal.SIGTERM)
    assert (flag.signum, caught) == (number, [signal.SIGTERM])


def test_an_ignored_sighup_stays_ignored():
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with stop_on_signals() as flag:
        signal.raise_signal(signal.SIGHUP)
        assert flag.signum == 0


def test_the_handlers_are_restored_after_an_error(caught):
    with pytest.raises(KeyError), stop_on_signals():
        raise KeyError
    signal.raise_signal(signal.SIGINT)
    assert caught == [signal.SIGINT]


def test_another_thread_leaves_the_handlers_unchanged():
    before, seen = signal.getsignal(signal.SIGTERM), []

    def work():
        with stop_on_signals() as flag:
            seen.append((flag.signum, signal.getsignal(signal.SIGTERM)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(0, before)]
