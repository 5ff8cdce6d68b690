import io
import time

import pytest
import torch
from rich.console import Console

from fullrank.run.progress import ProgressBar, forecast

CPU = torch.device("cpu")


def expected_time(text):
    return text.partition(" · ")[0]


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0.4, "about 0 seconds left"),
        (119, "about 119 seconds left"),
        (120, "about 2 minutes left"),
        (3540, "about 59 minutes left"),
        (3600, "about 1.0 hours left"),
        (45 * 3600, "about 45.0 hours left"),
    ],
)
def test_the_time_left_follows_from_the_speed_so_far(seconds, expected):
    assert (
        expected_time(forecast(steps_left=100, seconds=seconds / 5, steps=20, wait_seconds=0.0, device=CPU)) == expected
    )


def test_the_share_of_a_step_spent_on_batches_is_reported():
    assert forecast(steps_left=1, seconds=4.0, steps=20, wait_seconds=1.0, device=CPU).endswith(
        "loading batches takes 25% of the time"
    )


def test_the_memory_of_the_process_is_reported(monkeypatch):
    text = forecast(steps_left=1, seconds=4.0, steps=20, wait_seconds=1.0, device=CPU)
    memory = float(text.split(" · ")[1].removeprefix("memory ").removesuffix(" GiB"))
    assert 0.05 < memory < 500


@pytest.mark.parametrize(("wait_seconds", "data_bound"), [(1.0, False), (3.0, True)])
def test_a_gpu_that_waits_for_data_is_reported(monkeypatch, wait_seconds, data_bound):
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 3 * 2**29)
    text = forecast(steps_left=1, seconds=4.0, steps=20, wait_seconds=wait_seconds, device=torch.device("cuda"))
    assert (
        "the GPU waits for data (give more --data.workers, --data.storage memory, or smaller images: docs/photos.md)"
        in text
    ) is data_bound
    assert "memory 1.5 GiB" in text


def test_a_cpu_is_not_reported_to_wait_for_data():
    assert "waits" not in forecast(steps_left=1, seconds=4.0, steps=20, wait_seconds=3.9, device=CPU)


def lines(*, total, start=0, terminal=False, steps=None):
    text = io.StringIO()
    console = Console(file=text, force_terminal=terminal, width=150)
    with ProgressBar(console, start=start, total=total, steps_per_epoch=10, batch_size=32) as bar:
        for step in steps or range(start + 1, total + 1):
            bar.set_caption({"variance": 1.5, "invariance": 0.25}, (3, 12.34))
            bar.advance(step)
    return text.getvalue().splitlines()


def test_without_a_terminal_there_are_twenty_plain_lines():
    found = lines(total=100)
    assert len([line for line in found if line]) == 20
    assert found[0].startswith("step 5/100 · epoch 0.5/10 · ")
    assert found[0].endswith(
        " images/s · loss 1.750 = variance 1.500 + invariance 0.250 · effective rank of the batch 12.3 at step 3"
    )
    assert not any("\x1b" in line for line in found)


@pytest.mark.parametrize("total", [21, 39, 41, 59, 1999])
def test_there_are_never_more_than_twenty_plain_lines(total):
    assert 10 <= len(lines(total=total)) <= 20


def test_a_short_run_has_a_line_per_step():
    assert len(lines(total=3)) == 3


def test_a_terminal_gets_a_bar():
    text = "\n".join(lines(total=40, terminal=True))
    assert "40/40" in text
    assert "epoch 4.0/4" in text
    assert "loss 1.750" in text


def test_a_resumed_run_continues_the_count_and_measures_only_new_steps():
    console = Console(file=io.StringIO(), width=150)
    bar = ProgressBar(console, start=90, total=100, steps_per_epoch=10, batch_size=32)
    time.sleep(0.05)
    assert bar.speed(90) == 0
    assert 0 < bar.speed(100) <= 10 * 32 / 0.05
    assert lines(total=100, start=90)[0].startswith("step 95/100 · epoch 9.5/10")


def test_a_single_term_is_shown_as_the_loss():
    text = io.StringIO()
    with ProgressBar(Console(file=text, width=150), start=0, total=1, steps_per_epoch=1, batch_size=4) as bar:
        bar.set_caption({"loss": 0.5}, None)
        bar.advance(1)
    assert text.getvalue().strip().endswith("images/s · loss 0.500")
