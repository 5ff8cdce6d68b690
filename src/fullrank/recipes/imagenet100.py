"""ImageNet-100: solo-learn's configurations, and those of the FroSSL authors' fork. The paper has no results on it."""

from dataclasses import replace

from fullrank.recipes.augmentations import LARGE_IMAGES
from fullrank.recipes.cifar import METHODS as CIFAR_METHODS
from fullrank.recipes.published import FORK, configuration, entries, entry, lars, mlp
from fullrank.recipes.recipe import DataConfig
from fullrank.recipes.stl10 import STL10

# Source: solo-learn, scripts/pretrain/imagenet-100: ResNet-18, 400 epochs, batch 128 on each of two devices. The other
# values are CIFAR's.
METHODS = {
    **CIFAR_METHODS,
    "simclr": CIFAR_METHODS["simclr"].but(optimizer=lars(0.3), projector=mlp(4096, 512, batchnorm=False)),
    "byol": CIFAR_METHODS["byol"].but(optimizer=lars(0.5, 1e-6), predictor=8192),
    "moco": CIFAR_METHODS["moco"].but(queue=65536),
    "simsiam": CIFAR_METHODS["simsiam"].but(views="asymmetric"),
    "dino": CIFAR_METHODS["dino"].but(temperature_warmup=50.0, first_temperature=0.04),
    # Source: the FroSSL authors' fork, scripts/pretrain/imagenet100: CorInfoMax with batch 256 on each of two devices,
    # I-VNE+ on one.
    "corinfomax": configuration(
        lars(0.5),
        mlp(4096, 4096, 256),
        "symmetric",
        FORK,
        invariance=500.0,
        epsilon=1e-6,
        forgetting=0.01,
        batch_size=512,
    ),
    # Nobody published these two on ImageNet-100.
    "swav-multicrop": CIFAR_METHODS["swav"].but(
        views="multicrop", source="solo-learn's configuration, with the crops of SwAV's paper"
    ),
    "dino-multicrop": CIFAR_METHODS["dino"].but(
        views="multicrop", source="solo-learn's configuration, with the crops of SwAV's paper"
    ),
}
BASE = replace(
    STL10,
    name="imagenet100",
    data=DataConfig(source="hf:clane9/imagenet-100"),
    views=LARGE_IMAGES["symmetric"](224),
    epochs=400,
)

# Source: the same fork: LARS 0.3 for 256 images, batch 256 on each of two devices.
IMAGENET100 = replace(BASE, optimizer=lars(0.6), batch_size=512)

ENTRIES = (entry(IMAGENET100, FORK, "imagenet100"), *entries(BASE, METHODS, LARGE_IMAGES))
