"""How long a run is."""

from dataclasses import dataclass


@dataclass(frozen=True)
class TrainingLength:
    """What follows a schedule asks it: a target's momentum, prototypes that are frozen at first."""

    steps_per_epoch: int = 1
    total: int = 0
    """Steps of the run; 0 where nobody knows: then nothing that is scheduled changes."""
