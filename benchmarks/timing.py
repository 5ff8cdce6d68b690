"""What the benchmarks of speed share: contenders take turns in one process, and medians come with quartiles.

Contenders take turns because the speed of a machine drifts: each round calls every contender once, so a slow minute
slows all of them, and ratios of medians are stable where the times are not. `clock` is "cpu", the CPU seconds of the
process, which other processes hardly change, or "wall", elapsed seconds until the GPU has finished.
"""

import statistics
import time
from collections.abc import Callable, Mapping
from datetime import date
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from fullrank.run.environment import installed_version, platform_info

RESULTS = Path(__file__).parent / "results"
Work = Callable[[], object]
Clock = Literal["cpu", "wall"]


class Timing(NamedTuple):
    """Seconds of one call: median and quartiles over the rounds, and the number of rounds."""

    median: float
    low: float
    high: float
    rounds: int


def measure(
    works: Mapping[str, Work], *, rounds: int = 15, seconds: float = float("inf"), clock: Clock = "wall"
) -> dict[str, Timing]:
    """Time the contenders in turns, after one call each that does not count.

    Args:
        works: what to time, by name; each is called once a round.
        rounds: number of rounds.
        seconds: no round begins after this time, but there are at least three rounds.
        clock: "cpu" for the CPU time of the process, "wall" for the elapsed time.
    """
    for work in works.values():
        work()
    times: dict[str, list[float]] = {name: [] for name in works}
    started = time.perf_counter()
    for done in range(rounds):
        if done >= 3 and time.perf_counter() - started > seconds:
            break
        for name, work in works.items():
            times[name].append(duration(work, clock))
    return {name: summary(values) for name, values in times.items()}


def duration(work: Work, clock: Clock = "wall") -> float:
    """Return the seconds of one call."""
    now = time.process_time if clock == "cpu" else time.perf_counter
    wait()
    start = now()
    work()
    wait()
    return now() - start


def wait() -> None:
    """Wait until the GPU has finished, if this process uses one."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def summary(values: list[float]) -> Timing:
    """Return median and quartiles of the times.

    >>> summary([3.0, 1.0, 2.0, 5.0, 4.0])
    Timing(median=3.0, low=2.0, high=4.0, rounds=5)
    """
    low, median, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
    return Timing(median, low, high, len(values))


def environment(*packages: str, **settings: Any) -> dict[str, Any]:
    """Return date, commit, hardware, versions of the library's and of further packages, and the settings."""
    versions = {name: installed_version(name) for name in packages}
    return {"date": date.today().isoformat()} | platform_info() | versions | settings
