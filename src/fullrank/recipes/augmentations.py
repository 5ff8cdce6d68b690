"""The augmentation sets of the published recipes, by the names of solo-learn's files: name → the groups of views of one image."""

from collections.abc import Mapping
from dataclasses import replace

from fullrank.config import BlurConfig, CropConfig, JitterConfig, SolarizeConfig, ViewConfig

Views = tuple[ViewConfig, ...]

STRONG = JitterConfig(brightness=0.8, contrast=0.8, saturation=0.8, hue=0.2)
"""Chen et al. 2020, A Simple Framework for Contrastive Learning, App. A, with strength 1."""
WEAK = JitterConfig(brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1)
"""He et al. 2020; Chen and He 2021."""
BYOL = JitterConfig(brightness=0.4, contrast=0.4, saturation=0.2, hue=0.1)
"""Grill et al. 2020, Bootstrap Your Own Latent, Table 6; also Barlow Twins, VICReg and DINO."""
SWAV = JitterConfig(brightness=0.6, contrast=0.6, saturation=0.6, hue=0.2)
"""solo-learn's multi-crop configuration for CIFAR."""
ALL = (0.08, 1.0)


def group(
    count: int, size: int, jitter: JitterConfig, *, scale: tuple[float, float] = ALL, blur: float = 0.0, solarize: float = 0.0
) -> ViewConfig:
    """Return `count` views of `size` pixels: crop, flip, jitter with probability 0.8, grayscale with 0.2, blur, solarization.

    Every published set of this module has these probabilities, the flip of 0.5, a blur of 0.1 to 2 pixels and the threshold of 128 of 255.
    """
    blurred, solarized = BlurConfig(probability=blur), SolarizeConfig(probability=solarize)
    return ViewConfig(count=count, size=size, crop=CropConfig(scale=scale), jitter=jitter, blur=blurred, solarize=solarized)


def small_image_views(size: int) -> Mapping[str, Views]:
    """Return the sets of solo-learn's configurations for CIFAR, for views of `size` pixels.

    >>> [view.solarize.probability for view in small_image_views(32)["asymmetric"]]
    [0.0, 0.2]
    """
    return {
        "symmetric": (group(2, size, STRONG, blur=0.5),),
        "symmetric_weak": (group(2, size, WEAK, blur=0.5),),
        "asymmetric": (group(1, size, BYOL), group(1, size, BYOL, solarize=0.2)),
        "vicreg": (group(2, size, BYOL, scale=(0.2, 1.0), solarize=0.1),),
        "wmse": (group(2, size, STRONG, scale=(0.2, 1.0)),),
        "multicrop": (  # of SwAV: 2 × 32 + 6 × 18 px
            group(1, size, SWAV, scale=(0.2, 1.0)),
            group(1, size, SWAV, scale=(0.2, 1.0), solarize=0.2),
            group(6, round(size * 18 / 32), STRONG, scale=(0.08, 0.5), blur=0.1, solarize=0.1),
        ),
        "patches": (  # of the FroSSL authors' fork: 200 small crops of one scale, without flips
            replace(group(200, size, replace(WEAK, probability=0.4, hue=0.2), scale=(0.25, 0.25), blur=0.1, solarize=0.1), flip=0.0),
        ),
    }


def large_image_views(size: int) -> Mapping[str, Views]:
    """Return the sets of solo-learn's configurations for ImageNet, for views of `size` pixels, 224 in the publications.

    >>> [view.blur.probability for view in large_image_views(224)["asymmetric"]]
    [1.0, 0.1]
    """
    return {
        "symmetric": (group(2, size, STRONG, blur=0.5),),
        "symmetric_weak": (group(2, size, WEAK, blur=0.5),),
        "asymmetric": (group(1, size, BYOL, blur=1.0), group(1, size, BYOL, blur=0.1, solarize=0.2)),
        "vicreg": (group(2, size, BYOL, scale=(0.2, 1.0), blur=0.5, solarize=0.1),),
        # W-MSE's file lists six crops of 96 px too, which solo-learn's loss does not use.
        "wmse": (group(2, size, STRONG, scale=(0.2, 1.0), blur=0.2),),
        "multicrop": (  # Caron et al. 2020, SwAV, Sec. 4 and App. A: 2 × 224 + 6 × 96 px
            group(2, size, STRONG, scale=(0.14, 1.0), blur=0.5),
            group(6, round(size * 96 / 224), STRONG, scale=(0.05, 0.14), blur=0.5),
        ),
    }


def fork_stl10_views() -> Mapping[str, Views]:
    """Return the sets of the FroSSL authors' fork for STL-10: 96 px, blur only in the weak set. (One of its versions draws eight views.)"""
    return {
        "symmetric": (group(2, 96, STRONG),),
        "symmetric_weak": (group(2, 96, WEAK, blur=0.5),),
        "asymmetric": (group(1, 96, BYOL), group(1, 96, BYOL, solarize=0.2)),
    }
