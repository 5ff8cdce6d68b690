"""ImageNet-100: solo-learn's configurations, and those of the FroSSL authors' fork. The paper has no results on it."""

from dataclasses import replace

from fullrank.recipes.augmentations import large_image_views
from fullrank.recipes.cifar import METHODS as CIFAR_METHODS
from fullrank.recipes.published import FORK, Entry, configuration, entries, lars, mlp
from fullrank.recipes.recipe import DataConfig
from fullrank.recipes.stl10 import STL10

VIEWS = large_image_views(224)

# Source: solo-learn, scripts/pretrain/imagenet-100: ResNet-18, 400 epochs, batch 128 on each of two devices. What is not here is as on CIFAR.
METHODS = {
    **CIFAR_METHODS,
    "simclr": CIFAR_METHODS["simclr"].but(optimizer=lars(0.3), projector=mlp(4096, 512, batchnorm=False)),
    "byol": CIFAR_METHODS["byol"].but(optimizer=lars(0.5, 1e-6), predictor=8192),
    "moco": CIFAR_METHODS["moco"].but(queue=65536),
    "simsiam": CIFAR_METHODS["simsiam"].but(views="asymmetric"),
    "dino": CIFAR_METHODS["dino"].but(temperature_warmup=50.0, first_temperature=0.04),
    # Source: the FroSSL authors' fork, scripts/pretrain/imagenet100: CorInfoMax with batch 256 on each of two devices, I-VNE+ on one.
    "corinfomax": configuration(
        *(lars(0.5), mlp(4096, 4096, 256), "symmetric", FORK), **dict(invariance=500.0, epsilon=1e-6, forgetting=0.01, batch_size=512)
    ),
    "ivne": configuration(lars(0.3), mlp(2048, 2048, 1024), "symmetric", FORK, alignment=4.16, entropy=1.0),
    # Nobody published these two on ImageNet-100.
    "swav-multicrop": CIFAR_METHODS["swav"].but(views="multicrop", source="solo-learn's configuration, with the crops of SwAV's paper"),
    "dino-multicrop": CIFAR_METHODS["dino"].but(views="multicrop", source="solo-learn's configuration, with the crops of SwAV's paper"),
}
BASE = replace(STL10, name="imagenet100", data=DataConfig(source="hf:clane9/imagenet-100"), views=VIEWS["symmetric"], epochs=400)

# Source: the same fork: LARS 0.3 for 256 images, batch 256 on each of two devices.
IMAGENET100 = replace(BASE, optimizer=lars(0.6), batch_size=512)

ENTRIES = (Entry(IMAGENET100, FORK, "imagenet100"), *entries(BASE, METHODS, VIEWS))
