"""Learning-rate schedules as pure functions of the step."""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from fullrank.structure import Share, between

Epochs = Annotated[float, between(0, 1_000_000)]


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """Learning-rate schedule; lengths are in epochs."""

    name: Literal["cosine", "restarts", "steps", "constant"] = "cosine"
    """After the warm-up: one cosine to `min_lr_ratio`; a cosine that restarts every `period`; a drop at each of
    `milestones`; or constant."""
    warmup: Epochs = 10.0
    """Epochs of linear warm-up from zero; a shorter run warms up until its end."""
    min_lr_ratio: Share = 0.0
    """Final value of each cosine, as a fraction of the peak."""
    period: Epochs = 15.0
    """Epochs between warm restarts."""
    milestones: tuple[Epochs, ...] = (60.0, 80.0)
    """Epochs, counted from the start of the run, at which 'steps' multiplies the learning rate by `decay`."""
    decay: Share = 0.1
    """Factor at each milestone."""


def lr_factor(config: ScheduleConfig, step: int, *, steps_per_epoch: int, total: int) -> float:
    """Return the factor of the peak learning rate at `step` (from 0) of `total`.

    With w warm-up steps, T steps in total and t = step:

    | name | factor |
    |---|---|
    | all, t < w | (t + 1)/w |
    | cosine | floor + (1 − floor)(1 + cos πp)/2 with p = (t − w)/(T − w) |
    | restarts | as cosine, with p = ((t − w) mod P)/P, for a period of P steps |
    | steps | decayᵏ, with k milestones reached |
    | constant | 1 |

    Source: Loshchilov and Hutter 2017, SGDR: Stochastic Gradient Descent with Warm Restarts, eq. 5.

    >>> [lr_factor(ScheduleConfig(warmup=1.0), step, steps_per_epoch=4, total=40) for step in (0, 3, 22)]
    [0.25, 1.0, 0.5]
    """
    warmup = min(round(config.warmup * steps_per_epoch), total)
    if step < warmup:
        return (step + 1) / warmup
    if config.name == "cosine":
        return _cosine((step - warmup) / (total - warmup), config.min_lr_ratio)
    if config.name == "restarts":
        period = max(round(config.period * steps_per_epoch), 1)
        return _cosine((step - warmup) % period / period, config.min_lr_ratio)
    if config.name == "steps":
        return config.decay ** sum(step >= milestone * steps_per_epoch for milestone in config.milestones)
    return 1.0


def _cosine(progress: float, floor: float) -> float:
    return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * progress))
