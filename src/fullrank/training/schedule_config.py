"""The configuration of the learning-rate schedule."""

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
    """Epochs of linear warm-up; a shorter run warms up until its end."""
    warmup_start: Share = 0.0
    """Learning rate from which the warm-up starts, as a fraction of the peak; the first step is one increment above
    it."""
    min_lr_ratio: Share = 0.0
    """Final value of each cosine, as a fraction of the peak."""
    period: Epochs = 15.0
    """Epochs between warm restarts."""
    milestones: tuple[Epochs, ...] = (60.0, 80.0)
    """Epochs, counted from the start of the run, at which 'steps' multiplies the learning rate by `decay`."""
    decay: Share = 0.1
    """Factor at each milestone."""
