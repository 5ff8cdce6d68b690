"""The configuration of a run's parts: frozen dataclasses of plain values, which are read, checked and written without torch."""

from fullrank.config.backbone import BackboneConfig
from fullrank.config.optimizer import OptimizerConfig
from fullrank.config.projector import ProjectorConfig
from fullrank.config.protocol import (
    DEFAULT_PROBES,
    PROTOCOLS,
    AdamProtocol,
    FewShotProtocol,
    FractionsProtocol,
    KnnProtocol,
    LinearProtocol,
    Protocol,
    Protocols,
    SgdProtocol,
    SvmProtocol,
    resolve_protocols,
)
from fullrank.config.schedule import ScheduleConfig
from fullrank.config.source import MAX_EXPANSION, MAX_PIXELS, Labels, OpenOptions
from fullrank.config.view import AffineConfig, BlurConfig, CropConfig, JitterConfig, NoiseConfig, SolarizeConfig, ViewConfig

__all__ = [
    "DEFAULT_PROBES",
    "MAX_EXPANSION",
    "MAX_PIXELS",
    "PROTOCOLS",
    "AdamProtocol",
    "AffineConfig",
    "BackboneConfig",
    "BlurConfig",
    "CropConfig",
    "FewShotProtocol",
    "FractionsProtocol",
    "JitterConfig",
    "KnnProtocol",
    "Labels",
    "LinearProtocol",
    "NoiseConfig",
    "OpenOptions",
    "OptimizerConfig",
    "ProjectorConfig",
    "Protocol",
    "Protocols",
    "ScheduleConfig",
    "SgdProtocol",
    "SolarizeConfig",
    "SvmProtocol",
    "ViewConfig",
    "resolve_protocols",
]
