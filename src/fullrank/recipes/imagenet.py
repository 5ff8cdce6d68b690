"""ImageNet: FroSSL's paper, solo-learn's configurations, and the recipes of DirectCLR's paper with and without a
projector.
"""

from dataclasses import replace

from fullrank.methods.config import BackboneConfig, ProjectorConfig
from fullrank.recipes.augmentations import LARGE_IMAGES
from fullrank.recipes.cifar import METHODS as CIFAR_METHODS
from fullrank.recipes.imagenet100 import METHODS as IMAGENET100_METHODS
from fullrank.recipes.published import FORK, configuration, entries, entry, lars, mlp, resnet, sgd
from fullrank.recipes.recipe import DataConfig, Recipe
from fullrank.training.config import OptimizerConfig, ScheduleConfig

# Source: FroSSL's paper, Sec. 6.2: ResNet-18, SGD with learning rate 1e-2 and warm restarts every 15 epochs, batch 224,
# and SimCLR's augmentations (Chen et al. 2020), the same for each view (Fig. 1). The paper states no projector: that of
# CIFAR.
IMAGENET = Recipe(
    name="imagenet",
    data=DataConfig(source="hf:ILSVRC/imagenet-1k"),
    views=LARGE_IMAGES["symmetric"](224),
    backbone=resnet("resnet18"),
    projector=ProjectorConfig(widths=(2048, 2048, 1024)),
    optimizer=sgd(1e-2, 5e-4),
    schedule=ScheduleConfig(name="restarts", warmup=0.0, period=15.0),
    epochs=100,
    batch_size=224,
)
# Source: the same section and Fig. 4: "the exact same setup", with λ = 5e-3.
IMAGENET_BARLOW_TWINS = replace(
    IMAGENET, name="imagenet-barlow_twins-frossl", objective="barlow_twins", hyper={"redundancy": 5e-3}
)

# Source: solo-learn, scripts/pretrain/imagenet: 100 epochs, warm-up over 10, cosine; ResNet-50; LARS without the clip.
RESNET50 = resnet("resnet50")
BASE = replace(IMAGENET, schedule=ScheduleConfig(warmup=10.0), batch_size=256)
NO_CLIP = {"trust_coefficient": 0.001, "trust_clip": False}
METHODS = {
    "barlow_twins": configuration(
        lars(0.8, 1.5e-6, **NO_CLIP),
        mlp(4096, 4096, 4096),
        "asymmetric",
        redundancy=0.0051,
        scale=0.048,
        backbone=RESNET50,
    ),
    "byol": CIFAR_METHODS["byol"].but(
        optimizer=lars(0.45, 1e-6, **NO_CLIP), backbone=RESNET50, batch_size=2048
    ),  # 2 × 64 × 16 steps
    "moco": IMAGENET100_METHODS["moco"].but(
        optimizer=replace(CIFAR_METHODS["moco"].optimizer, weight_decay=3e-5), backbone=RESNET50, batch_size=128
    ),
    # Source: the FroSSL authors' fork, scripts/pretrain/imagenet: ResNet-18, batch 256 on each of two devices.
    "frossl-fork": configuration(lars(0.3), mlp(2048, 2048, 1024), "vicreg", FORK, invariance=2.0, batch_size=512),
    "vicreg": CIFAR_METHODS["vicreg"].but(source=FORK, batch_size=512),
}
# The others are published on ImageNet-100 only. SwAV's queue and DINO's temperature wait for an eighth of the run, as
# there.
FROM_IMAGENET100 = {
    name: IMAGENET100_METHODS[name] for name in ("swav", "simsiam", "dino", "wmse", "corinfomax", "ivne")
}
FROM_IMAGENET100["swav"] = FROM_IMAGENET100["swav"].but(queue_start=12.5)
FROM_IMAGENET100["dino"] = FROM_IMAGENET100["dino"].but(temperature_warmup=12.5)

# Source: DirectCLR's paper, App. D, and its public code: ResNet-50 with residual blocks initialised as the identity,
# LARS with learning rate 4.8 for any batch size, and SimCLR's projector of two layers, without biases and with
# BatchNorm after both. Its loss contrasts an embedding with those of the other view only, that of this SimCLR with
# those of both views, as in SimCLR's paper.
IMAGENET_SIMCLR = replace(
    IMAGENET,
    name="imagenet-simclr",
    objective="simclr",
    hyper={"temperature": 0.1},
    data=DataConfig(source="hf:ILSVRC/imagenet-1k", mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)),
    views=LARGE_IMAGES["asymmetric"](224),
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

ENTRIES = (
    entry(IMAGENET, "FroSSL's paper, with the projector of CIFAR-10", "imagenet"),
    entry(IMAGENET_SIMCLR, "DirectCLR's paper and its public code", "imagenet"),
    entry(IMAGENET_DIRECTCLR, "DirectCLR's paper and its public code", "imagenet"),
    entry(IMAGENET_BARLOW_TWINS, "FroSSL's paper, Fig. 4, with the projector of CIFAR-10", "imagenet"),
    *entries(BASE, METHODS, LARGE_IMAGES),
    *entries(BASE, FROM_IMAGENET100, LARGE_IMAGES, remark="{source} for ImageNet-100; 100 epochs"),
)
