"""Parts of a measurement: each is done once, its result is written at once, and a later call continues where an earlier
one ended."""

import signal
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks import timing
from fullrank.run import read_json, write_json

Result = dict[str, Any]
SMOKE = "smoke test on a CPU"
UNFINISHED = "unfinished_seconds"


@dataclass(frozen=True)
class Options:
    """What the command line chose."""

    smoke: bool
    data: Path | None
    device: torch.device


@dataclass(frozen=True)
class Part:
    """One measurement."""

    name: str
    measure: Callable[[], Result]


class OutOfTime(BaseException):
    """The time of this call is over."""


class Results:
    """The JSON file of all results: device → piece → part → result.

    Args:
        path: the file; it is written after each part, and replaced atomically.
        device: the name of the device; results of several devices are kept apart.
        retry: measure parts again that failed.
    """

    def __init__(self, path: Path, device: str, *, retry: bool = True) -> None:
        self.path, self.device, self.retry = path, device, retry
        self.all: dict[str, Any] = read_json(path) if path.exists() else {}

    @property
    def pieces(self) -> dict[str, dict[str, Result]]:
        """The results of this device."""
        return self.all.setdefault(self.device, {}).setdefault("pieces", {})

    def parts(self, piece: str) -> dict[str, Result]:
        """Return the results of a piece by the names of its parts, in the order in which they were measured."""
        return {name: result for name, result in self.pieces.get(piece, {}).items() if UNFINISHED not in result}

    def is_done(self, piece: str, part: str) -> bool:
        """Return whether a part has a result; a failed part has none if it is to be measured again."""
        found = self.parts(piece).get(part)
        return found is not None and not (self.retry and "error" in found)

    def unfinished_seconds(self, piece: str, part: str) -> float:
        """Return the time after which a part was interrupted, 0 if it was not."""
        return self.pieces.get(piece, {}).get(part, {}).get(UNFINISHED, 0.0)

    def add(self, piece: str, part: str, result: Result) -> None:
        """Write the result of a part."""
        self.all.setdefault(self.device, {})["environment"] = timing.environment(
            "fullrank", "torchvision", "timm", "lightning"
        )
        self.pieces.setdefault(piece, {})[part] = result
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_json(self.path, self.all)


def run(
    piece: str, parts: Iterable[Part], results: Results, *, deadline: float, notify: Callable[[str], Any] = print
) -> bool:
    """Measure the parts of a piece that have no result yet; return whether all parts are done.

    A part that raises an exception gets the exception as its result, and the next part begins. A part that is not
    finished at the deadline is interrupted and has no result. A part that did not finish in as much time as is left is
    passed over, so that it does not keep all later parts from being measured.

    Args:
        piece: the name of the piece.
        parts: its parts; each may depend on the results of the parts before it.
        results: where results are read and written.
        deadline: the time (`time.monotonic`) at which this call ends.
        notify: receives a line on each part.
    """
    complete = True
    for part in parts:
        if results.is_done(piece, part.name):
            continue
        started = time.monotonic()
        if started >= deadline:
            return False
        if (needed := results.unfinished_seconds(piece, part.name)) > 0.9 * (deadline - started):
            notify(f"{piece}: {part.name}: passed over, not finished in {needed:.0f} s before; give more --minutes")
            complete = False
            continue
        try:
            with interrupted_at(deadline):
                result = part.measure()
        except OutOfTime:
            spent = max(time.monotonic() - started, results.unfinished_seconds(piece, part.name))
            results.add(piece, part.name, {UNFINISHED: round(spent, 2)})
            notify(f"{piece}: {part.name}: not finished in the time of this call")
            return False
        except Exception as error:
            notify(traceback.format_exc())
            result = {"error": f"{type(error).__name__}: {error}"[:2000]}
            complete = False
        seconds = round(time.monotonic() - started, 2)
        results.add(piece, part.name, result | {"seconds": seconds})
        notify(f"{piece}: {part.name}: {result.get('error') or 'done'} ({seconds} s)")
        release_memory()
    return complete


@contextmanager
def interrupted_at(deadline: float) -> Iterator[None]:
    """Raise `OutOfTime` in the main thread at the deadline."""

    def stop(*_: object) -> None:
        raise OutOfTime

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, max(deadline - time.monotonic(), 0.01))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def release_memory() -> None:
    """Free what the last part has left on the device."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def failures(results: Results) -> list[str]:
    """Return "piece: part: reason" for each part that failed."""
    return [
        f"{piece}: {name}: {result.get('error') or 'the check failed'}"
        for piece, parts in results.pieces.items()
        for name, result in parts.items()
        if "error" in result or result.get("passed") is False
    ]
