"""Tiny ImageNet, 64 px: the configurations of the FroSSL authors' fork. The paper has no results on it."""

from dataclasses import replace

from fullrank.images.reading import Reading
from fullrank.recipes.augmentations import LARGE_IMAGES
from fullrank.recipes.cifar import METHODS
from fullrank.recipes.published import FORK, configuration, entries, entry, lars, mlp
from fullrank.recipes.recipe import DataConfig
from fullrank.recipes.stl10 import FROZEN_TEACHER, PLAIN_LARS, STL10
from fullrank.training.config import ScheduleConfig

# Source: the FroSSL authors' fork, scripts/pretrain/tiny-imagenet: ResNet-18 with its standard stem, 800 epochs, batch
# 512, and the asymmetric set of ImageNet for every method.
CIFAR_METHODS = {name: found.but(views="asymmetric", source=FORK) for name, found in METHODS.items()}
# fmt: off
FORK_METHODS = {
    **{name: CIFAR_METHODS[name] for name in ("swav", "simsiam", "byol", "dino", "ivne")},
    "simclr": configuration(lars(0.3), mlp(4096, 512, batchnorm=False), "asymmetric", FORK, temperature=0.5),
    "barlow_twins": CIFAR_METHODS["barlow_twins"].but(scale=0.005),
    "vicreg": CIFAR_METHODS["vicreg"].but(projector=mlp(2048, 2048, 1024)),
    "corinfomax": configuration(lars(0.5), mlp(2048, 2048, 64), "asymmetric", FORK, invariance=500.0, epsilon=1e-6, forgetting=0.01),
    "wmse": configuration(lars(0.1, **PLAIN_LARS), mlp(1024, 128), "asymmetric", FORK, slice_size=256, epsilon=0.0,
                          schedule=ScheduleConfig(warmup=0.0)),
    # The momentum of the fork's MoCo is 1, so that its momentum encoder never moves.
    "moco": CIFAR_METHODS["moco"].but(source="solo-learn's configuration for CIFAR, with the views of FroSSL's authors"),
    "moco-fork": CIFAR_METHODS["moco"].but(optimizer=lars(0.3, **PLAIN_LARS), momentum=(1.0, 1.0), source=FROZEN_TEACHER),
}
# fmt: on

TINY_IMAGENET = replace(
    STL10,
    name="tiny-imagenet",
    data=DataConfig(source="hf:zh-plus/tiny-imagenet", reading=Reading(test="valid")),
    views=LARGE_IMAGES["asymmetric"](64),
    optimizer=lars(0.6),  # 0.3 for 256 images
    epochs=800,
    batch_size=512,
)

ENTRIES = (entry(TINY_IMAGENET, FORK, "tiny-imagenet"), *entries(TINY_IMAGENET, FORK_METHODS, LARGE_IMAGES))
