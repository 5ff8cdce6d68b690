"""What the terminal shows while training: a live bar on a terminal, a plain line now and then elsewhere."""

import resource
import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

import torch
from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

T = TypeVar("T")
LINES = 20  # plain lines of a run where there is no terminal


class Waiting:
    """Count the seconds that iterators keep their consumer waiting.

    >>> waiting = Waiting()
    >>> list(waiting.over(range(3))), waiting.seconds > 0
    ([0, 1, 2], True)
    """

    seconds = 0.0

    def over(self, items: Iterable[T]) -> Iterator[T]:
        """Yield the same items."""
        iterator = iter(items)
        while True:
            start = time.perf_counter()
            try:
                item = next(iterator)
            except StopIteration:
                return
            self.seconds += time.perf_counter() - start
            yield item


class Lines(Progress):
    """A progress bar with a line of its own below, so that the words never squeeze the bar on a narrow terminal."""

    note = ""

    def get_renderables(self) -> Iterator[RenderableType]:
        """Yield the bar, then the line."""
        yield self.make_tasks_table(self.tasks)
        yield Text(self.note, no_wrap=True, overflow="ellipsis")


class Bar:
    """Progress of a run: epoch, images/s, time left, terms of the loss, effective rank.

    Args:
        console: where to draw.
        done: steps already taken.
        total: steps of the run.
        steps_per_epoch: steps of an epoch.
        batch: images of a step.
    """

    def __init__(self, console: Console, *, done: int, total: int, steps_per_epoch: int, batch: int) -> None:
        self._console = console
        self._steps_per_epoch, self._batch, self._total = steps_per_epoch, batch, total
        self._first, self._started = done, time.perf_counter()
        self._every = max(total // LINES, 1)
        self._progress = Lines(
            TextColumn("epoch {task.fields[epoch]}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.fields[speed]} images/s"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("", total=total, completed=done, epoch="", speed="")

    def __enter__(self) -> "Bar":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def note(self, terms: dict[str, float], effective_rank: float | None) -> None:
        """Set what stands behind the bar: the terms, and the effective rank of the training batch."""
        parts = [f"loss {sum(terms.values()):.3f}"]
        if len(terms) > 1:
            parts.append("= " + " + ".join(f"{name} {value:.3f}" for name, value in terms.items()))
        if effective_rank is not None:
            parts.append(f"· effective rank of the batch {effective_rank:.1f}")
        self._progress.note = " ".join(parts)

    def advance(self, step: int) -> None:
        """Show that `step` steps are done."""
        speed = f"{self.speed(step):,.0f}"
        epoch = f"{step / self._steps_per_epoch:.1f}/{self._total / self._steps_per_epoch:g}"
        self._progress.update(self._task, completed=step, epoch=epoch, speed=speed)
        if not self._console.is_terminal and step % self._every == 0:
            parts = (f"step {step}/{self._total}", f"epoch {epoch}", f"{speed} images/s", self._progress.note)
            self._console.print(" · ".join(part for part in parts if part), highlight=False)

    def speed(self, step: int) -> float:
        """Return images per second since this process began training."""
        return (step - self._first) * self._batch / (time.perf_counter() - self._started)


def forecast(*, steps_left: int, seconds: float, steps: int, waited: float, device: torch.device) -> str:
    """Return the line that stands after the first steps: expected time, memory, and whether the data starves the device.

    Args:
        steps_left: steps to go.
        seconds: what the first `steps` took.
        steps: how many they were.
        waited: seconds of them spent waiting for a batch.
        device: where the training runs.

    >>> forecast(steps_left=360, seconds=10.0, steps=1, waited=2.0, device=torch.device("cpu")).partition(" · ")[0]
    'about 1.0 hours to go'
    """
    hours = steps_left * seconds / steps / 3600
    share = waited / seconds
    expected = f"{hours:.1f} hours" if hours >= 1 else f"{hours * 60:.0f} minutes" if hours >= 1 / 30 else f"{hours * 3600:.0f} seconds"
    verdict = (
        f"making batches takes {share:.0%} of a step: the data starves the device (more --data.workers, or --data.storage memory)"
        if share > 0.3 and device.type == "cuda"
        else f"making batches takes {share:.0%} of a step"
    )
    return f"about {expected} to go · memory {memory_in_use(device)} · {verdict}"


def memory_in_use(device: torch.device) -> str:
    """Return the peak memory of the device, or of the process on a CPU."""
    if device.type == "cuda":
        return f"{torch.cuda.max_memory_allocated(device) / 2**30:.1f} GiB"
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # kilobytes on Linux, bytes on macOS
    return f"{peak / (2**30 if sys.platform == 'darwin' else 2**20):.1f} GiB"
