"""CIFAR: the recipe of the paper, a smaller one for two CPU cores, and one for comparing projectors, which takes minutes on one core."""

from dataclasses import replace

from fullrank.config import (
    BackboneConfig,
    BlurConfig,
    CropConfig,
    JitterConfig,
    OptimizerConfig,
    ProjectorConfig,
    ScheduleConfig,
    ViewConfig,
)
from fullrank.recipes.recipe import DataConfig, Recipe

# Symmetric views of the small data sets. Source: FroSSL's paper, Sec. 6 and App. B, and its authors' public configuration.
SYMMETRIC = ViewConfig(
    size=32, jitter=JitterConfig(brightness=0.8, contrast=0.8, saturation=0.8, hue=0.2), blur=BlurConfig(probability=0.5)
)

CIFAR10 = Recipe(
    name="cifar10",
    data=DataConfig(source="hf:uoft-cs/cifar10"),
    views=(SYMMETRIC,),
    backbone=BackboneConfig(name="resnet18", stem="small"),
    projector=ProjectorConfig(widths=(2048, 2048, 1024)),
    optimizer=OptimizerConfig(name="lars", lr=0.3, weight_decay=1e-6),
    schedule=ScheduleConfig(warmup=10.0),
    epochs=1000,
    batch_size=256,
)

CIFAR100 = replace(CIFAR10, name="cifar100", data=DataConfig(source="hf:uoft-cs/cifar100"))

# This recipe fits two CPU cores: a residual network of widths 32-128, and weaker views than those of a run of 1000 epochs. D/N = 2 with
# invariance 2 keeps the paper's balance of the two terms (invariance · D/2N = 2). 2560 held-out images suffice for the spectrum at D = 256.
CIFAR10_SMALL = replace(
    CIFAR10,
    name="cifar10-small",
    hyper={"invariance": 2.0},
    views=(
        ViewConfig(size=32, crop=CropConfig(scale=(0.2, 1.0)), jitter=JitterConfig(brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1)),
    ),
    backbone=BackboneConfig(name="resnet18", arguments={"channels": [32, 64, 96, 128], "layers": [1, 1, 1, 1]}, stem="small"),
    projector=ProjectorConfig(widths=(512, 256)),
    optimizer=OptimizerConfig(name="adamw", lr=3e-3, weight_decay=1e-4),
    schedule=ScheduleConfig(warmup=1.0),
    epochs=8,
    batch_size=128,
)

# This recipe is for many short runs with different projectors. The last stage has two blocks, so that the shortcut of the last block is
# the identity. d0 = 22 of D_b = 128 dimensions is about the share of the paper, 360 of 2048.
CIFAR10_PROJECTORS = replace(
    CIFAR10_SMALL,
    name="cifar10-projectors",
    objective="simclr",
    hyper={"temperature": 0.1},
    views=(replace(CIFAR10_SMALL.views[0], size=16),),
    backbone=BackboneConfig(name="resnet18", arguments={"channels": [16, 32, 64, 128], "layers": [1, 1, 1, 2]}, stem="small"),
    projector=ProjectorConfig(widths=(128, 64), d0=22),
    schedule=ScheduleConfig(warmup=0.5),
    epochs=4,
)
