"""What benchmarks of speed share: alternate the contenders in one process, take medians with quartiles, and describe
the machine.

Contenders alternate because the speed of a machine drifts: each round runs every contender once, so a slow minute slows
all of them.
Ratios of medians are then stable where the times are not. `clock` chooses the time: "cpu" counts the CPU seconds of the
process, which other processes hardly change, and fits one thread; "wall" counts elapsed seconds, after the GPU has
finished if there is one.
"""

import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

RESULTS = Path(__file__).parent / "results"
Work = Callable[[], object]
Clock = Literal["cpu", "wall"]


class Timing(NamedTuple):
    """Seconds of one call: the median over the rounds, the first and the third quartile, and the number of rounds."""

    median: float
    low: float
    high: float
    rounds: int


def measure(
    works: Mapping[str, Work], *, rounds: int = 15, seconds: float = float("inf"), clock: Clock = "wall"
) -> dict[str, Timing]:
    """Time the contenders alternately, after one call each that does not count.

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
    """Return what a reader needs to judge a measurement: date, commit, processor, GPU, cores, threads, versions, and
    the settings.

    Args:
        *packages: names of further packages whose versions count.
        **settings: what was chosen for this measurement, such as n, sizes, rounds and seeds.
    """
    return {
        "date": date.today().isoformat(),
        "commit": commit(),
        "processor": processor(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "versions": {"python": platform.python_version()} | {name: installed(name) for name in ("torch", *packages)},
        **settings,
    }


def installed(package: str) -> str | None:
    """Return the version of a package; None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def processor() -> str:
    """Return the name of the processor if the system provides it, or else its architecture."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.processor()
    )


def commit() -> str | None:
    """Return the commit of this checkout, with "+changes" if library or benchmarks were modified; None without a
    checkout."""
    git = ["git", "-C", str(Path(__file__).parents[1])]
    try:
        head = subprocess.run(
            [*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=True
        ).stdout.strip()
        code = ["src", ":(glob)benchmarks/*.py"]
        changed = subprocess.run(
            [*git, "status", "--porcelain", "--", *code], capture_output=True, text=True, check=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
    return head + ("+changes" if changed else "")
