"""Show the progress of a run: a progress bar in a terminal, otherwise at most twenty plain lines."""

import math
import resource
import sys
import time
from collections.abc import Iterator

import torch
from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

PLAIN_LINES = 20  # maximum number of lines of a run without a terminal
DATA_BOUND = 0.3  # share of the step time; a GPU that waits longer for batches is limited by data loading


class CaptionedProgress(Progress):
    """A progress bar with a line of text below the bar."""

    caption = ""

    def get_renderables(self) -> Iterator[RenderableType]:
        """Yield the bar, then the text."""
        yield self.make_tasks_table(self.tasks)
        yield Text(self.caption, no_wrap=True, overflow="ellipsis")


class ProgressBar:
    """The progress of a run: epoch, images/s, time left, terms of the loss, effective rank.

    Args:
        console: where to draw.
        start: number of steps already taken.
        total: number of steps of the run.
        steps_per_epoch: number of steps per epoch.
        batch_size: number of images per step.
    """

    def __init__(self, console: Console, *, start: int, total: int, steps_per_epoch: int, batch_size: int) -> None:
        self._console = console
        self._steps_per_epoch, self._batch_size, self._total = steps_per_epoch, batch_size, total
        self._start, self._started = start, time.perf_counter()
        self._every = max(math.ceil(total / PLAIN_LINES), 1)
        self._progress = CaptionedProgress(
            TextColumn("epoch {task.fields[epoch]}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.fields[speed]} images/s"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("", total=total, completed=start, epoch="", speed="")

    def __enter__(self) -> "ProgressBar":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def set_caption(self, terms: dict[str, float], effective_rank: tuple[int, float] | None) -> None:
        """Show the terms of the loss and, with the step at which it was measured, the effective rank of a training
        batch.
        """
        parts = [f"loss {sum(terms.values()):.3f}"]
        if len(terms) > 1:
            parts.append("= " + " + ".join(f"{name} {value:.3f}" for name, value in terms.items()))
        if effective_rank is not None:
            measured_at, rank = effective_rank
            parts.append(f"· effective rank of the batch {rank:.1f} at step {measured_at}")
        self._progress.caption = " ".join(parts)

    def advance(self, step: int) -> None:
        """Show that `step` steps are done."""
        speed = f"{self.speed(step):,.0f}"
        epoch = f"{step / self._steps_per_epoch:.1f}/{self._total / self._steps_per_epoch:g}"
        self._progress.update(self._task, completed=step, epoch=epoch, speed=speed)
        if not self._console.is_terminal and step % self._every == 0:
            parts = (f"step {step}/{self._total}", f"epoch {epoch}", f"{speed} images/s", self._progress.caption)
            self._console.print(" · ".join(part for part in parts if part), highlight=False)

    def speed(self, step: int) -> float:
        """Return the images per second since this process began training."""
        return (step - self._start) * self._batch_size / (time.perf_counter() - self._started)


def forecast(*, steps_left: int, seconds: float, steps: int, wait_seconds: float, device: torch.device) -> str:
    """Return a line with the expected time, the memory, and whether the device waits for data.

    Args:
        steps_left: number of steps that remain.
        seconds: duration of the first `steps` steps.
        steps: number of steps in `seconds`.
        wait_seconds: the part of `seconds` spent waiting for batches.
        device: the device of the training.

    >>> forecast(steps_left=360, seconds=10.0, steps=1, wait_seconds=2.0, device=torch.device("cpu")).partition(" · ")[0]
    'about 1.0 hours left'
    """
    hours = steps_left * seconds / steps / 3600
    share = wait_seconds / seconds
    expected = (
        f"{hours:.1f} hours"
        if hours >= 1
        else f"{hours * 60:.0f} minutes"
        if hours >= 1 / 30
        else f"{hours * 3600:.0f} seconds"
    )
    data_bound = share > DATA_BOUND and device.type == "cuda"
    advice = (
        ": the GPU waits for data (give more --data.workers, --data.storage memory, or smaller images: docs/photos.md)"
        if data_bound
        else ""
    )
    return f"about {expected} left · memory {memory_in_use(device)} · loading batches takes {share:.0%} of the time{advice}"


def memory_in_use(device: torch.device) -> str:
    """Return the peak memory of the device, or of the process on a CPU."""
    if device.type == "cuda":
        return f"{torch.cuda.max_memory_allocated(device) / 2**30:.1f} GiB"
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # kilobytes on Linux, bytes on macOS
    return f"{peak / (2**30 if sys.platform == 'darwin' else 2**20):.1f} GiB"
