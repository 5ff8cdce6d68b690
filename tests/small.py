"""A run of seconds on one core: 22 steps of a small network on the digits."""

from dataclasses import replace

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
