import os
import signal
import threading

import pytest

from fullrank.run.launch.signals import stop_on_signals

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
each = pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)


@pytest.fixture(autouse=True)
def handlers():
    """Install handlers of a program, and restore the old ones at the end."""
    caught = []

    def own(number, frame):
        caught.append(number)

    before = {number: signal.signal(number, own) for number in SIGNALS}
    yield caught, own
    for number, handler in before.items():
        signal.signal(number, handler)


@each
def test_a_signal_sets_the_flag_and_nothing_else_happens(number, handlers):
    with stop_on_signals() as flag:
        assert flag.signum == 0
        os.kill(os.getpid(), number)
        assert flag.signum == number
    assert handlers[0] == []


@each
@pytest.mark.parametrize("second", SIGNALS, ids=lambda number: number.name)
def test_a_second_signal_has_its_usual_effect(number, second, handlers):
    with stop_on_signals() as flag:
        signal.raise_signal(number)
        signal.raise_signal(second)
        assert flag.signum == number
    assert handlers[0] == [second]


def test_an_ignored_sighup_stays_ignored():
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with stop_on_signals() as flag:
        signal.raise_signal(signal.SIGHUP)
        assert flag.signum == 0


def test_a_second_ctrl_c_is_a_keyboard_interrupt():
    signal.signal(signal.SIGINT, signal.default_int_handler)

    def twice():
        with stop_on_signals():
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        twice()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("came", [False, True])
def test_the_handlers_are_restored(came, handlers):
    with stop_on_signals():
        assert all(signal.getsignal(number) is not handlers[1] for number in SIGNALS)
        if came:
            signal.raise_signal(signal.SIGTERM)
    assert all(signal.getsignal(number) is handlers[1] for number in SIGNALS)


def test_the_handlers_are_restored_after_an_error(handlers):
    with pytest.raises(KeyError), stop_on_signals():
        raise KeyError
    assert all(signal.getsignal(number) is handlers[1] for number in SIGNALS)


def test_each_context_has_a_new_flag():
    with stop_on_signals() as first:
        signal.raise_signal(signal.SIGTERM)
    with stop_on_signals() as second:
        assert (first.signum, second.signum) == (signal.SIGTERM, 0)


def test_another_thread_leaves_the_handlers_unchanged(handlers):
    seen = []

    def work():
        with stop_on_signals() as flag:
            seen.append((flag.signum, signal.getsignal(signal.SIGTERM)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(0, handlers[1])]
