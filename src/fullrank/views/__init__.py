"""Batched image augmentations on tensors, with the distributions of torchvision's transforms."""

from fullrank.views.augmentation_params import AugmentationParams
from fullrank.views.config import (
    AffineConfig,
    BlurConfig,
    CropConfig,
    JitterConfig,
    NoiseConfig,
    SolarizeConfig,
    ViewConfig,
)
from fullrank.views.transform import MultiViewTransform, each_view

__all__ = [
    "AffineConfig", "AugmentationParams", "BlurConfig", "CropConfig", "JitterConfig", "MultiViewTransform",
    "NoiseConfig", "SolarizeConfig", "ViewConfig", "each_view",
]  # fmt: skip
