"""Parts of a measurement: each is done once, its result is written at once, and a later call continues where an earlier
one ended."""

import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks import timing
from fullrank.run import read_json, write_json

Result = dict[str, Any]
SMOKE = "smoke test on a CPU"


@dataclass(frozen=True)
class Options:
    """What the command line chose."""

    smoke: bool
    data: Path | None
    device: torch.device
    shared: bool = False  # other processes use the GPU, so times mean nothing


@dataclass(frozen=True)
class Part:
    """One measurement."""

    name: str
    measure: Callable[[], Result]


class Results:
    """The JSON file of all results: device → piece → part → result. It is replaced after each part."""

    def __init__(self, path: Path, device: str) -> None:
        self.path, self.device = path, device
        self.all: dict[str, Any] = read_json(path) if path.exists() else {}

    @property
    def pieces(self) -> dict[str, dict[str, Result]]:
        """The results of this device."""
        return self.all.setdefault(self.device, {}).setdefault("pieces", {})

    def parts(self, piece: str) -> dict[str, Result]:
        """Return the results of a piece by the names of its parts, in the order in which they were measured."""
        return self.pieces.get(piece, {})

    def add(self, piece: str, part: str, result: Result) -> None:
        """Write the result of a part."""
        self.all.setdefault(self.device, {})["environment"] = timing.environment()
        self.pieces.setdefault(piece, {})[part] = result
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_json(self.path, self.all)


def run(
    piece: str, parts: Iterable[Part], results: Results, *, deadline: float, notify: Callable[[str], Any] = print
) -> bool:
    """Measure the parts of a piece that have no result yet or failed; return whether all parts are done.

    A part that raises an exception gets the exception as its result, and the next part begins.

    Args:
        piece: the name of the piece.
        parts: its parts; each may depend on the results of the parts before it.
        results: where results are read and written.
        deadline: no part begins after this time (`time.monotonic`).
        notify: receives a line on each part.
    """
    complete = True
    for part in parts:
        if "error" not in results.parts(piece).get(part.name, {"error": "not measured"}):
            continue
        started = time.monotonic()
        if started >= deadline:
            return False
        try:
            result = part.measure()
        except Exception as error:
            notify(traceback.format_exc())
            result, complete = {"error": f"{type(error).__name__}: {error}"[:2000]}, False
        seconds = round(time.monotonic() - started, 2)
        results.add(piece, part.name, result | {"seconds": seconds})
        notify(f"{piece}: {part.name}: {result.get('error') or 'done'} ({seconds} s)")
        release_memory()
    return complete


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
