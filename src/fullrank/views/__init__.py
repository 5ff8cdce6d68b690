"""Batched augmentations of images as tensors, with the distribution of torchvision's transforms."""

from fullrank.views.draw import AugmentationParams
from fullrank.views.preview import preview
from fullrank.views.spec import AffineConfig, BlurConfig, CropConfig, JitterConfig, NoiseConfig, SolarizeConfig, ViewConfig
from fullrank.views.views import MultiViewTransform

__all__ = [
    "AffineConfig",
    "AugmentationParams",
    "BlurConfig",
    "CropConfig",
    "JitterConfig",
    "MultiViewTransform",
    "NoiseConfig",
    "SolarizeConfig",
    "ViewConfig",
    "preview",
]
