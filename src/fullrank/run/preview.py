"""views.png, a grid of images and their views: of a run, or of a recipe without training."""

from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.console import Console

from fullrank.files import atomic_write, check_suffix
from fullrank.images import ImageDecodeError, MemoryImages, batch_indices, decode
from fullrank.recipes import Recipe, assemble, build_method, check, import_code
from fullrank.run.data import TrainingData, open_data
from fullrank.run.terminal import stderr
from fullrank.views import MultiViewTransform
from fullrank.views import preview as draw

NUM_IMAGES = 8


def preview(
    recipe: Recipe, out: Path | None = None, *, overwrite: bool = False, console: Console | None = None
) -> Path:
    """Write a grid of images and their views, without training, and return its path.

    Args:
        recipe: the recipe of the views.
        out: a PNG file; None: views.png in the working directory.
        overwrite: replace the file.
        console: where to print; None: standard error.

    Raises:
        UserError: a mistake that the user can fix, in one line.
    """
    path = out or Path("views.png")
    check_suffix(path, (".png",))
    notify = (console or stderr()).print
    recipe = import_code(recipe)
    check(recipe)
    with atomic_write(path, overwrite=overwrite) as draft:
        method = build_method(recipe)
        recipe, data = open_data(recipe, method, notify=notify)
        write_preview(draft, recipe, assemble(recipe, method).views, data)
    return path


def write_preview(path: Path, recipe: Recipe, views: MultiViewTransform, data: TrainingData) -> None:
    """Write a grid of a few training images, each with its views, as PNG."""
    images = data.sample
    indices = batch_indices(recipe.seed, 0, min(NUM_IMAGES, len(images)), len(images))
    if isinstance(images, MemoryImages):
        pictures = images.pixels[indices]
    else:
        pictures, how = [], dict[str, Any](channels=recipe.data.channels, bits=recipe.data.bits or 16)
        for k in indices.tolist():
            with suppress(ImageDecodeError):  # training counts the error
                pictures.append(decode(images.open(k), **how, name=images.name(k)))
    draw(pictures, views, seed=recipe.seed).save(path, "PNG")
