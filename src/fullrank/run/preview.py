"""views.png, a grid of images and their views: of a run, or of a recipe without training."""

from dataclasses import replace
from pathlib import Path

from rich.console import Console

from fullrank.files import atomic_write, check_suffix
from fullrank.images import MemoryImages, Preprocess, batch_indices, iterate_batches
from fullrank.recipes import Recipe, assemble, build_method, check, import_code, with_fields
from fullrank.recipes.forecast import forecast_run
from fullrank.run.data import TrainingData, open_data
from fullrank.run.terminal import stderr
from fullrank.views import MultiViewTransform
from fullrank.views.preview import preview as draw

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
        if recipe.data.storage == "auto" and not recipe.data.size:  # then it shows the same, and decodes few images
            recipe = with_fields(recipe, {"data.storage": "disk", "spectrum.samples": NUM_IMAGES})
        method = build_method(recipe)
        recipe, data = open_data(recipe, method, notify=notify)
        write_preview(draft, recipe, assemble(recipe, method).views, data)
    for line in forecast_run(recipe, method, data.num_images):
        notify(line)
    for name, reason in data.decoding.errors.reasons.items():
        notify(f"cannot be read: {name}: {reason}")
    return path


def write_preview(path: Path, recipe: Recipe, views: MultiViewTransform, data: TrainingData) -> None:
    """Write a grid of a few training images, each with its views, as PNG."""
    images = data.sample
    indices = batch_indices(recipe.seed, 0, min(NUM_IMAGES, len(images)), len(images))
    if isinstance(images, MemoryImages):
        pictures = images.pixels[indices]
    else:
        whole = Preprocess(recipe.data.channels, size=0, mean=(), std=(), bits=recipe.data.bits or 16)
        some, errors = images.subset(indices.numpy()), replace(data.decoding.errors, max_error_fraction=1.0)
        decoding = replace(data.decoding, workers=0, errors=errors)
        batches = iterate_batches(some, whole, batch_size=1, decoding=decoding)
        pictures = [batch.pixels[0].permute(1, 2, 0).numpy() for batch in batches]
    draw(pictures, views, seed=recipe.seed).save(path, "PNG")
