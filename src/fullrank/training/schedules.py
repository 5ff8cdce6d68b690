"""Learning-rate schedules: pure functions from a step to a factor of the peak learning rate."""

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """How the learning rate moves; lengths are in epochs."""

    name: Literal["cosine", "restarts", "steps", "constant"] = "cosine"
    """After the warm-up: one cosine to `min_lr_ratio`; a cosine that starts anew every `period`; a drop at each of
    `milestones`; or constant."""
    warmup: float = 10.0
    """Epochs of linear warm-up from zero; in a run that is shorter, the whole run."""
    min_lr_ratio: float = 0.0
    """Where each cosine ends, as a share of the peak."""
    period: float = 15.0
    """Epochs between warm restarts."""
    milestones: tuple[float, ...] = (60.0, 80.0)
    """Epochs, of the whole run, at which 'steps' multiplies by `decay`."""
    decay: float = 0.1
    """Factor of each milestone."""


def factor(spec: ScheduleConfig, step: int, *, steps_per_epoch: int, total: int) -> float:
    """Return the factor of the peak learning rate at `step` (from 0) of `total`.

    With w steps of warm-up, T steps in all and t = step:

    | name | factor |
    |---|---|
    | each, t < w | (t + 1)/w |
    | cosine | floor + (1 − floor)(1 + cos πp)/2 with p = (t − w)/(T − w) |
    | restarts | the same with p = ((t − w) mod P)/P, for a period of P steps |
    | steps | decayᵏ, where k milestones have been reached |
    | constant | 1 |

    Source: Loshchilov and Hutter 2017, SGDR: Stochastic Gradient Descent with Warm Restarts, eq. 5.

    >>> [factor(ScheduleConfig(warmup=1.0), step, steps_per_epoch=4, total=40) for step in (0, 3, 22)]
    [0.25, 1.0, 0.5]
    """
    warmup = min(round(spec.warmup * steps_per_epoch), total)
    if step < warmup:
        return (step + 1) / warmup
    if spec.name == "cosine":
        return cosine((step - warmup) / (total - warmup), spec.min_lr_ratio)
    if spec.name == "restarts":
        period = max(round(spec.period * steps_per_epoch), 1)
        return cosine((step - warmup) % period / period, spec.min_lr_ratio)
    if spec.name == "steps":
        return spec.decay ** sum(step >= milestone * steps_per_epoch for milestone in spec.milestones)
    return 1.0


def cosine(progress: float, floor: float = 0.0) -> float:
    """Return floor + (1 − floor)(1 + cos π·progress)/2.

    >>> cosine(0.0), cosine(1.0, floor=0.1)
    (1.0, 0.1)
    """
    return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * progress))
