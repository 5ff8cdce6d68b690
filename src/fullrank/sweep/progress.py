"""The progress of a sweep: cells done, failed and left, and the time that is left."""

import time
from collections.abc import Mapping

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from fullrank.recipes.forecast import duration
from fullrank.sweep.cell import Cell
from fullrank.sweep.row import Row


class SweepProgress:
    """A progress bar in a terminal, and one line for each cell that has ended.

    Args:
        console: where to draw.
        total: number of cells.
        done: number of cells that are done already.
        expected: name of a cell → expected seconds; empty if they are not known.
        slots: number of cells at the same time.
    """

    def __init__(self, console: Console, *, total: int, done: int, expected: Mapping[str, float], slots: int) -> None:
        self._console, self._total, self._slots = console, total, slots
        self._done, self._failed, self._expected = done, 0, dict(expected)
        self._started: dict[str, float] = {}
        self._spent, self._spent_expected, self._ended = 0.0, 0.0, 0
        self._left = total - done
        self._progress = Progress(
            TextColumn("cells"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.fields[state]}"),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("", total=total, completed=done, state="")

    def __enter__(self) -> "SweepProgress":
        self._progress.start()
        self._show()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def start(self, cell: Cell) -> None:
        """Show that a cell runs."""
        self._started[cell.name] = time.monotonic()
        self._show()

    def wait(self, cell: Cell) -> None:
        """Say that another process runs a cell, which is waited for."""
        self._started.pop(cell.name, None)
        self._console.print(f"{cell.name}: another process runs this cell; waiting for its row")
        self._show()

    def end(self, cell: Cell, row: Row) -> None:
        """Show that a cell has ended, and print one line about it."""
        started = self._started.pop(cell.name, None)
        self._left -= 1
        self._done, self._failed = self._done + row.is_final, self._failed + (not row.is_final)
        if started is not None:
            self._ended += 1
            self._spent += time.monotonic() - started
            self._spent_expected += self._expected.get(cell.name, 0.0)
        self._expected.pop(cell.name, None)
        left = f"{self._left} left" + (f", about {duration(seconds)}" if (seconds := self.seconds_left()) else "")
        self._console.print(f"[{self._total - self._left}/{self._total}] {cell.name}: {describe(row)} · {left}")
        self._show()

    def seconds_left(self) -> float:
        """Return the expected seconds until the end, 0 if they are not known: the expectation, corrected by the cells
        that have ended.
        """
        if not self._left or not self._ended:
            return 0.0
        slots = min(self._slots, self._left)
        if self._spent_expected:
            return self._spent / self._spent_expected * sum(self._expected.values()) / slots
        return self._spent / self._ended * self._left / slots

    def _show(self) -> None:
        failed = f"{self._failed} failed · " if self._failed else ""
        left = f" · about {duration(seconds)} left" if (seconds := self.seconds_left()) else ""
        state = f"{failed}{', '.join(self._started)}{left}"
        self._progress.update(self._task, completed=self._done, state=state[:160])


def describe(row: Row) -> str:
    """Return the result of a cell in a few words.

    >>> describe(Row(cell="a", recipe="digits", objective="frossl", seed=0, status="failed", error="out of memory"))
    'failed: out of memory'
    """
    if not row.is_done:
        return f"{'diverged' if row.diverged else 'failed'}: {row.error}"
    scores = [f"{probe} {accuracy:.1%}" for probe, accuracy in row.scores.get(row.data, {}).items()]
    online = [] if row.last_online is None else [f"online {row.last_online:.1%}"]
    return f"done, {duration(row.seconds)} of training" + "".join(f" · {text}" for text in (*online, *scores))
