"""What a recipe takes over from the MODEL whose weights it starts with, and the rules of continued pretraining."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from fullrank.methods.config import BackboneConfig
from fullrank.recipes.recipe import Recipe
from fullrank.recipes.rules import WARMUPS_WITH_INIT

# Factor of the learning rate with `init`. Our choice: at the rate for random weights, a run would soon lose what the
# weights hold.
RATE = 0.1
# Largest side of the views that the general recipe takes from a model. Our choice: DINOv2's ViT-S has 518 px, and a
# step with such views costs more than five times as much as with 224 px.
LARGEST_SIZE = 224
# Numbers of channels between which images are converted; images of any other number stay as they are.
CONVERTED = (1, 3)


@dataclass(frozen=True, kw_only=True)
class Start:
    """A MODEL whose weights a run starts with.

    Attributes:
        model: The MODEL, with an absolute path and with the step of a run.
        hash: SHA-256 of the weights of its backbone.
        backbone: Its network, without a size of the images.
        size: Side of its images in pixels.
        note: What is known about weights of another library.
    """

    model: str
    hash: str
    backbone: BackboneConfig
    channels: int
    size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    note: str = ""


def start_channels(channels: int, start: Start, given: int | None = None) -> int:
    """Return the number of channels of the images of a run.

    Args:
        channels: channels of the images, or those of the recipe.
        start: the model; its channels are taken if the images can be converted to them, between gray and RGB.
        given: the number that the user gave.
    """
    if given is not None:
        return given
    return start.channels if channels in CONVERTED and start.channels in CONVERTED else channels


def start_size(start: Start) -> int:
    """Return the side of the views of the general recipe: that of the images of the model, at most `LARGEST_SIZE`.

    >>> sizes = {"hash": "", "backbone": BackboneConfig(), "channels": 3, "mean": (), "std": ()}
    >>> [start_size(Start(model="m", size=size, **sizes)) for size in (160, 518)]
    [160, 224]
    """
    return min(start.size, LARGEST_SIZE)


def with_start(recipe: Recipe, start: Start, *, channels: int | None = None) -> Recipe:
    """Return the recipe that starts with the weights of a MODEL.

    | field | value |
    |---|---|
    | backbone | that of the model |
    | channels | those of the model, if the images are gray or RGB; else those of the images |
    | mean, std | those of the model; their means if a model for RGB gets gray images; computed from the images for
    other channels |
    | learning rate | a tenth |
    | warm-up | at most a fortieth of the epochs |

    A recipe that has an `init` already keeps its learning rate and its warm-up.

    Args:
        recipe: the recipe, with the choices of the user but for single flags.
        start: the model.
        channels: the number of channels that the user gave.

    >>> of_imagenet = {"channels": 3, "size": 224, "mean": (), "std": ()}
    >>> start = Start(model="timm:resnet50", hash="", backbone=BackboneConfig(name="resnet50"), **of_imagenet)
    >>> continued = with_start(Recipe(epochs=100), start)
    >>> continued.backbone.name, continued.optimizer.lr, continued.schedule.warmup
    ('resnet50', 0.03, 2.5)
    """
    data = replace(recipe.data, channels=start_channels(recipe.data.channels, start, channels))
    mean, std = normalization_for(start, data.channels)
    if not recipe.init:
        warmup = min(recipe.schedule.warmup, recipe.epochs / WARMUPS_WITH_INIT)
        lr = float(f"{recipe.optimizer.lr * RATE:.6g}")  # 0.03, not 0.030000000000000002
        optimizer, schedule = replace(recipe.optimizer, lr=lr), replace(recipe.schedule, warmup=warmup)
        recipe = replace(recipe, optimizer=optimizer, schedule=schedule)
    data = replace(data, mean=mean, std=std)
    return replace(recipe, init=start.model, init_hash=start.hash, backbone=start.backbone, data=data)


def normalization_for(start: Start, channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the mean and the standard deviation of each channel; empty if they are computed from the images."""
    if channels == start.channels:
        return start.mean, start.std
    if channels == 1 and start.mean:
        return (sum(start.mean) / start.channels,), (sum(start.std) / start.channels,)
    return (), ()


def explain_start(recipe: Recipe, start: Start) -> Iterator[str]:
    """Yield lines about the final recipe of a run that starts with the weights of a MODEL."""
    if start.note:
        yield start.note
    data, size = recipe.data, max(view.size for view in recipe.views)
    adapted = "" if data.channels == start.channels else f" instead of its {start.channels}"
    sizes = "" if size == start.size else f", views of {size} px (--views.0.size), its images have {start.size}"
    yield f"the backbone starts with the weights of {start.model}: {data.channels} channels{adapted}{sizes}"
    rate, warmup = f"{recipe.optimizer.lr:.3g}", f"{recipe.schedule.warmup:.3g}"
    yield f"learning rate {rate}, warm-up over {warmup} epochs (--optimizer.lr, --schedule.warmup)"
