"""The images of a run: read, split, held in memory or streamed, with some held out for the watch."""

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fullrank.distributed import local_world_size, rank, world_size
from fullrank.errors import UserError
from fullrank.images import (
    DecodeErrors,
    ImageDecodeError,
    Images,
    MemoryImages,
    StreamedImages,
    batch_indices,
    channel_statistics,
    dataloader,
    dataset_info,
    decode,
    fits,
    iterate_batches,
    load_images,
    open_stream,
    train_and_test,
)
from fullrank.monitoring.evaluation_plan import Plan, plan, work_of
from fullrank.recipes import Assembly, Recipe, build_method, build_preprocess, check, dry_run
from fullrank.recipes.assemble import build_transform
from fullrank.training.memory import micro_batch_note
from fullrank.views import MultiViewTransform, preview

MEMORY_BUDGET = 4 * 2**30  # bytes of uint8 images that 'auto' holds in memory
MEMORY_SIDE = 128  # … and their largest side: beyond, decoding at reduced scale and cropping from the original win
PREVIEWED = 8  # images in views.png
STATISTICS_SAMPLE = 256  # images of a stream for the channel statistics
HELD_OUT_BUDGET = 2**30  # bytes of uint8 images that are held out for the spectrum watch, at most
WORTH_WORKERS = 2048  # images whose decoding pays for starting processes
REMOTE_SAMPLE = 256  # images of a remote stream for the channel statistics
REMOTE_WATCHED = 5120  # … and for the spectrum watch


@dataclass(frozen=True)
class TrainingData:
    """What a run trains on and is watched with."""

    train: MemoryImages | Images | StreamedImages
    num_images: int
    """How many images are an epoch."""
    sample: MemoryImages | Images
    """Training images with random access: all of them, or the first that arrived."""
    plan: Plan
    """Of the spectrum watch."""
    held_out: Tensor
    """uint8 (m, C, S, S)."""
    held_out_labels: Tensor
    """(m,) int64, −1 where there is none."""
    classes: tuple[str, ...]
    decode_errors: DecodeErrors

    @property
    def K(self) -> int:
        """How many classes the probe tells apart: those that have a name, or all up to the greatest label."""
        greatest = max(int(torch.as_tensor(labels).max()) for labels in (self.sample.labels, self.held_out_labels))
        return max(len(self.classes), greatest + 1, 2)


def prepare(recipe: Recipe, *, say: Callable[[str], Any]) -> tuple[Recipe, Assembly, TrainingData]:
    """Open the recipe's images and build its parts; return the recipe with the channel statistics filled in, the parts, and the data.

    Raises:
        UserError: whatever is wrong with the source or the recipe, or fewer images than a batch.
    """
    check(recipe)
    method = build_method(recipe)  # before any image is read: a misspelt backbone is answered at once
    dry_run(method, recipe)
    if note := micro_batch_note(method, recipe.batch // world_size(), recipe.machine.micro_batch):
        say(note)
    spec = recipe.data
    decode_errors = DecodeErrors(max_error_fraction=spec.max_error_fraction)
    splits = (
        _arriving(recipe)
        if spec.storage == "streaming"
        else train_and_test(spec.source, train=spec.train, test=spec.test, seed=recipe.seed)
    )
    check(recipe, spec.num_images if isinstance(splits, Remote) else len(splits.train))
    say(splits.statement)
    train = splits.stream if isinstance(splits, Remote) else _hold(recipe, splits.train, decode_errors, say)
    images = spec.num_images if isinstance(train, StreamedImages) else len(train)
    check(recipe, images)  # again: those that cannot be read are left out
    sample = train if isinstance(train, MemoryImages) else splits.train
    if not spec.mean or not spec.std:
        mean, std = channel_statistics(sample, channels=spec.channels, sample=STATISTICS_SAMPLE, decode_errors=decode_errors)
        recipe = replace(recipe, data=replace(spec, mean=mean, std=std))
    planned = plan(
        work_of(method, recipe),
        steps=images // recipe.batch * recipe.epochs,
        most=min(len(splits.test), HELD_OUT_BUDGET // (spec.channels * build_preprocess(recipe).size ** 2)),
        samples=min(recipe.spectrum.samples, len(splits.test)),
        every=recipe.spectrum.every,
    )
    held_out, labels = _held_out(recipe, splits.test, planned.samples, decode_errors)
    assembly = Assembly(method, build_transform(recipe), build_preprocess(recipe))
    return recipe, assembly, TrainingData(train, images, sample, planned, held_out, labels, splits.train.classes, decode_errors)


@dataclass(frozen=True)
class Remote:
    """A stream to train on, with a few of its images kept for statistics and pictures, and some of another split to watch with."""

    stream: StreamedImages
    train: Images
    test: Images
    statement: str


def _arriving(recipe: Recipe) -> Remote:
    """Open a source without random access. Raises UserError where the recipe does not say how long an epoch is."""
    spec = recipe.data
    if spec.num_images < 1:
        raise UserError(f"{spec.source} arrives without a length; give the images of an epoch with --data.num_images (50000 for CIFAR-10)")
    train, test = spec.train or "train", spec.test or "test"
    stream = open_stream(spec.source, split=train)
    watched = open_stream(spec.source, split=test).take(recipe.spectrum.samples or REMOTE_WATCHED, seed=recipe.seed)
    statement = (
        f"train with {spec.source} [{train}] as it arrives ({spec.num_images} images an epoch), "
        f"evaluate the spectrum on {len(watched)} images of [{test}]; "
        "a run that resumes begins a new epoch of the stream"
    )
    return Remote(stream, stream.take(REMOTE_SAMPLE, seed=recipe.seed), watched, statement)


def _hold(recipe: Recipe, images: Images, decode_errors: DecodeErrors, say: Callable[[str], Any]) -> MemoryImages | Images:
    """Load the images into memory, or leave them to be streamed, as the recipe or their size says."""
    spec = recipe.data
    found = dataset_info(images)
    small = found.uniform and max(found.maximum) <= MEMORY_SIDE and fits(found, MEMORY_BUDGET)
    if spec.storage == "disk" or (spec.storage == "auto" and not (small or (spec.size and fits(found, MEMORY_BUDGET, size=spec.size)))):
        say(
            f"images are streamed: {found.count:,} of {_side(found.minimum)} to {_side(found.maximum)} px "
            "(--data.storage memory holds them)"
        )
        return images
    try:
        return load_images(images, channels=spec.channels, size=spec.size or None, decode_errors=decode_errors)
    except UserError as error:
        if spec.storage == "memory" or "several sizes" not in str(error):
            raise
        say("images are streamed: they are not all of one size (--data.size S --data.storage memory holds them at S×S)")
        return images


def _side(size: tuple[int, int]) -> str:
    return f"{size[0]}×{size[1]}"


def _held_out(recipe: Recipe, test: Images, wanted: int, decode_errors: DecodeErrors) -> tuple[Tensor, Tensor]:
    """Return pixels and labels of `wanted` test images, or of all there are, chosen by the seed."""
    chosen = torch.randperm(len(test), generator=torch.Generator().manual_seed(recipe.seed))[:wanted].sort().values
    workers = decoders(recipe.data.workers) if len(chosen) >= WORTH_WORKERS else 0
    images = test.subset(chosen.numpy())
    batches = list(iterate_batches(images, build_preprocess(recipe), workers=workers, decode_errors=decode_errors))
    if not batches:
        raise UserError(f"none of the {len(chosen)} held-out images of {test.source} can be read, expected some to watch; repair them")
    return torch.cat([batch.pixels for batch in batches]), torch.cat([batch.labels for batch in batches])


def batches_of(
    recipe: Recipe, views: MultiViewTransform, data: TrainingData, device: torch.device, *, start: int, stop: int
) -> Iterator[tuple[list[Tensor], Tensor]]:
    """Yield (views, labels) of this process for steps `start` to `stop`, from memory or from the stream."""
    return dataloader(
        data.train,
        views,
        seed=recipe.seed,
        batch_size=recipe.batch,
        start=start,
        stop=stop,
        device=device,
        workers=decoders(recipe.data.workers),
        rank=rank(),
        world_size=world_size(),
        decode_errors=data.decode_errors,
    )


def decoders(asked: int) -> int:
    """Return the number of decoding processes of this trainer: as asked, or one for each core that it has, less its own."""
    return asked if asked >= 0 else max((os.cpu_count() or 1) // local_world_size() - 1, 1)


def write_preview(path: Path, recipe: Recipe, views: MultiViewTransform, data: TrainingData) -> None:
    """Write a grid of a few training images, each with its views, as PNG."""
    indices = batch_indices(recipe.seed, 0, min(PREVIEWED, len(data.sample)), len(data.sample))
    if isinstance(data.sample, MemoryImages):
        pictures = data.sample.pixels[indices]
    else:
        pictures = []
        for index in indices.tolist():
            with suppress(ImageDecodeError):  # the stream itself will count it
                pictures.append(decode(data.sample.open(index), recipe.data.channels, name=data.sample.name(index)))
    preview(pictures, views, seed=recipe.seed).save(path, "PNG")
