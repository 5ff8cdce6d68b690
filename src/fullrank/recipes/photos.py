"""A recipe for any collection of images, chosen by their number and sizes."""

from dataclasses import replace

from fullrank.errors import UserError
from fullrank.images import DatasetInfo
from fullrank.methods.backbones import is_built_for_one_size
from fullrank.methods.config import BackboneConfig, ProjectorConfig
from fullrank.recipes.recipe import DataConfig, Recipe, flatten, to_dict
from fullrank.recipes.rules import OPTIMIZERS, VISION_TRANSFORMER, WARMUPS, scaled, stem_for
from fullrank.training.config import ScheduleConfig
from fullrank.views.config import BlurConfig, JitterConfig, ViewConfig

IMAGES_GPU, IMAGES_CPU = 20_000_000, 500_000  # epochs × images per epoch
# The fields that the recipe chooses, for the user.
CHOSEN = ["views.0.size", "backbone.name", "batch_size", "epochs", "optimizer.name", "optimizer.lr", "schedule.warmup"]
NARROW = {"channels": [32, 64, 96, 128], "layers": [1, 1, 1, 1]}  # a ResNet for a CPU


def photos_recipe(
    source: str, dataset_info: DatasetInfo, *, gpu: bool, size: int | None = None, backbone: str | None = None
) -> Recipe:
    """Return a recipe for these images. `resolve` computes what follows from other values of its fields.

    | field | rule |
    |---|---|
    | size of views | 32 px for images of at most 48 px, 64 up to 112, else 96 (CPU) or 224 (GPU) |
    | backbone | resnet18, with fewer channels and layers on a CPU; on a GPU resnet50 for views of at least 224 px |
    | stem | small for views of at most 64 px, else standard |
    | batch size | 256, halved until an epoch has at least 4 batches, but at least 16 |
    | epochs | 20 million images in total (GPU) or half a million (CPU), between 20 and 800 epochs |
    | optimizer | AdamW for this batch, `OPTIMIZERS`; for a vision transformer `VISION_TRANSFORMER` |
    | warm-up | a twentieth of the epochs (a vision transformer: a tenth), at least one epoch, at most a fifth of them |
    | views | crop, flip, jitter, grayscale and, from 64 px on, blur |
    | invariance weight | that of `balanced_weights`: 4N/D for batches of N images and D dimensions |

    Args:
        source: source of the images.
        dataset_info: number, channels and sizes of the images.
        gpu: whether the training uses a GPU.
        size: side of the views in pixels; None: by the rule.
        backbone: a timm model, with timm's own arguments; None: by the rule.

    Raises:
        UserError: there are fewer than 32 images.
    """
    n, side = dataset_info.count, min(dataset_info.median)
    if n < 32:
        remedy = "to try fullrank, run `fullrank pretrain digits`"
        raise UserError(f"{source} has {n} training images, expected at least 32; {remedy}")
    size = size or (32 if side <= 48 else 64 if side <= 112 else 224 if gpu else 96)
    batch_size = next((N for N in (256, 128, 64, 32) if n >= 4 * N), 16)
    epochs = min(max(round((IMAGES_GPU if gpu else IMAGES_CPU) / n), 20), 800)
    network = backbone or ("resnet50" if gpu and size >= 224 else "resnet18")
    transformer = is_built_for_one_size(network)
    optimizer = VISION_TRANSFORMER if transformer else OPTIMIZERS["adamw"]
    arguments = {} if gpu or backbone else NARROW
    return Recipe(
        name="photos",
        data=DataConfig(source=source, channels=dataset_info.channels),
        views=(build_view(size, dataset_info.channels),),
        backbone=BackboneConfig(name=network, stem=stem_for(network, size), arguments=arguments),
        projector=ProjectorConfig(widths=(2048, 2048, 1024) if gpu else (512, 256)),
        optimizer=replace(optimizer, lr=scaled(optimizer, batch_size / 256)),
        schedule=ScheduleConfig(warmup=min(max((0.1 if transformer else 0.05) * epochs, 1.0), epochs / WARMUPS)),
        epochs=epochs,
        batch_size=batch_size,
        hyper={"invariance": "balanced"},
    )


def explain_photos_recipe(recipe: Recipe, dataset_info: DatasetInfo) -> list[str]:
    """Return what was chosen for the images, as the flags that change it; the values are those of `recipe`."""
    (w, h), values = dataset_info.median, flatten(to_dict(recipe))
    shown = {name: round(x, 6) if isinstance(x := values[name], float) else x for name in CHOSEN}
    flags = (f"--{name.replace('_', '-')} {x}" for name, x in shown.items())
    built = "narrow and shallow for a CPU, " if recipe.backbone.arguments == NARROW else ""
    images = f"{dataset_info.count:,} training images, {w}×{h} px, {recipe.data.channels} channels"
    return [f"a general recipe for {images}; the flags that change it:", f"  {built}{' '.join(flags)}"]


def build_view(size: int, channels: int) -> ViewConfig:
    """Return the distribution of views, without changes of colour if the images are not RGB."""
    colour = channels == 3
    jitter = JitterConfig(brightness=0.4, contrast=0.4, saturation=0.4 if colour else 0.0, hue=0.1 if colour else 0.0)
    blur = BlurConfig(probability=0.5 if size >= 64 else 0.0, sigma=(0.1, 2.0 * max(size, 64) / 224))
    return ViewConfig(size=size, jitter=jitter, grayscale=0.2 if colour else 0.0, blur=blur)
