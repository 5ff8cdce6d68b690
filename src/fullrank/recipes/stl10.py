"""STL-10, 96 px, by FroSSL's paper, and Tiny ImageNet, 64 px, both also by the configurations of its authors' fork."""

from dataclasses import replace

from fullrank.images.reading import Reading
from fullrank.recipes.augmentations import FORK_STL10, LARGE_IMAGES, SMALL_IMAGES
from fullrank.recipes.cifar import CIFAR10, CIFAR100_METHODS, FLOAT32, METHODS, no_logs_entry
from fullrank.recipes.published import FORK, Entry, entries, lars, method, mlp, resnet
from fullrank.recipes.recipe import DataConfig
from fullrank.training.config import ScheduleConfig

# Source: FroSSL's paper, Sec. 6.1: the optimizer of CIFAR, 500 epochs, batch 256; Sec. 6.3: no trade-off
# hyperparameter. The paper states neither views nor projector: those of CIFAR, at 96 px. ResNet-18 with its standard
# stem, as in the authors' fork.
# The authors train on 105,000 images, most of them unlabelled. This source has only the 13,000 labelled images. To
# train on all, give --data a folder with the unlabelled images next to the class folders of its train split.
STL10 = replace(
    CIFAR10,
    name="stl10",
    data=DataConfig(source="hf:tanganke/stl10"),
    views=SMALL_IMAGES["symmetric"](96),
    backbone=resnet("resnet18"),
    epochs=500,
)

# The LARS of files that state none of its arguments: no clip, and all parameters are decayed and adapted.
PLAIN_LARS = {"trust_coefficient": 0.001, "trust_clip": False, "decay_all": True}
NO_WARMUP = ScheduleConfig(warmup=0.0)
IN_FLOAT32 = {"views": "symmetric", "source": FORK, "machine": FLOAT32}
FROZEN_TEACHER = {"optimizer": lars(0.3, **PLAIN_LARS), "momentum": (1.0, 1.0),
                  "source": f"{FORK}, where the momentum encoder never moves"}  # fmt: skip

# Source: the FroSSL authors' fork of solo-learn, scripts/pretrain/stl10.
# fmt: off
FORK_METHODS = {
    "frossl-fork": method(lars(0.1), mlp(2048, 2048, 1024), "symmetric_weak", FORK, invariance=1.4),
    "simclr-fork": method(lars(0.3), mlp(2048, 512, batchnorm=False), "symmetric", FORK, temperature=0.5),
    "vicreg-fork": METHODS["vicreg"] | IN_FLOAT32 | {"projector": mlp(2048, 2048, 1024)},
    "barlow_twins-fork": METHODS["barlow_twins"] | IN_FLOAT32,
    "corinfomax-fork": METHODS["corinfomax"] | {"optimizer": lars(0.5), "projector": mlp(4096, 4096, 256),
                                                "invariance": 500.0},
    # The fork slices each batch four times at random; 256 is the whole batch, so that once is enough.
    "wmse-fork": method(lars(0.1, **PLAIN_LARS), mlp(1024, 128), "symmetric", FORK, slice_size=256, epsilon=0.0,
                               schedule=NO_WARMUP, machine=FLOAT32),
    "moco-fork": METHODS["moco"] | FROZEN_TEACHER,
    "ivne": METHODS["ivne"] | {"views": "symmetric_weak"},
}

# Source: the same fork, scripts/pretrain/tiny-imagenet: ResNet-18 with its standard stem, 800 epochs, batch 512, and
# the asymmetric set of ImageNet for every method. The paper has no results on it.
OF_CIFAR = {name: found | {"views": "asymmetric", "source": FORK} for name, found in METHODS.items()}
TINY_METHODS = {
    **{name: OF_CIFAR[name] for name in ("swav", "simsiam", "byol", "dino", "ivne")},
    "simclr": method(lars(0.3), mlp(4096, 512, batchnorm=False), "asymmetric", FORK, temperature=0.5),
    "barlow_twins": OF_CIFAR["barlow_twins"] | {"scale": 0.005},
    "vicreg": OF_CIFAR["vicreg"] | {"projector": mlp(2048, 2048, 1024)},
    "corinfomax": method(lars(0.5), mlp(2048, 2048, 64), "asymmetric", FORK, invariance=500.0, epsilon=1e-6,
                                forgetting=0.01),
    "wmse": method(lars(0.1, **PLAIN_LARS), mlp(1024, 128), "asymmetric", FORK, slice_size=256, epsilon=0.0,
                          schedule=NO_WARMUP),
    # The momentum of the fork's MoCo is 1, so that its momentum encoder never moves.
    "moco": OF_CIFAR["moco"] | {"source": "solo-learn's configuration for CIFAR, with the views of FroSSL's authors"},
    "moco-fork": OF_CIFAR["moco"] | FROZEN_TEACHER,
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

MULTICROP = {name: found for name, found in CIFAR100_METHODS.items() if name.endswith("-multicrop")}
AS_COMPARED = {name: found for name, found in CIFAR100_METHODS.items() if name not in {*MULTICROP, "ivne"}}
ENTRIES = (
    Entry(STL10, "FroSSL's paper; views and projector of CIFAR-10", "stl10"),
    no_logs_entry(STL10),
    *entries(STL10, AS_COMPARED, SMALL_IMAGES, remark="{source} for CIFAR-100, as in FroSSL's paper, Sec. 6.1"),
    *entries(STL10, MULTICROP, SMALL_IMAGES, remark="{source} for CIFAR"),
    *entries(STL10, FORK_METHODS, FORK_STL10),
    Entry(TINY_IMAGENET, FORK, "tiny-imagenet"),
    *entries(TINY_IMAGENET, TINY_METHODS, LARGE_IMAGES),
)
