"""ImageNet and ImageNet-100: the papers of FroSSL and DirectCLR, solo-learn's configurations, vision transformers."""

from dataclasses import replace

from fullrank.methods.config import BackboneConfig
from fullrank.recipes.augmentations import LARGE_IMAGES
from fullrank.recipes.cifar import METHODS as CIFAR_METHODS
from fullrank.recipes.cifar import NO_WARMUP, PLAIN_LARS, STATISTICS, of_corinfomax
from fullrank.recipes.published import FORK, Entry, entries, lars, method, mlp, resnet, sgd
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
    projector=mlp(2048, 2048, 1024),
    optimizer=sgd(1e-2, 5e-4),
    schedule=ScheduleConfig(name="restarts", warmup=0.0, period=15.0),
    epochs=100,
    batch_size=224,
)
# Source: the same section and Fig. 4: "the exact same setup", with λ = 5e-3.
BARLOW_TWINS = replace(
    IMAGENET, name="imagenet-barlow_twins-frossl", objective="barlow_twins", hyper={"redundancy": 5e-3}
)

# Source: solo-learn, scripts/pretrain/imagenet-100: ResNet-18, 400 epochs, batch 128 on each of two devices. The other
# values are CIFAR's. The paper has no results on it.
# Nobody published these two on ImageNet-100.
WITH_CROPS = {"views": "multicrop", "source": "solo-learn's configuration, with the crops of SwAV's paper"}
# fmt: off
METHODS100 = {
    **CIFAR_METHODS,
    "simclr": CIFAR_METHODS["simclr"] | {"optimizer": lars(0.3), "projector": mlp(4096, 512, batchnorm=False)},
    "byol": CIFAR_METHODS["byol"] | {"optimizer": lars(0.5, 1e-6), "predictor": 8192},
    "moco": CIFAR_METHODS["moco"] | {"queue": 65536},
    "simsiam": CIFAR_METHODS["simsiam"] | {"views": "asymmetric"},
    "nnclr": CIFAR_METHODS["nnclr"] | {"batch_size": 128},
    "vibcreg": CIFAR_METHODS["vibcreg"] | {"optimizer": lars(0.3), "batch_size": 128},
    "dino": CIFAR_METHODS["dino"] | {"temperature_warmup": 50.0, "first_temperature": 0.04},
    # Source: the FroSSL authors' fork, scripts/pretrain/imagenet100: CorInfoMax with batch 256 on each of two devices,
    # I-VNE+ on one.
    "corinfomax": method(lars(0.5), mlp(4096, 4096, 256), "symmetric", FORK, invariance=500.0, epsilon=1e-6,
                         forgetting=0.01, batch_size=512),
    "corinfomax-authors": of_corinfomax(1.0, 1024, mlp(4096, 4096, 128, batchnorm=False), end=5e-3, invariance=500.0,
                                        backbone=resnet("resnet18", zero_last=True)),
    "rdmreg": method(lars(0.165), mlp(2048, 2048, 2048), "vicreg", "the code of Rectified LpJEPA's authors",
                     invariance=25.0, distribution=125.0, slices=8192, backbone=resnet("resnet50"), batch_size=128,
                     epochs=1000),
    "ivne-authors": method(OptimizerConfig(name="sgd", lr=0.4, weight_decay=1e-4),
                           mlp(2048, 2048, 256, output_batchnorm=True), "ivne", "the code of I-VNE+'s authors",
                           alignment=4.16, entropy=1.0, full=2, backbone=resnet("resnet50"), batch_size=64,
                           epochs=800),
    "swav-multicrop": CIFAR_METHODS["swav"] | WITH_CROPS,
    "dino-multicrop": CIFAR_METHODS["dino"] | WITH_CROPS,
}
# fmt: on
BASE100 = replace(
    IMAGENET,
    name="imagenet100",
    data=DataConfig(source="hf:clane9/imagenet-100"),
    optimizer=lars(0.3, 1e-6),
    schedule=ScheduleConfig(warmup=10.0),
    epochs=400,
    batch_size=256,
)
# Source: the same fork: LARS 0.3 for 256 images, batch 256 on each of two devices.
IMAGENET100 = replace(BASE100, optimizer=lars(0.6), batch_size=512)

# Source: solo-learn, scripts/pretrain/imagenet-100/dino_vit.yaml: ViT-Ti/16, 400 epochs, batch 128 on each of two
# devices, AdamW with learning rate 5e-3 for 256 images and weight decay 1e-4 of all parameters. The teacher's
# temperature and the frozen prototypes are the defaults of the method there.
# The vision transformers have no BatchNorm, and their representation is the class token of the last block. timm builds
# a network for the size of the largest view, and interpolates its position embeddings for the smaller views.
DINO_HEAD = mlp(2048, 2048, 256, batchnorm=False, activation="gelu")
ADAMW, VIT_TINY = OptimizerConfig(name="adamw", lr=5e-3, weight_decay=1e-4, decay_all=True), "vit_tiny_patch16_224"
# fmt: off
METHODS100["dino-vit"] = method(ADAMW, DINO_HEAD, "asymmetric", student_temperature=0.1, teacher_temperature=0.07,
                                prototypes=65536, freeze=1.0, momentum=(0.9995, 1.0), temperature_warmup=50.0,
                                first_temperature=0.04, backbone=BackboneConfig(name=VIT_TINY))
# fmt: on

# Source: solo-learn, scripts/pretrain/imagenet: 100 epochs, warm-up over 10, cosine; ResNet-50; LARS without the clip.
RESNET50 = resnet("resnet50")
BASE = replace(IMAGENET, schedule=ScheduleConfig(warmup=10.0), batch_size=256)
NO_CLIP = {"trust_coefficient": 0.001, "trust_clip": False}
MOCO_SGD = replace(CIFAR_METHODS["moco"]["optimizer"], weight_decay=3e-5)
# fmt: off
METHODS = {
    "barlow_twins": method(lars(0.8, 1.5e-6, **NO_CLIP), mlp(4096, 4096, 4096), "asymmetric", redundancy=0.0051,
                           scale=0.048, backbone=RESNET50),
    # 2 × 64 × 16 steps
    "byol": CIFAR_METHODS["byol"] | {"optimizer": lars(0.45, 1e-6, **NO_CLIP), "backbone": RESNET50,
                                     "batch_size": 2048},
    # 400 epochs there; the accuracy in its README is of 100.
    "moco": METHODS100["moco"] | {"optimizer": MOCO_SGD, "backbone": RESNET50, "batch_size": 128,
                                  "source": "solo-learn's configuration, with the 100 epochs of its README"},
    # Source: the FroSSL authors' fork, scripts/pretrain/imagenet: ResNet-18, batch 256 on each of two devices.
    "frossl-fork": method(lars(0.3), mlp(2048, 2048, 1024), "vicreg", FORK, invariance=2.0, batch_size=512),
    "vicreg-fork": CIFAR_METHODS["vicreg"] | {"source": FORK, "batch_size": 512},
}
# fmt: on
# The others are published on ImageNet-100 only.
FROM_IMAGENET100 = {name: METHODS100[name] for name in ("wmse", "ivne")}

# Source: the public code of the authors of each method, with a ResNet-50. The learning rates are those of 256 images.
TO_A_THOUSANDTH = ScheduleConfig(warmup=10.0, min_lr_ratio=0.001)
IDENTITY50 = resnet("resnet50", zero_last=True)
# fmt: off
AUTHORS = {
    "simsiam": method(sgd(0.05, 1e-4, constant_predictor=True), CIFAR_METHODS["simsiam"]["projector"], "mocov2",
                      "the code of SimSiam's authors", predictor=512, backbone=IDENTITY50, batch_size=512,
                      schedule=NO_WARMUP),
    # 2 × 224 px and 6 × 96 px, the script of 100 epochs on 64 GPUs: 4.8 at 4096, from 0.3, to 0.0048; the prototypes
    # are frozen for 313 steps.
    "swav": method(lars(0.3, 1e-6, **PLAIN_LARS), mlp(2048, 128), "multicrop", "the code of SwAV's authors",
                   temperature=0.1, epsilon=0.05, iterations=3, prototypes=3000, freeze=1.0, backbone=RESNET50,
                   batch_size=4096, schedule=ScheduleConfig(warmup=10.0, warmup_start=0.0625, min_lr_ratio=0.001)),
    # The command for a ResNet-50 on 8 GPUs, which ends at 1e-6
    "dino": method(OptimizerConfig(name="sgd", lr=0.03, weight_decay=1e-4, clip_norm=3.0), DINO_HEAD, "dino-resnet",
                   "the code of DINO's authors", student_temperature=0.1, teacher_temperature=0.04, prototypes=65536,
                   freeze=1.0, momentum=(0.996, 1.0), backbone=RESNET50, batch_size=512,
                   schedule=ScheduleConfig(warmup=10.0, min_lr_ratio=1e-6 / 0.06)),
    # The command for one node
    "vicreg": method(lars(0.3, 1e-6, **NO_CLIP), mlp(8192, 8192, 8192, bias=False), "asymmetric",
                     "the code of VICReg's authors", invariance=25.0, variance=25.0, covariance=1.0,
                     backbone=IDENTITY50, batch_size=512, schedule=TO_A_THOUSANDTH),
    "corinfomax": of_corinfomax(0.2, 1536, mlp(8192, 8192, 512, bias=False), invariance=2000.0, forgetting=0.1,
                                backbone=IDENTITY50),
    "byol-authors": method(lars(0.2, 1.5e-6, **NO_CLIP), mlp(4096, 256), "asymmetric", "the code of BYOL's authors",
                           predictor=4096, momentum=(0.996, 1.0), backbone=RESNET50, batch_size=4096, epochs=1000),
    "moco-authors": method(sgd(0.03, 1e-4), mlp(2048, 128, batchnorm=False), "mocov2", "the code of MoCo's authors",
                           temperature=0.2, queue=65536, momentum=(0.999, 0.999), backbone=RESNET50, batch_size=256,
                           epochs=200, schedule=NO_WARMUP),
    "ssl_hsic_teacher": method(lars(0.4, 1e-6, **NO_CLIP), mlp(4096, 256), "asymmetric",
                               "the code of SSL-HSIC's authors", regularization=3.0, predictor=4096,
                               momentum=(0.99, 1.0), backbone=RESNET50, batch_size=4096, epochs=1000),
    # The loss of the authors is √(2048 · 512) times ours.
    "mmcr": method(lars(0.8, 1e-6, **NO_CLIP), mlp(8192, 8192, 512, bias=False), "mmcr",
                   "the code of MMCR's authors, without its momentum encoder", nuclear_norm=1024.0,
                   backbone=IDENTITY50, batch_size=2048, schedule=TO_A_THOUSANDTH),
    # 16 images on each of the eight GPUs of its README, for any batch 9e-4; the 400 epochs of its README
    "visreg": method(OptimizerConfig(name="adamw", lr=1.8e-3, weight_decay=0.05, clip_norm=1.0),
                     mlp(2048, 2048, 256, activation="gelu"), "visreg", "the code of VISReg's authors", trade_off=0.9,
                     shape=1.0, slices=4096, full=4, batch_size=128, epochs=400,
                     backbone=BackboneConfig(name="vit_base_patch16_224", arguments={"drop_path_rate": 0.1}),
                     schedule=ScheduleConfig(warmup=5.0, warmup_start=0.001, min_lr_ratio=0.001)),
    "tico": method(lars(0.2, 1.5e-6, **NO_CLIP), mlp(4096, 256), "asymmetric", "lightly's ImageNet benchmark",
                   covariance=8.0, forgetting=0.9, momentum=(0.99, 1.0), backbone=RESNET50, batch_size=256),
}
# fmt: on

# Source: DirectCLR's paper, App. D, and its public code: ResNet-50 with residual blocks initialised as the identity,
# LARS with learning rate 4.8 for any batch size, here at 4096, and SimCLR's projector of two layers, without biases and
# with BatchNorm after both. Its loss contrasts an embedding with those of the other view only, that of this SimCLR with
# those of both views, as in SimCLR's paper.
# fmt: off
SIMCLR = method(lars(0.3, 1e-6, **NO_CLIP), mlp(2048, 128, output_batchnorm=True, bias=False), "asymmetric",
                "DirectCLR's paper and its public code", temperature=0.1, backbone=IDENTITY50, batch_size=4096,
                schedule=TO_A_THOUSANDTH)
VIT_SMALL = BackboneConfig(name="vit_small_patch16_224")
WITH_STATISTICS = {
    "simclr": SIMCLR,
    "directclr": SIMCLR | {"d0": 360, "projector": mlp()},
    # Source: the public code of DINO, its defaults on 8 GPUs ("vanilla DINO training" of its README): ViT-S/16 with
    # stochastic depth of 0.1, 100 epochs, batch 8 × 64, AdamW with learning rate 5e-4 for 256 images, which ends at
    # 1e-6, warm-up over 10 epochs, weight decay from 0.04 to 0.4, and a head without BatchNorm. The code clips the
    # gradient of each tensor at 3, ours that of all tensors together.
    "dino-vit": method(OptimizerConfig(name="adamw", lr=5e-4, weight_decay=0.04, last_weight_decay=0.4, clip_norm=3.0),
                       DINO_HEAD, "dino", "the code of DINO's authors", student_temperature=0.1,
                       teacher_temperature=0.04, prototypes=65536, freeze=1.0, momentum=(0.996, 1.0), batch_size=512,
                       backbone=replace(VIT_SMALL, arguments={"drop_path_rate": 0.1}),
                       schedule=ScheduleConfig(warmup=10.0, min_lr_ratio=1e-3)),
    # Source: Chen et al. 2021, An Empirical Study of Training Self-Supervised Vision Transformers, and its public code
    # (CONFIG.md, ViT-Small on one node): 300 epochs, batch 1024, AdamW with learning rate 1.5e-4 for 256 images and
    # weight decay 0.1, warm-up over 40 epochs, BYOL's augmentations, and random patch embeddings that are not trained
    # (Sec. 4.2). FroSSL has its projector of CIFAR-10, and the balanced invariance weight for this batch
    # (docs/derivations/balance.md).
    "frossl-vit": method(OptimizerConfig(name="adamw", lr=1.5e-4, weight_decay=0.1, frozen=("patch_embed",)),
                         IMAGENET.projector, "asymmetric",
                         "MoCo v3's configuration with the loss of FroSSL, which nobody has published", invariance=4.0,
                         backbone=VIT_SMALL, schedule=ScheduleConfig(warmup=40.0), epochs=300, batch_size=1024),
}
# fmt: on
NORMALIZED = replace(IMAGENET.data, **STATISTICS)

ENTRIES = (
    Entry(IMAGENET100, FORK, "imagenet100"),
    *entries(BASE100, METHODS100, LARGE_IMAGES),
    Entry(IMAGENET, "FroSSL's paper, with the projector of CIFAR-10", "imagenet"),
    Entry(BARLOW_TWINS, "FroSSL's paper, Fig. 4, with the projector of CIFAR-10", "imagenet"),
    *entries(BASE, METHODS, LARGE_IMAGES),
    *entries(BASE, FROM_IMAGENET100, LARGE_IMAGES, remark="{source} for ImageNet-100; 100 epochs"),
    *entries(replace(BASE, data=NORMALIZED), AUTHORS | WITH_STATISTICS, LARGE_IMAGES),
)
