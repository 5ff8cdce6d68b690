"""The images of a run: read, split, held in memory or streamed, with some held out for the watch."""

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fullrank.distributed import rank, share, world_size
from fullrank.errors import UserError
from fullrank.images import (
    BadImage,
    Images,
    MemoryImages,
    Preprocess,
    Skipped,
    batch_indices,
    channel_statistics,
    decode,
    iterate,
    load,
    stream_batches,
    survey,
    train_and_test,
)
from fullrank.recipes import Recipe, check, preprocess_of
from fullrank.training import memory_batches
from fullrank.views import Views, preview

MEMORY_BUDGET = 4 * 2**30       # bytes of uint8 images that 'auto' holds in memory
PREVIEWED = 8                   # images in views.png
MEMORY_SIDE = 128               # … and their largest side: beyond, decoding at reduced scale and cropping from the original win


@dataclass(frozen=True)
class TrainingData:
    """What a run trains on and is watched with."""

    train: MemoryImages | Images
    held_out: Tensor
    """uint8 (m, C, S, S)."""
    held_out_labels: Tensor
    """(m,) int64, −1 where there is none."""
    classes: tuple[str, ...]
    statement: str
    """Which images are trained on and which are held out, in a sentence."""
    skipped: Skipped

    @property
    def images(self) -> int:
        """How many images are trained on."""
        return len(self.train)


def prepare(recipe: Recipe, *, say: Callable[[str], Any]) -> tuple[Recipe, TrainingData]:
    """Open the recipe's images; return the recipe with the channel statistics filled in, and the data.

    Raises:
        UserError: whatever is wrong with the source, or fewer images than a batch.
    """
    spec = recipe.data
    skipped = Skipped(tolerate=spec.tolerate)
    splits = train_and_test(spec.source, train=spec.train, test=spec.test, seed=recipe.seed)
    say(splits.statement)
    check(recipe, len(splits.train))
    train = _hold(recipe, splits.train, skipped, say)
    check(recipe, len(train))
    if not spec.mean or not spec.std:
        mean, std = channel_statistics(train, channels=spec.channels)
        recipe = replace(recipe, data=replace(spec, mean=mean, std=std))
    held_out, labels = _held_out(recipe, splits.test, skipped)
    return recipe, TrainingData(train, held_out, labels, splits.train.classes, splits.statement, skipped)


def _hold(recipe: Recipe, images: Images, skipped: Skipped, say: Callable[[str], Any]) -> MemoryImages | Images:
    """Load the images into memory, or leave them to be streamed, as the recipe or their size says."""
    spec = recipe.data
    found = survey(images)
    fits = found.uniform and max(found.maximum) <= MEMORY_SIDE and found.bytes_in_memory <= MEMORY_BUDGET
    if spec.keep == "stream" or (spec.keep == "auto" and not (fits or spec.size)):
        say(f"images are streamed: {found.count:,} of {_side(found.minimum)} to {_side(found.maximum)} px (--data.keep memory holds them)")
        return images
    try:
        return load(images, channels=spec.channels, size=spec.size or None, skipped=skipped)
    except UserError:
        if spec.keep == "memory":
            raise
        say("images are streamed: they are not all of one size (--data.size S --data.keep memory holds them at S×S)")
        return images


def _side(size: tuple[int, int]) -> str:
    return f"{size[0]}×{size[1]}"


def _held_out(recipe: Recipe, test: Images, skipped: Skipped) -> tuple[Tensor, Tensor]:
    """Return pixels and labels of the images for the watch: ten for each embedding dimension, or all there are, chosen by the seed."""
    wanted = recipe.watch.samples or 10 * max(recipe.projector.widths[-1:] or (512,))
    chosen = torch.randperm(len(test), generator=torch.Generator().manual_seed(recipe.seed))[:wanted].sort().values
    batches = list(iterate(test.subset(chosen.numpy()), preprocess_of(recipe), batch=256, skipped=skipped))
    return torch.cat([batch.pixels for batch in batches]), torch.cat([batch.labels for batch in batches])


def batches_of(
    recipe: Recipe, views: Views, data: TrainingData, device: torch.device, *, start: int, stop: int
) -> Iterator[tuple[list[Tensor], Tensor]]:
    """Yield (views, labels) of this process for steps `start` to `stop`, from memory or from the stream."""
    if isinstance(data.train, MemoryImages):
        images = data.train.to(device)
        yield from memory_batches(
            images, views, seed=recipe.seed, batch=recipe.batch, start=start, stop=stop, rank=rank(), world=world_size()
        )
        return
    crops = stream_batches(
        data.train,
        views,
        seed=recipe.seed,
        batch=recipe.batch,
        start_step=start,
        steps=stop - start,
        workers=decoders(recipe.data.workers),
        rank=rank(),
        world=world_size(),
        skipped=data.skipped,
    )
    rows = share(recipe.batch)
    for step, (uint8, labels) in enumerate(crops, start=start):
        draws = views.rows(views.draw(recipe.seed, step, recipe.batch), rows)
        yield views.finish([crop.to(device, non_blocking=True) for crop in uint8], draws), labels.to(device)


def decoders(asked: int) -> int:
    """Return the number of decoding processes: as asked, or one a core, less the trainer's."""
    return asked if asked >= 0 else max((os.cpu_count() or 1) - 1, 1)


def write_preview(path: Path, recipe: Recipe, views: Views, data: TrainingData) -> None:
    """Write a grid of the first step's images, each with its views."""
    indices = batch_indices(recipe.seed, 0, recipe.batch, data.images)[:PREVIEWED]
    if isinstance(data.train, MemoryImages):
        preview(data.train.pixels[indices], views, seed=recipe.seed, path=path)
        return
    pictures = []
    for index in indices.tolist():
        with suppress(BadImage):      # the stream itself will count it
            pictures.append(decode(data.train.open(index), recipe.data.channels, name=data.train.name(index)))
    preview(pictures, views, seed=recipe.seed, path=path)
