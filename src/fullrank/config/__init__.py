"""The configuration of a run's parts: frozen dataclasses of plain values, which are read, checked and written without torch."""

from fullrank.config.backbone import BackboneConfig
from fullrank.config.optimizer import OptimizerConfig
from fullrank.config.projector import ProjectorConfig
from fullrank.config.schedule import ScheduleConfig
from fullrank.config.source import MAX_EXPANSION, MAX_PIXELS, Labels, OpenOptions
from fullrank.config.view import AffineConfig, BlurConfig, CropConfig, JitterConfig, NoiseConfig, SolarizeConfig, ViewConfig

__all__ = [
    "MAX_EXPANSION",
    "MAX_PIXELS",
    "AffineConfig",
    "BackboneConfig",
    "BlurConfig",
    "CropConfig",
    "JitterConfig",
    "Labels",
    "NoiseConfig",
    "OpenOptions",
    "OptimizerConfig",
    "ProjectorConfig",
    "ScheduleConfig",
    "SolarizeConfig",
    "ViewConfig",
]
