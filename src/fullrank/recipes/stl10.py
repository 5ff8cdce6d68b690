"""STL-10: views, projector and loss weight of the FroSSL authors' public code, which their paper does not state."""

from fullrank.config import BackboneConfig, BlurConfig, JitterConfig, OptimizerConfig, ProjectorConfig, ScheduleConfig, ViewConfig
from fullrank.recipes.recipe import DataConfig, Recipe

# Source: the authors' fork of solo-learn: symmetric weak views at 96 px, projector 2048-1024, invariance weight 1.4, standard stem.
# Epochs, learning rate and weight decay are those of the paper, Sec. 6; the fork's file has 0.1 and 1e-4.
# The authors train on 105,000 images, most of them unlabelled. This source has only the 13,000 labelled images. To train on all,
# give --data a folder with the unlabelled images next to the class folders of its train split.
STL10 = Recipe(
    name="stl10",
    data=DataConfig(source="hf:tanganke/stl10"),
    views=(
        ViewConfig(size=96, jitter=JitterConfig(brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1), blur=BlurConfig(probability=0.5)),
    ),
    backbone=BackboneConfig(name="resnet18"),
    projector=ProjectorConfig(widths=(2048, 1024)),
    optimizer=OptimizerConfig(name="lars", lr=0.3, weight_decay=1e-6),
    schedule=ScheduleConfig(warmup=10.0),
    hyper={"invariance": 1.4},
    epochs=500,
    batch_size=256,
)
