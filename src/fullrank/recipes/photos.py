"""A general recipe for any collection of images, chosen from their number and sizes."""

from fullrank.errors import UserError
from fullrank.images import Survey
from fullrank.methods import Backbone, Projector
from fullrank.recipes.recipe import Data, Recipe
from fullrank.training import Optimizer, Schedule
from fullrank.views import Blur, Jitter, View

IMAGES_GPU, IMAGES_CPU = 20_000_000, 500_000  # images passed in a whole run


def photos(source: str, survey: Survey, *, gpu: bool) -> tuple[Recipe, list[str]]:
    """Return a recipe for the surveyed images, and one line for each choice with the flag that changes it.

    | what | rule |
    |---|---|
    | side | 32 px for images of at most 48 px, 64 up to 112, else 96 (CPU) or 224 (GPU) |
    | backbone | resnet18; the small stem up to 64 px; narrow on a CPU; resnet50 at 224 px |
    | batch | 256, halved until there are at least 4 batches, 16 at the least |
    | epochs | what passes 20 million images (GPU) or half a million (CPU), between 20 and 800 |
    | views | crop, flip, jitter, grayscale and, from 64 px on, blur |

    Raises:
        UserError: fewer than 32 images.
    """
    n, side = survey.count, min(survey.median)
    if n < 32:
        raise UserError(f"{source} has {n} images, expected at least 32 to learn from; for a trial use `fullrank pretrain digits`")
    size = 32 if side <= 48 else 64 if side <= 112 else 224 if gpu else 96
    batch = 256
    while batch > 16 and n < 4 * batch:
        batch //= 2
    epochs = min(max(round((IMAGES_GPU if gpu else IMAGES_CPU) / n), 20), 800)
    small = size <= 64
    name = "resnet50" if size == 224 else "resnet18"
    arguments = {} if gpu else {"channels": [32, 64, 96, 128], "layers": [1, 1, 1, 1]}
    recipe = Recipe(
        name="photos",
        data=Data(source=source, channels=survey.channels),
        views=(view(size, survey.channels),),
        backbone=Backbone(name=name, arguments=arguments, stem="small" if small else "standard"),
        projector=Projector(widths=(2048, 2048, 1024) if gpu else (512, 256)),
        optimizer=Optimizer(name="adamw", lr=2e-3 * (batch / 256) ** 0.5, weight_decay=1e-4),
        schedule=Schedule(warmup=max(0.05 * epochs, 1.0)),
        epochs=epochs,
        batch=batch,
    )
    width = "" if gpu else ", narrow and shallow for a CPU"
    return recipe, [
        f"{n:,} images, {survey.channels} channel{'s' * (survey.channels > 1)}, median {survey.median[0]}×{survey.median[1]} px",
        f"views of {size} px (--views.0.size)",
        f"backbone {name}{width}, stem {recipe.backbone.stem} (--backbone.name, --backbone.stem)",
        f"batch {batch} (--batch), {epochs} epochs (--epochs), AdamW at {recipe.optimizer.lr:.2g} (--optimizer.lr)",
    ]


def view(size: int, channels: int) -> View:
    """Return the general view; without colours to shift where the images are not RGB."""
    colour = channels == 3
    jitter = Jitter(brightness=0.4, contrast=0.4, saturation=0.4 if colour else 0.0, hue=0.1 if colour else 0.0)
    blur = Blur(probability=0.5 if size >= 64 else 0.0, sigma=(0.1, 2.0 * max(size, 64) / 224))
    return View(size=size, jitter=jitter, grayscale=0.2 if colour else 0.0, blur=blur)
