"""scikit-learn's digits, 8×8 grayscale images that need no download; a complete run takes a minute on two cores."""

from fullrank.methods.config import BackboneConfig, ProjectorConfig
from fullrank.recipes.published import entry
from fullrank.recipes.recipe import DataConfig, Recipe
from fullrank.training.config import OptimizerConfig, ScheduleConfig
from fullrank.views.config import AffineConfig, CropConfig, JitterConfig, NoiseConfig, ViewConfig

# With crops, the representation scores below raw pixels at few labels. The views move and deform the strokes a little
# instead.
VIEW = ViewConfig(
    size=8,
    crop=CropConfig(probability=0.0),
    affine=AffineConfig(
        probability=1.0, degrees=15.0, translate=(0.125, 0.125), scale=(0.85, 1.15), shear=(10.0, 10.0)
    ),
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
    views=(VIEW,),
    backbone=BackboneConfig(name="resnet18", arguments=FOUR_BLOCKS, stem="small"),
    projector=ProjectorConfig(widths=(512, 512)),
    optimizer=OptimizerConfig(name="adamw", lr=5e-3, weight_decay=1e-4),
    schedule=ScheduleConfig(warmup=2.0),
    epochs=40,
    batch_size=128,
    log_every=1,
)

ENTRIES = (entry(DIGITS, "fullrank's own, for a minute on two CPU cores"),)
