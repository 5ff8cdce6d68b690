"""Schedules of the learning rate and of the weight decay, as pure functions of the step."""

import math

from fullrank.training.config import ScheduleConfig


def lr_factor(config: ScheduleConfig, step: int, *, steps_per_epoch: int, total: int) -> float:
    """Return the factor of the peak learning rate at `step` (from 0) of `total`.

    With w warm-up steps, T steps in total, s = `warmup_start` and t = step:

    | name | factor |
    |---|---|
    | all, t < w | s + (1 − s)(t + 1)/w |
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
        return config.warmup_start + (1 - config.warmup_start) * ((step + 1) / warmup)
    if config.name == "cosine":
        return _cosine((step - warmup) / max(total - warmup, 1), config.min_lr_ratio)
    if config.name == "restarts":
        period = max(round(config.period * steps_per_epoch), 1)
        return _cosine((step - warmup) % period / period, config.min_lr_ratio)
    if config.name == "steps":
        return config.decay ** sum(step >= milestone * steps_per_epoch for milestone in config.milestones)
    return 1.0


def weight_decay_at(first: float, last: float, step: int, *, total: int) -> float:
    """Return the weight decay at `step` (from 0) of `total`: λ_t = last + (first − last)(1 + cos(π t/T))/2.

    Source: Caron et al. 2021, Emerging Properties in Self-Supervised Vision Transformers, Sec. 3.2: a cosine from 0.04
    to 0.4.

    >>> [round(weight_decay_at(0.04, 0.4, step, total=100), 4) for step in (0, 50, 100)]
    [0.04, 0.22, 0.4]
    """
    return last + (first - last) * (1 + math.cos(math.pi * step / total)) / 2


def _cosine(progress: float, floor: float) -> float:
    return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * progress))
