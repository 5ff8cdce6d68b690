import errno
import io
import os
import sys

import pytest
from rich.console import Console

from fullrank.run.terminal import LastingStream, ProgressBar, stderr


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
    assert not stderr().quiet, "RANK alone, in the environment of a shell, means nothing"
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "test")
    assert stderr().quiet


SIZES = {"total": 360, "steps_per_epoch": 36, "batch_size": 10}


def test_without_a_terminal_there_are_at_most_twenty_lines_with_the_caption():
    output = io.StringIO()
    with ProgressBar(Console(file=output, soft_wrap=True), start=0, **SIZES) as progress:
        progress.caption = "loss 3.000"
        for step in range(1, 361):
            progress.show(step)
    lines = output.getvalue().splitlines()
    assert len(lines) == 20
    assert lines[-1].startswith("step 360/360 · epoch 10.0/10 · ")
    assert lines[-1].endswith("images/s · loss 3.000")


def test_a_terminal_has_a_bar_and_a_resumed_run_counts_its_own_images():
    output = io.StringIO()
    with ProgressBar(Console(file=output, force_terminal=True, width=120), start=300, **SIZES) as progress:
        progress.caption = "loss 3.000"
        progress.started -= 2.0
        progress.show(320)
        assert 90 < progress.speed(320) <= 100  # 20 steps of 10 images in two seconds
    assert "320/360" in output.getvalue()
    assert "loss 3.000" in output.getvalue()
