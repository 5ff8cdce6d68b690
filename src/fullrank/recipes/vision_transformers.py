"""Recipes of vision transformers: DINO's and MoCo v3's public settings on ImageNet, and solo-learn's on ImageNet-100.

The backbones have no BatchNorm, and their representation is the class token of the last block. timm builds a network
for the size of the largest view, and interpolates its position embeddings for the smaller views.
"""

from dataclasses import replace

from fullrank.methods.config import BackboneConfig
from fullrank.recipes.augmentations import LARGE_IMAGES
from fullrank.recipes.imagenet import IMAGENET
from fullrank.recipes.imagenet100 import IMAGENET100
from fullrank.recipes.published import entry, mlp
from fullrank.training.config import OptimizerConfig, ScheduleConfig

STATISTICS = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
"""Of ImageNet, in the code of both papers."""

# Source: the public code of DINO, its defaults on 8 GPUs ("vanilla DINO training" of its README): ViT-S/16 with
# stochastic depth of 0.1, 100 epochs, batch 8 × 64, AdamW with learning rate 5e-4 for 256 images, which ends at 1e-6,
# warm-up over 10 epochs, weight decay from 0.04 to 0.4, and a head without BatchNorm. The code clips the gradient of
# each tensor at 3, ours that of all tensors together.
DINO = replace(
    IMAGENET,
    name="imagenet-dino-vit",
    objective="dino",
    hyper={"student_temperature": 0.1, "teacher_temperature": 0.04},
    method={"prototypes": 65536, "freeze": 1.0, "momentum": (0.996, 1.0)},
    data=replace(IMAGENET.data, **STATISTICS),
    views=LARGE_IMAGES["dino"](224),
    backbone=BackboneConfig(name="vit_small_patch16_224", arguments={"drop_path_rate": 0.1}),
    projector=mlp(2048, 2048, 256, batchnorm=False, activation="gelu"),
    optimizer=OptimizerConfig(name="adamw", lr=1e-3, weight_decay=0.04, last_weight_decay=0.4, clip_norm=3.0),
    schedule=ScheduleConfig(warmup=10.0, min_lr_ratio=1e-3),
    epochs=100,
    batch_size=512,
)

# Source: Chen et al. 2021, An Empirical Study of Training Self-Supervised Vision Transformers, and its public code
# (CONFIG.md, ViT-Small on one node): 300 epochs, batch 1024, AdamW with learning rate 1.5e-4 for 256 images and weight
# decay 0.1, warm-up over 40 epochs, BYOL's augmentations, and random patch embeddings that are not trained (Sec. 4.2).
# FroSSL has its projector of CIFAR-10, and the invariance weight 4N/(D(V − 1)) for this batch (docs/objectives.md).
FROSSL = replace(
    IMAGENET,
    name="imagenet-frossl-vit",
    hyper={"invariance": 4.0},
    data=replace(IMAGENET.data, **STATISTICS),
    views=LARGE_IMAGES["asymmetric"](224),
    backbone=BackboneConfig(name="vit_small_patch16_224"),
    optimizer=OptimizerConfig(name="adamw", lr=6e-4, weight_decay=0.1, frozen=("patch_embed",)),
    schedule=ScheduleConfig(warmup=40.0),
    epochs=300,
    batch_size=1024,
)

# Source: solo-learn, scripts/pretrain/imagenet-100/dino_vit.yaml: ViT-Ti/16, 400 epochs, batch 128 on each of two
# devices, AdamW with learning rate 5e-3 for 256 images and weight decay 1e-4 of all parameters. The teacher's
# temperature and the frozen prototypes are the defaults of the method there.
DINO_TINY = replace(
    IMAGENET100,
    name="imagenet100-dino-vit",
    objective="dino",
    hyper={"student_temperature": 0.1, "teacher_temperature": 0.07},
    method={
        "prototypes": 65536,
        "freeze": 1.0,
        "momentum": (0.9995, 1.0),
        "temperature_warmup": 50.0,
        "first_temperature": 0.04,
    },
    views=LARGE_IMAGES["asymmetric"](224),
    backbone=BackboneConfig(name="vit_tiny_patch16_224"),
    projector=mlp(2048, 2048, 256, batchnorm=False, activation="gelu"),
    optimizer=OptimizerConfig(name="adamw", lr=5e-3, weight_decay=1e-4, decay_all=True),
    schedule=ScheduleConfig(warmup=10.0),
    epochs=400,
    batch_size=256,
)

ENTRIES = (
    entry(DINO, "the code of DINO's authors", "imagenet"),
    entry(FROSSL, "MoCo v3's configuration with the loss of FroSSL, which nobody has published", "imagenet"),
    entry(DINO_TINY, "solo-learn's configuration", "imagenet100"),
)
