import errno
import io
import os
import sys

import pytest

from fullrank.run.terminal import LastingStream, is_rank_zero, stderr


@pytest.fixture
def unread():
    """A text stream on a pipe whose reader has gone."""
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as stream:
        yield stream


def test_the_console_outlives_its_reader(unread, monkeypatch):
    monkeypatch.setattr(sys, "stderr", unread)
    console = stderr()
    for _ in range(3):
        console.print("a line")
    unread.write("also around the wrapper, as the last flush of Python does")
    unread.flush()


def test_a_lost_terminal_is_a_reader_that_has_gone(unread):
    class Hangup(io.StringIO):
        def write(self, text):
            raise OSError(errno.EIO, "Input/output error")

        def fileno(self):
            return unread.fileno()

    assert LastingStream(Hangup()).write("step 1") == 6


def test_the_console_prints_no_control_characters_and_needs_no_stream(capsys, monkeypatch):
    stderr().print("first\nimages of a\x1b[2Jb \u202e")
    assert capsys.readouterr().err == "first\nimages of a\\x1b[2Jb \\u202e\n"
    monkeypatch.setattr(sys, "stderr", None)
    stderr().print("nobody reads this")


def test_only_the_first_process_of_torchrun_prints(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    assert is_rank_zero(), "RANK alone, in the environment of a shell, means nothing"
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "test")
    assert not is_rank_zero()
    assert stderr().quiet
