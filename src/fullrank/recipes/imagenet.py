"""ImageNet: the settings of FroSSL's paper with BYOL's views, and the recipes of the DirectCLR paper with and without a projector."""

from dataclasses import replace

from fullrank.config import (
    BackboneConfig,
    BlurConfig,
    JitterConfig,
    OptimizerConfig,
    ProjectorConfig,
    ScheduleConfig,
    SolarizeConfig,
    ViewConfig,
)
from fullrank.recipes.recipe import DataConfig, Recipe

JITTER = JitterConfig(brightness=0.4, contrast=0.4, saturation=0.2, hue=0.1)

# Source: Grill et al. 2020, Bootstrap Your Own Latent, Table 6: one view is always blurred, the other seldom, and sometimes solarized.
BYOL_VIEWS = (
    ViewConfig(count=1, size=224, jitter=JITTER, blur=BlurConfig(probability=1.0)),
    ViewConfig(count=1, size=224, jitter=JITTER, blur=BlurConfig(probability=0.1), solarize=SolarizeConfig(probability=0.2)),
)

# Source: FroSSL's paper, Sec. 6: SGD with learning rate 1e-2 and warm restarts every 15 epochs, batch size 224. The paper names SimCLR's
# augmentations, whose two views have one distribution; these views are BYOL's asymmetric pair, as in solo-learn and in DirectCLR's code.
IMAGENET = Recipe(
    name="imagenet",
    data=DataConfig(source="hf:ILSVRC/imagenet-1k"),
    views=BYOL_VIEWS,
    backbone=BackboneConfig(name="resnet18"),
    projector=ProjectorConfig(widths=(2048, 2048, 1024)),
    optimizer=OptimizerConfig(name="sgd", lr=1e-2, weight_decay=5e-4),
    schedule=ScheduleConfig(name="restarts", warmup=0.0, period=15.0),
    epochs=100,
    batch_size=224,
)

# Source: DirectCLR's paper, App. D, and its public code: ResNet-50 with residual blocks initialised as the identity, LARS with learning
# rate 4.8 for any batch size, and SimCLR's projector of two layers, without biases and with BatchNorm after both.
IMAGENET_SIMCLR = replace(
    IMAGENET,
    name="imagenet-simclr",
    objective="simclr",
    hyper={"temperature": 0.1},
    data=DataConfig(source="hf:ILSVRC/imagenet-1k", mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)),
    backbone=BackboneConfig(name="resnet50", arguments={"zero_init_last": True}),
    projector=ProjectorConfig(widths=(2048, 128), output_batchnorm=True, bias=False),
    optimizer=OptimizerConfig(name="lars", lr=4.8, weight_decay=1e-6, trust_coefficient=0.001, trust_clip=False),
    schedule=ScheduleConfig(warmup=10.0, min_lr_ratio=0.001),
    batch_size=4096,
)

IMAGENET_DIRECTCLR = replace(
    IMAGENET_SIMCLR,
    name="imagenet-directclr",
    objective="directclr",
    hyper={"d0": 360, "temperature": 0.1},
    projector=ProjectorConfig(widths=()),
)
