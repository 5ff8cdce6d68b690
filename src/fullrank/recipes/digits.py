"""scikit-learn's embedded digits, 8×8 grey: a whole run in a minute on two cores, without a download."""

from fullrank.methods import Backbone, Projector
from fullrank.training import Optimizer, Schedule
from fullrank.views import Affine, Crop, Jitter, Noise, View
from fullrank.recipes.recipe import Data, Recipe

# Crops alone lose to raw pixels with few labels: a digit is known by its strokes, so the views move and bend them a little instead.
VIEW = View(
    size=8,
    crop=Crop(probability=0.0),
    affine=Affine(probability=1.0, degrees=15.0, translate=(0.125, 0.125), scale=(0.85, 1.15), shear=(10.0, 10.0)),
    flip=0.0,
    jitter=Jitter(probability=0.0),
    grayscale=0.0,
    noise=Noise(probability=1.0, std=0.1),
)

DIGITS = Recipe(
    name="digits",
    data=Data(source="digits", channels=1),
    views=(VIEW,),
    backbone=Backbone(name="resnet18", arguments={"channels": [32, 64, 96, 128], "layers": [1, 1, 1, 1]}, stem="small"),
    projector=Projector(widths=(256, 128)),
    optimizer=Optimizer(name="adamw", lr=2e-3, weight_decay=1e-4),
    schedule=Schedule(warmup=4.0),
    epochs=40,
    batch=256,
    log_every=1,
)
