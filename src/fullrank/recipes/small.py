"""fullrank's own recipes: scikit-learn's digits, 8×8 grayscale images without a download; CIFAR-10 on CPU cores."""

from dataclasses import replace

from fullrank.methods.config import BackboneConfig, ProjectorConfig
from fullrank.recipes.augmentations import WEAK
from fullrank.recipes.photos import NARROW
from fullrank.recipes.published import Entry, mlp
from fullrank.recipes.recipe import DataConfig, Recipe
from fullrank.training.config import OptimizerConfig, ScheduleConfig
from fullrank.views.config import AffineConfig, CropConfig, JitterConfig, NoiseConfig, ViewConfig

# With crops, the representation scores below raw pixels at few labels. The views move and deform the strokes a little
# instead.
STROKES = AffineConfig(probability=1.0, degrees=15.0, translate=(0.125, 0.125), scale=(0.85, 1.15), shear=(10.0, 10.0))
DIGITS_VIEW = ViewConfig(
    size=8,
    crop=CropConfig(probability=0.0),
    affine=STROKES,
    flip=0.0,
    jitter=JitterConfig(probability=0.0),
    grayscale=0.0,
    noise=NoiseConfig(probability=1.0, std=0.1),
)
# Only one of the four residual blocks has stride 2, so that the last feature map is 4×4; at 1×1 the positions of the
# strokes are lost.
FOUR_BLOCKS = {"channels": [32, 64, 128, 128], "layers": [1, 1, 1, 1], "output_stride": 8, "zero_init_last": False}
DIGITS = Recipe(
    name="digits",
    data=DataConfig(source="digits", channels=1),
    views=(DIGITS_VIEW,),
    backbone=BackboneConfig(name="resnet18", arguments=FOUR_BLOCKS, stem="small"),
    projector=mlp(512, 512),
    optimizer=OptimizerConfig(name="adamw", lr=5e-3, weight_decay=1e-4),
    schedule=ScheduleConfig(warmup=2.0),
    epochs=40,
    batch_size=128,
    log_every=1,
)

# This recipe fits two CPU cores: a residual network of widths 32-128, and weaker views than those of a run of 1000
# epochs. D/N = 2 with invariance 2 keeps the paper's balance of the two terms (invariance · D/2N = 2). 2560 held-out
# images suffice for the spectrum at D = 256.
CIFAR10_SMALL = Recipe(
    name="cifar10-small",
    hyper={"invariance": 2.0},
    data=DataConfig(source="hf:uoft-cs/cifar10"),
    views=(ViewConfig(size=32, crop=CropConfig(scale=(0.2, 1.0)), jitter=WEAK),),
    backbone=BackboneConfig(name="resnet18", arguments=NARROW, stem="small"),
    projector=mlp(512, 256),
    optimizer=OptimizerConfig(name="adamw", lr=3e-3, weight_decay=1e-4),
    schedule=ScheduleConfig(warmup=1.0),
    epochs=8,
    batch_size=128,
)

# This recipe is for many short runs with different projectors. The last stage has two blocks, so that the shortcut of
# the last block is the identity. d0 = 22 of D_b = 128 dimensions is about the share of the paper, 360 of 2048.
TWO_LAST_BLOCKS = {"channels": [16, 32, 64, 128], "layers": [1, 1, 1, 2]}
CIFAR10_PROJECTORS = replace(
    CIFAR10_SMALL,
    name="cifar10-projectors",
    objective="simclr",
    hyper={"temperature": 0.1},
    views=(replace(CIFAR10_SMALL.views[0], size=16),),
    backbone=BackboneConfig(name="resnet18", arguments=TWO_LAST_BLOCKS, stem="small"),
    projector=ProjectorConfig(widths=(128, 64), d0=22),
    schedule=ScheduleConfig(warmup=0.5),
    epochs=4,
)

ENTRIES = (
    Entry(DIGITS, "fullrank's own, for a minute on two CPU cores"),
    Entry(CIFAR10_SMALL, "fullrank's own, for two CPU cores"),
    Entry(CIFAR10_PROJECTORS, "fullrank's own, for comparing projectors on one CPU core"),
)
