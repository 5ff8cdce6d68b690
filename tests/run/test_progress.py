import io

from rich.console import Console

from fullrank.run.terminal import ProgressBar

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
