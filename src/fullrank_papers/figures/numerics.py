"""Random numbers and statistics that several figures share, and claims that are judged over a few seeds.

Runs are paired by their seed: in one recipe both have the same initial weights, the same order of images and the same
views. A comparison holds if the whole 95 % interval of the mean difference (Student's paired t-test) agrees with
the claim, does not hold if none of the interval does, and is otherwise inconclusive at this size.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from fullrank.evaluation.paired import paired_difference
from fullrank.spectrum.functional import effective_rank
from fullrank_papers.figures.figure import Verdict, verdict


def normal(*shape: int, rng: torch.Generator) -> Tensor:
    """Return float64 standard normal numbers."""
    return torch.randn(*shape, generator=rng, dtype=torch.float64)


def uncentered_rank(Z: Float[Tensor, "*T n D"]) -> Float[Tensor, "*T"]:
    """Return the effective rank of ZᵀZ, which is not centred.

    >>> uncentered_rank(torch.eye(3))
    tensor(3.)
    """
    return effective_rank(torch.linalg.svdvals(Z).square())


def ratios(a: Iterable[float | int], b: Iterable[float | int]) -> list[float]:
    """Return a/b for each pair."""
    return [x / y for x, y in zip(a, b, strict=True)]


def log_slope(x: Sequence[float | int], y: Sequence[float | int]) -> float:
    """Return the exponent a of numbers y that scale as xᵃ.

    >>> round(log_slope([1, 2, 4], [3, 12, 48]), 6)
    2.0
    """
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def time_rounds(works: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each call in each round, after two rounds of warm-up. Each round calls all in a new random
    order, so that all meet the same state of the caches, and the same speed of a machine that drifts.
    """
    seconds: dict[str, list[float]] = {name: [] for name in works}
    order = Random(0)
    for _ in range(rounds + 2):
        for name in order.sample(list(works), len(works)):
            start = now()
            works[name]()
            seconds[name].append(now() - start)
    return {name: values[2:] for name, values in seconds.items()}


def now() -> float:
    """Return the time, after the GPU has finished if there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def quantiles(values: Iterable[float | int]) -> tuple[float, float, float]:
    """Return the median, and the quantiles of 5 % and 95 %, over starts.

    >>> quantiles(range(101))
    (50.0, 5.0, 95.0)
    """
    middle, low, high = np.quantile(list(values), [0.5, 0.05, 0.95])
    return float(middle), float(low), float(high)


def spread(values: Iterable[float | int], digits: int = 2) -> str:
    """Return the median and the range from 5 % to 95 % as text.

    >>> spread(range(101), 0)
    '50 (5 to 95)'
    """
    middle, low, high = (f"{x:.{digits}f}" for x in quantiles(values))
    return f"{middle} ({low} to {high})"


def check_higher(
    a: Sequence[float], b: Sequence[float], /, *, unit: str = " points", scale: float = 100.0, **values: Any
) -> Verdict:
    """Return the verdict on the claim that a is higher than b: the interval of their paired differences is above 0."""
    gap = paired_difference(a, b)
    return verdict(gap.format(unit, scale=scale), gap.exceeds(0.0), **values)


def holds_for_all(verdicts: Iterable[bool | None]) -> bool | None:
    """Return whether a claim that joins several comparisons holds: all hold (True), one is contradicted (False), or
    else None.

    >>> holds_for_all([True, True]), holds_for_all([True, None]), holds_for_all([None, False])
    (True, None, False)
    """
    verdicts = list(verdicts)
    return False if False in verdicts else None if None in verdicts else True


def holds_in_every_run(runs: Iterable[bool]) -> bool | None:
    """Return whether a property of single runs holds in every run (True), in no run (False), or only in some (None).

    >>> holds_in_every_run([True, True]), holds_in_every_run([True, False]), holds_in_every_run([False])
    (True, None, False)
    """
    runs = list(runs)
    return True if all(runs) else None if any(runs) else False
