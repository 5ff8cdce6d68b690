"""Learning-rate schedules: pure functions from a step to a factor of the peak learning rate."""

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """How the learning rate moves; lengths are in epochs."""

    name: Literal["cosine", "restarts", "steps", "constant"] = "cosine"
    """After the warm-up: one cosine to `floor`; a cosine that starts anew every `period`; a drop at each of `milestones`; or constant."""
    warmup: float = 10.0
    """Epochs of linear warm-up from zero."""
    floor: float = 0.0
    """Where the cosine ends, as a share of the peak."""
    period: float = 15.0
    """Epochs between warm restarts."""
    milestones: tuple[float, ...] = (60.0, 80.0)
    """Epochs at which 'steps' multiplies by `decay`."""
    decay: float = 0.1
    """Factor of each milestone."""


def factor(spec: Schedule, step: int, *, steps_per_epoch: int, total: int) -> float:
    """Return the factor of the peak learning rate at `step` (from 0) of `total`.

    Warm-up over w steps: (step + 1)/w. Cosine over the rest with progress p in [0, 1): floor + (1 − floor)(1 + cos πp)/2
    (Loshchilov and Hutter 2017, eq. 5).

    >>> factor(Schedule(warmup=1), 0, steps_per_epoch=4, total=40), factor(Schedule(warmup=1), 3, steps_per_epoch=4, total=40)
    (0.25, 1.0)
    """
    warmup = min(round(spec.warmup * steps_per_epoch), total)
    if step < warmup:
        return (step + 1) / warmup
    if spec.name == "cosine":
        return cosine((step - warmup) / max(total - warmup, 1), spec.floor)
    if spec.name == "restarts":
        period = max(round(spec.period * steps_per_epoch), 1)
        return cosine((step - warmup) % period / period, spec.floor)
    if spec.name == "steps":
        return spec.decay ** sum(step >= milestone * steps_per_epoch for milestone in spec.milestones)
    return 1.0


def cosine(progress: float, floor: float = 0.0) -> float:
    """Return floor + (1 − floor)(1 + cos π·progress)/2.

    >>> cosine(0.0), cosine(1.0, floor=0.1)
    (1.0, 0.1)
    """
    return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * progress))
