"""ImageNet with the paper's recipe."""

from fullrank.methods import Backbone, Projector
from fullrank.recipes.recipe import Data, Recipe
from fullrank.training import Optimizer, Schedule
from fullrank.views import Blur, Jitter, Solarize, View

JITTER = Jitter(brightness=0.4, contrast=0.4, saturation=0.2, hue=0.1)

# FroSSL's paper, Sec. 6: SGD 1e-2 with warm restarts every 15 epochs, batch 224, SimCLR's asymmetric pair of views.
IMAGENET = Recipe(
    name="imagenet",
    data=Data(source="hf:ILSVRC/imagenet-1k"),
    views=(
        View(count=1, size=224, jitter=JITTER, blur=Blur(probability=1.0)),
        View(count=1, size=224, jitter=JITTER, blur=Blur(probability=0.1), solarize=Solarize(probability=0.2)),
    ),
    backbone=Backbone(name="resnet18"),
    projector=Projector(widths=(2048, 2048, 1024)),
    optimizer=Optimizer(name="sgd", lr=1e-2, weight_decay=5e-4),
    schedule=Schedule(name="restarts", warmup=0.0, period=15.0),
    epochs=100,
    batch=224,
)
