"""Tiny ImageNet, 64 px: the configurations of the FroSSL authors' fork. The paper has no results on it."""

from dataclasses import replace

from fullrank.config import ScheduleConfig
from fullrank.recipes.augmentations import large_image_views
from fullrank.recipes.cifar import METHODS
from fullrank.recipes.published import FORK, Entry, Recipe, configuration, entries, lars, mlp
from fullrank.recipes.recipe import DataConfig
from fullrank.recipes.stl10 import PLAIN_LARS, STL10

VIEWS = large_image_views(64)

# Source: the FroSSL authors' fork, scripts/pretrain/tiny-imagenet: ResNet-18 with its standard stem, 800 epochs, batch 512, and the
# asymmetric set of ImageNet for every method.
FROSSL = configuration(lars(0.3), mlp(2048, 2048, 1024), "asymmetric", FORK, invariance=1.0)
FORK_METHODS = {
    "simclr": configuration(lars(0.3), mlp(4096, 512, batchnorm=False), "asymmetric", FORK, temperature=0.5),
    "barlow_twins": configuration(lars(0.3), mlp(2048, 2048, 2048), "asymmetric", FORK, redundancy=0.0051, scale=0.005),
    "vicreg": configuration(lars(0.3), mlp(2048, 2048, 1024), "asymmetric", FORK, invariance=25.0, variance=25.0, covariance=1.0),
    "corinfomax": configuration(
        lars(0.5), mlp(2048, 2048, 64), "asymmetric", FORK, invariance=500.0, epsilon=1e-6, forgetting=0.01
    ),
    "wmse": configuration(
        *(lars(0.1, **PLAIN_LARS), mlp(1024, 128), "asymmetric", FORK),
        **dict(slice_size=256, epsilon=0.0, schedule=ScheduleConfig(warmup=0.0)),
    ),
    "ivne": configuration(lars(0.3), mlp(2048, 2048, 1024), "asymmetric", FORK, alignment=4.16, entropy=1.0),
    # These four have the values of CIFAR.
    **{name: METHODS[name].but(views="asymmetric", source=FORK) for name in ("swav", "simsiam", "byol", "dino")},
    # The momentum of the fork's MoCo is 1, so that its momentum encoder never moves.
    "moco": METHODS["moco"].but(views="asymmetric", source="solo-learn's configuration for CIFAR, with the views of FroSSL's authors"),
    "moco-fork": METHODS["moco"].but(
        optimizer=lars(0.3, **PLAIN_LARS), views="asymmetric", momentum=(1.0, 1.0), source=f"{FORK}, where the momentum encoder never moves"
    ),
}
BASE: Recipe = replace(
    STL10, name="tiny-imagenet", data=DataConfig(source="hf:zh-plus/tiny-imagenet", test="valid"), epochs=800, batch_size=512
)
TINY_IMAGENET = replace(BASE, views=VIEWS["asymmetric"], optimizer=lars(0.6))  # 0.3 for 256 images

ENTRIES = (Entry(TINY_IMAGENET, FORK, "tiny-imagenet"), *entries(BASE, FORK_METHODS, VIEWS))
