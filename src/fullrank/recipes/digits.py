"""scikit-learn's embedded digits, 8×8 grey: a whole run in a minute on two cores, without a download."""

from fullrank.methods import BackboneConfig, ProjectorConfig
from fullrank.recipes.recipe import DataConfig, Recipe
from fullrank.training import OptimizerConfig, ScheduleConfig
from fullrank.views import AffineConfig, CropConfig, JitterConfig, NoiseConfig, ViewConfig

# Crops alone lose to raw pixels with few labels: a digit is known by its strokes, so the views move and bend them a little instead.
VIEW = ViewConfig(
    size=8,
    crop=CropConfig(probability=0.0),
    affine=AffineConfig(probability=1.0, degrees=15.0, translate=(0.125, 0.125), scale=(0.85, 1.15), shear=(10.0, 10.0)),
    flip=0.0,
    jitter=JitterConfig(probability=0.0),
    grayscale=0.0,
    noise=NoiseConfig(probability=1.0, std=0.1),
)

# Four residual blocks; the map stays 4×4 at the end (stride 2 once only, after the small stem), for at 1×1 the strokes are gone.
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
    batch=128,
    log_every=1,
)
