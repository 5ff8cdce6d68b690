"""CIFAR-10 and CIFAR-100, 32 px, STL-10, 96 px, and Tiny ImageNet, 64 px: FroSSL's paper, and every method by its
public configuration.
"""

from dataclasses import replace
from typing import Any

from fullrank.images.reading import Reading
from fullrank.methods.config import ProjectorConfig
from fullrank.recipes.augmentations import FORK_STL10, LARGE_IMAGES, SMALL_IMAGES
from fullrank.recipes.published import FORK, Entry, Method, adam, entries, lars, method, mlp, resnet, sgd
from fullrank.recipes.recipe import DataConfig, MachineConfig, Recipe
from fullrank.training.config import ScheduleConfig

# Source: FroSSL's paper, Sec. 6.1: LARS, learning rate 0.3, weight decay 1e-6, 1000 epochs, batch 256. The views and
# the projector are those of its authors' configuration, because the paper does not state them.
CIFAR10 = Recipe(
    name="cifar10",
    data=DataConfig(source="hf:uoft-cs/cifar10"),
    views=SMALL_IMAGES["symmetric"](32),
    backbone=resnet("resnet18", stem="small"),
    projector=mlp(2048, 2048, 1024),
    optimizer=lars(0.3, 1e-6),
    schedule=ScheduleConfig(warmup=10.0),
    epochs=1000,
    batch_size=256,
)
CIFAR100 = replace(CIFAR10, name="cifar100", data=DataConfig(source="hf:uoft-cs/cifar100"))
FLOAT32 = MachineConfig(precision="32-true")

# Source: solo-learn, scripts/pretrain/cifar (one file for both data sets): ResNet-18, 1000 epochs, batch 256, warm-up
# of 10 epochs, cosine.
# Each line: optimizer, learning rate, weight decay; projector; augmentation set; hyperparameters of the objective;
# those of the method.
# fmt: off
METHODS = {
    "simclr": method(lars(0.4), mlp(2048, 256, batchnorm=False), "symmetric", temperature=0.2),
    "swav": method(lars(0.6, 1e-6), mlp(2048, 128), "symmetric", temperature=0.1, epsilon=0.05, iterations=3,
                   prototypes=3000, freeze=2.0, queue=3840, queue_start=50.0),
    "moco": method(sgd(0.3, 1e-4), mlp(2048, 256, batchnorm=False), "symmetric_weak", temperature=0.2,
                   queue=32768, momentum=(0.99, 0.999)),
    "moco_v3": method(lars(0.3, 1e-6), mlp(4096, 256, output_batchnorm=True, output_affine=False), "asymmetric",
                      temperature=0.2, predictor=4096, momentum=(0.99, 1.0)),
    "nnclr": method(lars(0.4, 1e-5), mlp(2048, 2048, 256, output_batchnorm=True), "asymmetric", temperature=0.2,
                    predictor=4096, queue=65536),
    "simsiam": method(sgd(0.5, 1e-5, constant_predictor=True),
                      mlp(2048, 2048, 2048, output_batchnorm=True, output_affine=False), "symmetric_weak",
                      predictor=512),
    "byol": method(lars(1.0, 1e-5), mlp(4096, 256), "asymmetric", predictor=4096, momentum=(0.99, 1.0)),
    "dino": method(lars(0.3, 1e-6), mlp(2048, 2048, 256, batchnorm=False, activation="gelu"), "asymmetric",
                   student_temperature=0.1, teacher_temperature=0.07, prototypes=4096, freeze=1.0,
                   momentum=(0.9995, 1.0)),
    # 25 for the variance of these two there, which adds the hinges of both views; ours is their mean.
    "vicreg": method(lars(0.3), mlp(2048, 2048, 2048), "vicreg", invariance=25.0, variance=50.0, covariance=1.0),
    "vibcreg": method(lars(0.3, trust_clip=False), mlp(2048, 2048, 2048, activation="gelu", output_iternorm=64),
                      "vicreg", invariance=25.0, variance=50.0, covariance=200.0),
    "barlow_twins": method(lars(0.3), mlp(2048, 2048, 2048), "asymmetric", redundancy=0.0051, scale=0.1),
    "wmse": method(adam(2e-3, 1e-6), mlp(1024, 64), "wmse", slice_size=128, epsilon=0.0),
    # Source: the FroSSL authors' fork of solo-learn, scripts/pretrain/cifar; CorInfoMax in float32.
    "corinfomax": method(lars(0.3), mlp(2048, 2048, 64), "asymmetric", FORK, invariance=250.0, epsilon=1e-6,
                         forgetting=0.01, machine=FLOAT32),
    "ivne": method(lars(0.3), mlp(2048, 2048, 1024), "symmetric", FORK, alignment=4.16, entropy=1.0),
}


def of_corinfomax(lr: float, batch_size: int, head: ProjectorConfig, *, end: float = 1e-6, **others: Any) -> Method:
    """Return the configuration of CorInfoMax's authors (the commands of their README).

    Args:
        lr: the learning rate of the whole batch.
        batch_size: images per step.
        head: the projector.
        end: the last learning rate.
        **others: the other fields of `method`.
    """
    schedule = ScheduleConfig(warmup=10.0, warmup_start=3e-3 / lr, min_lr_ratio=end / lr)
    numbers = {"epsilon": 1e-8, "forgetting": 0.01, "batch_size": batch_size, "schedule": schedule, **others}
    return method(sgd(lr * 256 / batch_size, 1e-4), head, "asymmetric", "the code of CorInfoMax's authors", **numbers)


# The crops of solo-learn's multi-crop configuration of SwAV; its cosine ends at a thousandth of the peak. Those of DINO
# are ours.
SWAV_CROPS = {"views": "multicrop", "source": "solo-learn's multi-crop configuration"}
DINO_CROPS = {"views": "multicrop", "source": "solo-learn's configuration, with the crops of its SwAV"}
METHODS["swav-multicrop"] = METHODS["swav"] | SWAV_CROPS | {"schedule": ScheduleConfig(warmup=10.0, min_lr_ratio=0.001)}
METHODS["dino-multicrop"] = METHODS["dino"] | DINO_CROPS

# Source: the same fork. Its file of the symmetric set has switched the random crop off since July 2024; these recipes
# crop, as before.
FORK_METHODS = {
    "frossl-fork": method(lars(0.3), mlp(2048, 2048, 1024), "symmetric", FORK, invariance=1.0, machine=FLOAT32),
    "frossl-patches": method(lars(0.3), mlp(4096, 512), "patches", f"{FORK}, 200 patches of an image",
                             invariance=1.0, batch_size=100, epochs=30, schedule=ScheduleConfig(warmup=0.0),
                             machine=FLOAT32),
    "simclr-fork": method(lars(0.3), mlp(2048, 128, batchnorm=False), "symmetric", FORK, temperature=0.3),
}
# Source: the public code of the authors of EMP-SSL (the command of its README, with 20 patches) and of MMCR, whose rate
# is constant, with a ResNet-50. Their rates are those of any batch.
AUTHORS = {
    "emp_ssl": method(lars(0.3 * 2.56, trust_coefficient=0.005), mlp(4096, 4096, 1024), "emp_ssl",
                      "the code of EMP-SSL's authors", invariance=200.0, epsilon=0.2, batch_size=100, epochs=30,
                      schedule=ScheduleConfig(warmup=0.0)),
    "mmcr": method(adam(8e-3, 1e-6), mlp(512, 128, bias=False), "mmcr", "the code of MMCR's authors",
                   nuclear_norm=32.0, backbone=resnet("resnet50", stem="small"), batch_size=32, epochs=500,
                   schedule=ScheduleConfig(name="constant", warmup=0.0)),
}
# Source: the public code of EB-JEPA (Meta), examples/image_jepa, with the best projector and weight of its README: 10
# times the statistic divided by N = 256, beside the mean squared difference of the views, which is four times ours.
LEJEPA = method(lars(0.3), mlp(2048, 2048, 128), "eb-jepa", "the code of EB-JEPA", trade_off=10 / (10 + 4 * 256),
                slices=256, epochs=300)
# fmt: on
WIDER_CORINFOMAX = METHODS["corinfomax"] | {"projector": mlp(4096, 4096, 128), "invariance": 1000.0}
CIFAR100_METHODS = METHODS | {"corinfomax": WIDER_CORINFOMAX}


# Source: the code of CorInfoMax's authors, with the views of ImageNet at 32 px and a projector without BatchNorm.
RESNET18 = resnet("resnet18", stem="small", zero_last=True)
CORINFOMAX10 = of_corinfomax(0.5, 512, mlp(2048, 2048, 64, batchnorm=False), invariance=250.0, backbone=RESNET18)
CORINFOMAX100 = CORINFOMAX10 | {"projector": mlp(4096, 4096, 128, batchnorm=False), "invariance": 1000.0}

# Methods on images that are normalised by the mean and the deviation of ImageNet.
# Source: lightly's CIFAR-10 benchmark, in the version of 2023, with its larger batch: 200 epochs, batch 512, SGD with
# learning rate 0.06 for 128 images and weight decay 5e-4, cosine without warm-up, one seed, kNN with k = 200. FroSSL
# came in 2026; its views here are those of SimCLR.
# fmt: off
LIGHTLY = "lightly's CIFAR-10 benchmark"
LIGHTLY_SGD = sgd(0.12, 5e-4)
WITH_STATISTICS = {
    "frossl-lightly": method(LIGHTLY_SGD, mlp(2048, 2048), "lightly", LIGHTLY, invariance=1.0, center=False),
    "simclr-lightly": method(LIGHTLY_SGD, mlp(512, 128, output_batchnorm=True), "lightly", LIGHTLY, temperature=0.5),
    "moco-lightly": method(LIGHTLY_SGD, mlp(512, 128, batchnorm=False), "lightly", LIGHTLY, temperature=0.1,
                           queue=8192, momentum=(0.99, 0.99)),
    # Its contrast has other negatives: the predictions and the neighbours of both views.
    "nnclr-lightly": method(LIGHTLY_SGD, mlp(2048, 256, output_batchnorm=True), "lightly", LIGHTLY, temperature=0.5,
                            predictor=4096, queue=4096),
    # 0.06 for any batch
    "simsiam-lightly": method(sgd(0.03, 5e-4), mlp(2048, 2048, output_batchnorm=True), "simsiam", LIGHTLY,
                              predictor=512),
    # Our loss is four times theirs, so that a quarter of the rate and four times the decay make the same steps.
    "byol-lightly": method(sgd(0.03, 2e-3), mlp(1024, 256), "asymmetric", LIGHTLY, predictor=1024,
                           momentum=(0.99, 0.99)),
    "barlow_twins-lightly": method(LIGHTLY_SGD, mlp(2048, 2048), "asymmetric", LIGHTLY, redundancy=5e-3),
    "swav-lightly": method(adam(2e-3, 1e-6), mlp(512, 128), "lightly-swav", LIGHTLY, temperature=0.1, epsilon=0.05,
                           iterations=3, prototypes=512, freeze=0.0),
    "dino-lightly": method(LIGHTLY_SGD, mlp(2048, 256, activation="gelu"), "lightly-dino", LIGHTLY, prototypes=2048,
                           freeze=0.0, student_temperature=0.1, teacher_temperature=0.04, momentum=(0.99, 0.99)),
    # Source: the code of HaoChen et al. 2021, with μ = 1.
    "spectral_contrastive": method(sgd(0.03, 5e-4), mlp(2048, 1000, output_batchnorm=True), "simsiam",
                                   "the code of its authors", epochs=800, schedule=ScheduleConfig(warmup=10.0)),
}
# fmt: on
NO_WARMUP = ScheduleConfig(warmup=0.0)
STATISTICS = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
NORMALIZED = replace(CIFAR10, data=replace(CIFAR10.data, **STATISTICS), epochs=200, batch_size=512, schedule=NO_WARMUP)


def without_logarithms(recipe: Recipe) -> Recipe:
    """Return a recipe of FroSSL without the logarithms ("no logs" in the paper's Tables 2 and 3).

    The paper gives the variance term no weight of its own, but with columns of unit norm its gradient is 1,696 times
    that of the invariance term at N = 256 and D = 1024 (0.33 times with logarithms), so that the raw form cannot be
    trained. With the weight min(D, N − 1)/D² (`balanced_weights`) its gradient is that with logarithms at the optimum,
    where ‖ZᵀZ‖_F² = D²/min(D, N − 1). Away from the optimum it is larger, which is what the logarithm regulates.

    >>> without_logarithms(CIFAR10).hyper["variance"] == 255 / 1024**2
    True
    """
    return replace(recipe, hyper={**recipe.hyper, "log": False, "variance": "balanced"})


def no_logs_entry(recipe: Recipe) -> Entry:
    """Return the entry "NAME-nologs"."""
    origin = "FroSSL's paper, Sec. 6.3; the weight of the variance term is ours"
    return Entry(replace(without_logarithms(recipe), name=f"{recipe.name}-nologs"), origin, recipe.name)


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
IN_FLOAT32 = {"views": "symmetric", "source": FORK, "machine": FLOAT32}
FROZEN_TEACHER = {"optimizer": lars(0.3, **PLAIN_LARS), "momentum": (1.0, 1.0),
                  "source": f"{FORK}, where the momentum encoder never moves"}  # fmt: skip
# The fork slices each batch four times at random; 256 is the whole batch, so that once is enough.
WMSE = method(lars(0.1, **PLAIN_LARS), mlp(1024, 128), "symmetric", FORK, slice_size=256, epsilon=0.0,
              schedule=NO_WARMUP)  # fmt: skip

# Source: the FroSSL authors' fork of solo-learn, scripts/pretrain/stl10.
# fmt: off
STL10_FORK_METHODS = {
    "frossl-fork": method(lars(0.1), mlp(2048, 2048, 1024), "symmetric_weak", FORK, invariance=1.4),
    "simclr-fork": method(lars(0.3), mlp(2048, 512, batchnorm=False), "symmetric", FORK, temperature=0.5),
    "vicreg-fork": METHODS["vicreg"] | IN_FLOAT32 | {"projector": mlp(2048, 2048, 1024)},
    "barlow_twins-fork": METHODS["barlow_twins"] | IN_FLOAT32,
    "corinfomax-fork": METHODS["corinfomax"] | {"optimizer": lars(0.5), "projector": mlp(4096, 4096, 256),
                                                "invariance": 500.0},
    "wmse-fork": WMSE | {"machine": FLOAT32},
    "moco-fork": METHODS["moco"] | FROZEN_TEACHER,
    "ivne": METHODS["ivne"] | {"views": "symmetric_weak"},
}
# The other objectives of its symmetric set take two views.
EIGHT_VIEWS = {f"{name}-8views": STL10_FORK_METHODS[f"{name}-fork"] | {"views": "eight"} for name in ("simclr", "wmse")}

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
    "wmse": WMSE | {"views": "asymmetric"},
    # The momentum of the fork's MoCo is 1, so that its momentum encoder never moves.
    "moco": OF_CIFAR["moco"] | {"source": "solo-learn's configuration for CIFAR, with the views of FroSSL's authors"},
    "moco-fork": OF_CIFAR["moco"] | FROZEN_TEACHER,
    "corinfomax-authors": of_corinfomax(0.5, 1024, CORINFOMAX100["projector"], invariance=500.0, forgetting=0.1,
                                        backbone=resnet("resnet50", zero_last=True)),
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
NOT_COMPARED = ("ivne", "moco_v3", "nnclr", "vibcreg")
AS_COMPARED = {name: found for name, found in CIFAR100_METHODS.items() if name not in {*MULTICROP, *NOT_COMPARED}}
PAPER = "FroSSL's paper; views and projector from its authors' configuration"
ENTRIES = (
    Entry(CIFAR10, PAPER, "cifar10"),
    no_logs_entry(CIFAR10),
    *entries(CIFAR10, METHODS | FORK_METHODS | AUTHORS | {"lejepa": LEJEPA}, SMALL_IMAGES),
    *entries(CIFAR10, {"corinfomax-authors": CORINFOMAX10}, LARGE_IMAGES),
    *entries(NORMALIZED, WITH_STATISTICS, SMALL_IMAGES),
    Entry(CIFAR100, PAPER, "cifar100"),
    no_logs_entry(CIFAR100),
    *entries(CIFAR100, CIFAR100_METHODS | FORK_METHODS | AUTHORS, SMALL_IMAGES),
    *entries(CIFAR100, {"corinfomax-authors": CORINFOMAX100}, LARGE_IMAGES),
    Entry(STL10, "FroSSL's paper; views and projector of CIFAR-10", "stl10"),
    no_logs_entry(STL10),
    *entries(STL10, AS_COMPARED, SMALL_IMAGES, remark="{source} for CIFAR-100, as in FroSSL's paper, Sec. 6.1"),
    *entries(STL10, MULTICROP, SMALL_IMAGES, remark="{source} for CIFAR"),
    *entries(STL10, STL10_FORK_METHODS | EIGHT_VIEWS, FORK_STL10),
    Entry(TINY_IMAGENET, FORK, "tiny-imagenet"),
    *entries(TINY_IMAGENET, TINY_METHODS, LARGE_IMAGES),
)
