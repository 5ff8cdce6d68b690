"""STL-10: FroSSL's paper, the methods with the values that the paper takes for them, and the configurations of its authors' fork."""

from dataclasses import replace

from fullrank.config import BackboneConfig, ScheduleConfig
from fullrank.recipes.augmentations import fork_stl10_views, small_image_views
from fullrank.recipes.cifar import CIFAR10, CIFAR100_METHODS, without_logarithm
from fullrank.recipes.published import FORK, Entry, configuration, entries, lars, mlp
from fullrank.recipes.recipe import DataConfig, MachineConfig

VIEWS = small_image_views(96)

# Source: FroSSL's paper, Sec. 6.1: the optimizer of CIFAR, 500 epochs, batch 256; Sec. 6.3: no trade-off hyperparameter. The paper states
# neither views nor projector: those of CIFAR, at 96 px. ResNet-18 with its standard stem, as in the authors' fork.
# The authors train on 105,000 images, most of them unlabelled. This source has only the 13,000 labelled images. To train on all,
# give --data a folder with the unlabelled images next to the class folders of its train split.
STL10 = replace(
    CIFAR10,
    name="stl10",
    data=DataConfig(source="hf:tanganke/stl10"),
    views=VIEWS["symmetric"],
    backbone=BackboneConfig(name="resnet18"),
    epochs=500,
)

FLOAT32 = MachineConfig(precision="32-true")
# The LARS of files that state none of its arguments: no clip, and all parameters are decayed and adapted.
PLAIN_LARS = {"trust_coefficient": 0.001, "trust_clip": False, "decay_all": True}

# Source: the FroSSL authors' fork of solo-learn, scripts/pretrain/stl10.
FORK_METHODS = {
    "frossl-fork": configuration(lars(0.1), mlp(2048, 2048, 1024), "symmetric_weak", FORK, invariance=1.4),
    "simclr-fork": configuration(lars(0.3), mlp(2048, 512, batchnorm=False), "symmetric", FORK, temperature=0.5),
    "vicreg-fork": configuration(
        lars(0.3), mlp(2048, 2048, 1024), "symmetric", FORK, invariance=25.0, variance=25.0, covariance=1.0, machine=FLOAT32
    ),
    "barlow_twins-fork": configuration(lars(0.3), mlp(2048, 2048, 2048), "symmetric", FORK, redundancy=0.0051, scale=0.1, machine=FLOAT32),
    "corinfomax-fork": configuration(
        lars(0.5), mlp(4096, 4096, 256), "asymmetric", FORK, invariance=500.0, epsilon=1e-6, forgetting=0.01, machine=FLOAT32
    ),
    "wmse-fork": configuration(  # four random slicings of each batch; ours slices once, and 256 is the whole batch
        *(lars(0.1, **PLAIN_LARS), mlp(1024, 128), "symmetric", FORK),
        **dict(slice_size=256, epsilon=0.0, schedule=ScheduleConfig(warmup=0.0), machine=FLOAT32),
    ),
    "moco-fork": configuration(
        *(lars(0.3, **PLAIN_LARS), mlp(2048, 256, batchnorm=False), "symmetric_weak"),
        *(f"{FORK}, where the momentum encoder never moves",),
        **dict(temperature=0.2, queue=32768, momentum=(1.0, 1.0)),
    ),
    "ivne": configuration(lars(0.3), mlp(2048, 2048, 1024), "symmetric_weak", FORK, alignment=4.16, entropy=1.0),
}

IMAGES = "only the 13,000 labelled of 105,000 images"
MULTICROP = {name: found for name, found in CIFAR100_METHODS.items() if name.endswith("-multicrop")}
AS_COMPARED = {name: found for name, found in CIFAR100_METHODS.items() if name not in {*MULTICROP, "ivne"}}
ENTRIES = (
    Entry(STL10, f"FroSSL's paper; views and projector of CIFAR-10; {IMAGES}", "stl10"),
    without_logarithm(STL10),
    *entries(STL10, AS_COMPARED, VIEWS, remark="{source} for CIFAR-100, as in FroSSL's paper, Sec. 6.1"),
    *entries(STL10, MULTICROP, VIEWS, remark="{source} for CIFAR"),
    *entries(STL10, FORK_METHODS, fork_stl10_views()),
)
