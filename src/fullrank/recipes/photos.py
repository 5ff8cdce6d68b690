"""A recipe for any collection of images, chosen by their number and sizes."""

from fullrank.errors import UserError
from fullrank.images import DatasetInfo
from fullrank.methods import BackboneConfig, ProjectorConfig
from fullrank.recipes.recipe import DataConfig, Recipe
from fullrank.training import OptimizerConfig, ScheduleConfig
from fullrank.views import BlurConfig, JitterConfig, ViewConfig

IMAGES_GPU, IMAGES_CPU = 20_000_000, 500_000  # epochs × images per epoch


def photos_recipe(source: str, dataset_info: DatasetInfo, *, gpu: bool) -> tuple[Recipe, list[str]]:
    """Return a recipe for these images, and one line for each choice with the flag that changes it.

    | choice | rule |
    |---|---|
    | size of views | 32 px for images of at most 48 px, 64 up to 112, else 96 (CPU) or 224 (GPU) |
    | backbone | resnet18; the small stem up to 64 px; fewer channels and layers on a CPU; resnet50 at 224 px |
    | batch size | 256, halved until an epoch has at least 4 batches, but at least 16 |
    | epochs | 20 million images in total (GPU) or half a million (CPU), between 20 and 800 epochs |
    | views | crop, flip, jitter, grayscale and, from 64 px on, blur |

    Raises:
        UserError: there are fewer than 32 images.
    """
    n, side = dataset_info.count, min(dataset_info.median)
    if n < 32:
        raise UserError(f"{source} has {n} images, expected at least 32 for training; to try fullrank, run `fullrank pretrain digits`")
    size = 32 if side <= 48 else 64 if side <= 112 else 224 if gpu else 96
    batch_size = 256
    while batch_size > 16 and n < 4 * batch_size:
        batch_size //= 2
    epochs = min(max(round((IMAGES_GPU if gpu else IMAGES_CPU) / n), 20), 800)
    small = size <= 64
    name = "resnet50" if size == 224 else "resnet18"
    arguments = {} if gpu else {"channels": [32, 64, 96, 128], "layers": [1, 1, 1, 1]}
    recipe = Recipe(
        name="photos",
        data=DataConfig(source=source, channels=dataset_info.channels),
        views=(build_view(size, dataset_info.channels),),
        backbone=BackboneConfig(name=name, arguments=arguments, stem="small" if small else "standard"),
        projector=ProjectorConfig(widths=(2048, 2048, 1024) if gpu else (512, 256)),
        optimizer=OptimizerConfig(name="adamw", lr=2e-3 * (batch_size / 256) ** 0.5, weight_decay=1e-4),
        schedule=ScheduleConfig(warmup=max(0.05 * epochs, 1.0)),
        epochs=epochs,
        batch_size=batch_size,
    )
    width = "" if gpu else ", narrow and shallow for a CPU"
    return recipe, [
        f"{n:,} images, {dataset_info.channels} channel{'s' * (dataset_info.channels > 1)}, "
        f"median {dataset_info.median[0]}×{dataset_info.median[1]} px",
        f"views of {size} px (--views.0.size)",
        f"backbone {name}{width}, stem {recipe.backbone.stem} (--backbone.name, --backbone.stem)",
        f"batch size {batch_size} (--batch_size), {epochs} epochs (--epochs), AdamW at {recipe.optimizer.lr:.2g} (--optimizer.lr)",
    ]


def build_view(size: int, channels: int) -> ViewConfig:
    """Return the distribution of views, without changes of colour if the images are not RGB."""
    colour = channels == 3
    jitter = JitterConfig(brightness=0.4, contrast=0.4, saturation=0.4 if colour else 0.0, hue=0.1 if colour else 0.0)
    blur = BlurConfig(probability=0.5 if size >= 64 else 0.0, sigma=(0.1, 2.0 * max(size, 64) / 224))
    return ViewConfig(size=size, jitter=jitter, grayscale=0.2 if colour else 0.0, blur=blur)
