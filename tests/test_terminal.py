import errno
import io
import os
import subprocess
import sys

import pytest

from fullrank.errors import printable
from fullrank.terminal import LastingStream, is_rank_zero, lasting_streams, stderr


@pytest.fixture
def unread():
    """A text stream on a pipe whose reader has gone."""
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as stream:
        yield stream


def test_a_stream_without_reader_discards_everything_from_then_on(unread):
    stream = LastingStream(unread)
    for _ in range(3):
        assert stream.write("a line\n") == 7
        stream.flush()
    unread.write("also around the wrapper, as the last flush of Python does")
    unread.flush()


def test_the_console_outlives_its_reader(unread, monkeypatch):
    monkeypatch.setattr(sys, "stderr", unread)
    console = stderr()
    for _ in range(3):
        console.print("a line")


def test_the_console_prints_no_control_characters(capsys):
    stderr().print("first\nimages of a\x1b[2Jb \u202e")
    assert capsys.readouterr().err == "first\nimages of a\\x1b[2Jb \\u202e\n"


def test_a_lost_terminal_is_a_reader_that_has_gone(unread):
    class Hangup(io.StringIO):
        def write(self, text):
            raise OSError(errno.EIO, "Input/output error")

        def fileno(self):
            return unread.fileno()

    assert LastingStream(Hangup()).write("step 1") == 6


def test_other_errors_of_a_stream_are_not_hidden():
    class Full(io.StringIO):
        def write(self, text):
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        LastingStream(Full()).write("step 1")


def test_the_streams_are_restored(capsys):
    before, errors = (sys.stdout, sys.stderr), sys.stdout.errors
    with lasting_streams():
        assert isinstance(sys.stdout, LastingStream)
        print("out")
    assert ((sys.stdout, sys.stderr), sys.stdout.errors) == (before, errors)
    assert capsys.readouterr().out == "out\n"


def test_a_process_without_streams_runs(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    with lasting_streams():
        stderr().print("nobody reads this")
    assert (sys.stdout, sys.stderr) == (None, None)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("café → 2 × 3", "café → 2 × 3"),
        ("a\x1b]0;title\x07.png", r"a\x1b]0;title\x07.png"),
        ("right\u202eto left", r"right\u202eto left"),
        ("not \udcff UTF-8", r"not \udcff UTF-8"),
        ("two\r\nlines", "two lines"),
    ],
)
def test_control_characters_are_shown_as_escapes(text, shown):
    assert printable(text) == shown


@pytest.mark.parametrize(
    ("encoding", "arguments", "status", "words"),
    [
        ("ascii", ["--help"], 0, "usage: fullrank COMMAND ..."),
        ("latin-1", ["check", "--help"], 0, "usage: fullrank check"),
        ("ascii", ["pretrain", "no\udcff/\x1b[31mfolder"], 2, r"fullrank: 'no\udcff/\x1b[31mfolder' is neither"),
    ],
)
def test_every_terminal_shows_help_and_messages(encoding, arguments, status, words):
    command = [sys.executable, "-m", "fullrank", *map(os.fsencode, arguments)]
    done = subprocess.run(command, capture_output=True, timeout=120, env=os.environ | {"PYTHONIOENCODING": encoding})
    assert done.returncode == status, done.stderr
    assert words in (done.stdout + done.stderr).decode(encoding)


def test_only_the_first_process_of_a_launcher_prints(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    assert is_rank_zero(), "RANK alone, in the environment of a shell, means nothing"
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "test")
    assert not is_rank_zero()
    monkeypatch.delenv("TORCHELASTIC_RUN_ID")
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "2")
    monkeypatch.setenv("SLURM_PROCID", "1")
    assert not is_rank_zero()
