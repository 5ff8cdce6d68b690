"""The augmentation sets of the published recipes, by the names of solo-learn's files: name → size of a view → the
groups of views.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from fullrank.views.config import BlurConfig, CropConfig, JitterConfig, SolarizeConfig, ViewConfig

Views = tuple[ViewConfig, ...]
AugmentationSets = Mapping[str, Callable[[int], Views]]

# Chen et al. 2020, A Simple Framework for Contrastive Learning, App. A, with strength 1.
STRONG = JitterConfig(brightness=0.8, contrast=0.8, saturation=0.8, hue=0.2)
# He et al. 2020; Chen and He 2021.
WEAK = JitterConfig(brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1)
# Grill et al. 2020, Bootstrap Your Own Latent, Table 6; also Barlow Twins, VICReg and DINO.
BYOL = JitterConfig(brightness=0.4, contrast=0.4, saturation=0.2, hue=0.1)
# solo-learn's multi-crop configuration for CIFAR.
SWAV = JitterConfig(brightness=0.6, contrast=0.6, saturation=0.6, hue=0.2)
ALL = (0.08, 1.0)


def group(
    count: int,
    size: int,
    jitter: JitterConfig,
    *,
    scale: tuple[float, float] = ALL,
    blur: float = 0.0,
    solarize: float = 0.0,
) -> ViewConfig:
    """Return `count` views of `size` pixels: crop, flip, jitter with probability 0.8, grayscale with 0.2, blur,
    solarization.

    Every published set of this module has these probabilities, the flip of 0.5, a blur of 0.1 to 2 pixels and the
    threshold of 128 of 255.
    """
    blurred, solarized = BlurConfig(probability=blur), SolarizeConfig(probability=solarize)
    return ViewConfig(
        count=count, size=size, crop=CropConfig(scale=scale), jitter=jitter, blur=blurred, solarize=solarized
    )


def dino(size: int, *, split: float) -> Views:
    """Return the views of DINO's authors: 2 of 224 px, and 8 of 96 px that show less than the share `split` of the area
    (Caron et al. 2021, public code).
    """
    return (
        group(1, size, BYOL, scale=(split, 1.0), blur=1.0),
        group(1, size, BYOL, scale=(split, 1.0), blur=0.1, solarize=0.2),
        group(8, round(size * 96 / 224), BYOL, scale=(0.05, split), blur=0.5),
    )


def square(view: ViewConfig) -> ViewConfig:
    """Return the views with square crops."""
    return replace(view, crop=replace(view.crop, ratio=(1.0, 1.0)))


# The sets of solo-learn's configurations for CIFAR, 32 px.
SMALL_IMAGES: AugmentationSets = {
    "symmetric": lambda size: (group(2, size, STRONG, blur=0.5),),
    "symmetric_weak": lambda size: (group(2, size, WEAK, blur=0.5),),
    "asymmetric": lambda size: (group(1, size, BYOL), group(1, size, BYOL, solarize=0.2)),
    "vicreg": lambda size: (group(2, size, BYOL, scale=(0.2, 1.0), solarize=0.1),),
    "wmse": lambda size: (group(2, size, STRONG, scale=(0.2, 1.0)),),
    # SwAV's set for CIFAR: 2 views of 32 px and 6 of 18 px
    "multicrop": lambda size: (
        group(1, size, SWAV, scale=(0.2, 1.0)),
        group(1, size, SWAV, scale=(0.2, 1.0), solarize=0.2),
        group(6, round(size * 18 / 32), STRONG, scale=(0.08, 0.5), blur=0.1, solarize=0.1),
    ),
    # The FroSSL authors' fork: 200 crops of one scale, without flips
    "patches": lambda size: (
        replace(
            group(200, size, replace(WEAK, probability=0.4, hue=0.2), scale=(0.25, 0.25), blur=0.1, solarize=0.1),
            flip=0.0,
        ),
    ),
    # Tong et al. 2023, EMP-SSL, public code: 20 square patches of a quarter of the image
    "emp_ssl": lambda size: (
        square(group(20, size, replace(WEAK, hue=0.2), scale=(0.25, 0.25), blur=0.1, solarize=0.1)),
    ),
    # Yerxa et al. 2023, MMCR, public code for CIFAR
    "mmcr": lambda size: (group(40, size, WEAK),),
    # The public code of EB-JEPA for CIFAR-10
    "eb-jepa": lambda size: (group(2, size, BYOL, scale=(0.2, 1.0)),),
    # The views of SimSiam without blur: lightly's CIFAR-10 benchmark, and the authors of the spectral contrastive loss
    "simsiam": lambda size: (group(2, size, WEAK, scale=(0.2, 1.0)),),
    # lightly's CIFAR-10 benchmark, which does not blur. Its set for BYOL and Barlow Twins is "asymmetric".
    "lightly": lambda size: (group(2, size, WEAK),),
    "lightly-swav": lambda size: (group(2, size, WEAK, scale=(0.14, 1.0)),),
    "lightly-dino": lambda size: tuple(group(1, size, BYOL, scale=(0.4, 1.0), solarize=p) for p in (0.0, 0.2)),
}

# The sets of solo-learn's configurations for ImageNet, 224 px, and those of the authors of methods.
LARGE_IMAGES: AugmentationSets = {
    "symmetric": SMALL_IMAGES["symmetric"],
    "symmetric_weak": SMALL_IMAGES["symmetric_weak"],
    "asymmetric": lambda size: (group(1, size, BYOL, blur=1.0), group(1, size, BYOL, blur=0.1, solarize=0.2)),
    "vicreg": lambda size: (group(2, size, BYOL, scale=(0.2, 1.0), blur=0.5, solarize=0.1),),
    # W-MSE's file lists six crops of 96 px too, which solo-learn's loss does not use.
    "wmse": lambda size: (group(2, size, STRONG, scale=(0.2, 1.0), blur=0.2),),
    # Caron et al. 2020, SwAV, Sec. 4 and App. A: 2 views of 224 px and 6 of 96 px
    "multicrop": lambda size: (
        group(2, size, STRONG, scale=(0.14, 1.0), blur=0.5),
        group(6, round(size * 96 / 224), STRONG, scale=(0.05, 0.14), blur=0.5),
    ),
    "dino": partial(dino, split=0.4),
    # Its README, for a ResNet-50
    "dino-resnet": partial(dino, split=0.14),
    # Kim et al. 2023, I-VNE+, public code: the views of BYOL in SwAV's two sizes
    "ivne": lambda size: tuple(
        group(1, each, BYOL, scale=scale, blur=blur, solarize=solarize)
        for each, scale, count in ((size, (0.14, 1.0), 1), (round(size * 96 / 224), (0.05, 0.14), 2))
        for blur, solarize in ((1.0, 0.0), (0.1, 0.2)) * count
    ),
    # Yerxa et al. 2023, MMCR, public code: the views of BYOL four times
    "mmcr": lambda size: (group(4, size, BYOL, blur=1.0), group(4, size, BYOL, blur=0.1, solarize=0.2)),
    # Wu et al. 2026, VISReg, public code: 4 views of 224 px and 6 of 96 px
    "visreg": lambda size: (
        group(4, size, BYOL, scale=(0.3, 1.0), blur=0.5, solarize=0.1),
        group(6, round(size * 96 / 224), BYOL, scale=(0.05, 0.3), blur=0.5, solarize=0.1),
    ),
    # Chen et al. 2020, MoCo v2, and SimSiam, public code
    "mocov2": lambda size: (group(2, size, WEAK, scale=(0.2, 1.0), blur=0.5),),
}

# The sets of the FroSSL authors' fork for STL-10, 96 px. Its symmetric set has drawn eight views since 2024.
FORK_STL10: AugmentationSets = {
    "eight": lambda size: (group(8, size, STRONG),),
    "symmetric": lambda size: (group(2, size, STRONG),),
    "symmetric_weak": SMALL_IMAGES["symmetric_weak"],
    "asymmetric": SMALL_IMAGES["asymmetric"],
}
