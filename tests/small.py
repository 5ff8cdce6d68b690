"""A run of seconds on one core, 22 steps of a small network on the digits, and what several tests share."""

from dataclasses import replace
from pathlib import Path

import numpy as np
from torch.utils.data import Dataset

from fullrank.methods import BackboneConfig, ProjectorConfig
from fullrank.recipes import RECIPES, Recipe
from fullrank.training import ScheduleConfig


def small_recipe(**changes) -> Recipe:
    small = {"channels": [8, 8, 16, 16], "layers": [1, 1, 1, 1]}
    return replace(
        RECIPES["digits"],
        epochs=2,
        backbone=BackboneConfig(name="resnet18", arguments=small, stem="small"),
        projector=ProjectorConfig(widths=(32, 24)),
        schedule=ScheduleConfig(warmup=0.5),
        **changes,
    )


def read_events(path):
    """The scalars of all event files of TensorBoard in a run: name → (step, value) pairs."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(path / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    return {name: [(e.step, e.value) for e in events.Scalars(name)] for name in events.Tags()["scalars"]}


class Flipped(Dataset):
    """Images that are flipped at random at each access."""

    def __init__(self, images):
        self.images, self.targets, self.random = images, images.labels, np.random.default_rng()

    def __len__(self):
        return len(self.images)

    def __getitem__(self, k):
        return np.array(self.images.open(k))[:: self.random.choice([-1, 1])].copy()


class Payload:
    """Leaves a file when it is unpickled."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return Path.touch, (Path(self.path),)
