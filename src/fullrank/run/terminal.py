"""The terminal: messages go to standard error, without markup, and never end a run because their reader has gone; the
progress of a run is a bar in a terminal, otherwise at most twenty plain lines.
"""

import math
import os
import resource
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch
from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from fullrank.errors import printable

PLAIN_LINES = 20  # maximum number of lines of a run without a terminal


class Terminal(Console):
    """A console without markup or wrapping: brackets in a path are printed, and a long line is not broken.

    Control characters are printed as escape sequences, because a message may contain a text from an untrusted file.
    """

    def __init__(self, **options: Any) -> None:
        plain: dict[str, Any] = {"markup": False, "emoji": False, "highlight": False, "soft_wrap": True}
        file: Any = sys.stderr and LastingStream(sys.stderr)
        super().__init__(file=file, stderr=True, **plain | options)

    def print(self, *objects: Any, **options: Any) -> None:
        """Print; a text without its control characters."""
        texts = ("\n".join(map(printable, x.split("\n"))) if isinstance(x, str) else x for x in objects)
        super().print(*texts, **options)


class LastingStream:
    """A text stream that writes to nowhere once its reader has gone: a closed pipe, or a lost terminal.

    >>> import io
    >>> stream = LastingStream(io.StringIO())
    >>> stream.write("step 1"), stream.getvalue()
    (6, 'step 1')
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write and flush the text."""
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())
        return len(text)


def stderr() -> Terminal:
    """Return the console for messages; of the processes that torchrun has started, only the first one prints.

    >>> stderr().soft_wrap
    True
    """
    return Terminal(quiet="TORCHELASTIC_RUN_ID" in os.environ and os.environ.get("RANK", "0") != "0")


class ProgressBar(Progress):
    """The progress of a run: epoch, images/s, time left, and below it the terms of the loss and the effective rank.

    Args:
        console: where to draw.
        start: number of steps already taken.
        total: number of steps of the run.
        steps_per_epoch: number of steps per epoch.
        batch_size: number of images per step.
    """

    caption = ""

    def __init__(self, console: Console, *, start: int, total: int, steps_per_epoch: int, batch_size: int) -> None:
        epoch, speed = TextColumn("epoch {task.fields[epoch]}"), TextColumn("{task.fields[speed]} images/s")
        columns = (epoch, BarColumn(bar_width=20), MofNCompleteColumn(), speed, TimeRemainingColumn())
        super().__init__(*columns, console=console, disable=not console.is_terminal)
        self.start_step, self.total, self.started = start, total, time.perf_counter()
        self.steps_per_epoch, self.batch_size = steps_per_epoch, batch_size
        self.task = self.add_task("", total=total, completed=start, epoch="", speed="")

    def get_renderables(self) -> Iterator[RenderableType]:
        """Yield the bar, then the caption."""
        yield self.make_tasks_table(self.tasks)
        yield Text(self.caption, no_wrap=True, overflow="ellipsis")

    def speed(self, step: int) -> float:
        """Return the images per second since this process began training."""
        return (step - self.start_step) * self.batch_size / (time.perf_counter() - self.started)

    def show(self, step: int) -> None:
        """Show that `step` steps are done."""
        epoch, speed = f"{step / self.steps_per_epoch:.1f}/{self.total / self.steps_per_epoch:g}", self.speed(step)
        self.update(self.task, completed=step, epoch=epoch, speed=f"{speed:,.0f}")
        if not self.console.is_terminal and step % max(math.ceil(self.total / PLAIN_LINES), 1) == 0:
            parts = (f"step {step}/{self.total}", f"epoch {epoch}", f"{speed:,.0f} images/s", self.caption)
            self.console.print(" · ".join(filter(None, parts)), highlight=False)


def describe_terms(terms: dict[str, float], rank: tuple[int, float] | None) -> str:
    """Return the terms of the loss and, with the step at which it was measured, the effective rank of a batch.

    >>> describe_terms({"variance": 2.0, "invariance": 1.0}, (5, 7.25))
    'loss 3.000 = variance 2.000 + invariance 1.000 · effective rank of the batch 7.2 at step 5'
    """
    parts = " + ".join(f"{name} {value:.3f}" for name, value in terms.items())
    line = f"loss {sum(terms.values()):.3f}" + (f" = {parts}" if len(terms) > 1 else "")
    return line if rank is None else f"{line} · effective rank of the batch {rank[1]:.1f} at step {rank[0]}"


def memory_in_use(device: torch.device) -> str:
    """Return the peak memory of the device, or of the process on a CPU."""
    if device.type == "cuda":
        return f"{torch.cuda.max_memory_allocated(device) / 2**30:.1f} GiB"
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # kilobytes on Linux, bytes on macOS
    return f"{peak / (2**30 if sys.platform == 'darwin' else 2**20):.1f} GiB"
