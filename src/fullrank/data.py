"""The images of a run: opened, split, loaded into memory or streamed, with held-out images for the spectrum evaluations."""

import os
import time
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
from fullrank.methods import Method
from fullrank.monitoring.evaluation_plan import EvaluationPlan, count_cost, plan_evaluations
from fullrank.recipes import Recipe, build_preprocess, check_num_images
from fullrank.views import MultiViewTransform, preview
from fullrank.views.augmentation_params import mix

Batch = tuple[list[Tensor], Tensor]
"""The views (V_k, n, C, S_k, S_k) of each size, and the labels (n,)."""

MEMORY_BUDGET = 4 * 2**30  # bytes of uint8 images that storage 'auto' loads into memory
MEMORY_SIDE = 128  # … and their largest side: larger images are decoded faster at reduced scale, and cropped from the original
PREVIEWED = 8  # images in views.png
HELD_OUT_BUDGET = 2**30  # bytes of uint8 images that are held out for the spectrum evaluations, at most
MIN_IMAGES_FOR_WORKERS = 2048  # fewer images are decoded without worker processes
STATISTICS_SAMPLES = 256  # images for the channel statistics, if images are streamed
REMOTE_HELD_OUT = 5120  # images of a remote stream for the spectrum evaluations
DROPOUT = 1  # a third word beside seed and step, so that dropout uses other random numbers than the views


@dataclass(frozen=True)
class TrainingData:
    """The images that a run trains on, and the held-out images of its spectrum evaluations."""

    train: MemoryImages | Images | StreamedImages
    num_images: int
    """Number of images in an epoch."""
    sample: MemoryImages | Images
    """Training images with random access: all of them, or the first images of a stream."""
    classes: tuple[str, ...]
    plan: EvaluationPlan
    held_out: Tensor
    """Held-out images, uint8 (m, C, S, S)."""
    held_out_labels: Tensor
    """Their labels, int64 (m,), −1 for an image without a label."""
    decode_errors: DecodeErrors

    @property
    def K(self) -> int:
        """Number of classes of the online probe: the named classes, or all up to the greatest label."""
        greatest = max(int(torch.as_tensor(labels).max()) for labels in (self.sample.labels, self.held_out_labels))
        return max(len(self.classes), greatest + 1, 2)


def open_data(recipe: Recipe, method: Method, *, notify: Callable[[str], Any]) -> tuple[Recipe, TrainingData]:
    """Open and load the images of a checked recipe.

    Args:
        recipe: where the images are, and how they are read.
        method: its cost decides the number of held-out images.
        notify: called with each line for the user.

    Returns:
        The recipe with the channel statistics of the images, and the images.

    Raises:
        UserError: the source cannot be read, or has fewer images than a batch.
    """
    spec = recipe.data
    decode_errors = DecodeErrors(max_error_fraction=spec.max_error_fraction)
    if spec.storage == "streaming":
        train, sample, test, statement = _open_remote(recipe)
        classes, num_images = sample.classes, spec.num_images
        notify(statement)
    else:
        splits = train_and_test(spec.source, train=spec.train, test=spec.test, seed=recipe.seed)
        check_num_images(recipe, len(splits.train))
        notify(splits.statement)
        train, test, classes = _load_or_stream(recipe, splits.train, decode_errors, notify), splits.test, splits.train.classes
        sample = train if isinstance(train, MemoryImages) else splits.train
        num_images = len(train)
    check_num_images(recipe, num_images)  # without the images that cannot be read
    if not spec.mean or not spec.std:
        mean, std = channel_statistics(sample, channels=spec.channels, sample=STATISTICS_SAMPLES, decode_errors=decode_errors)
        recipe = replace(recipe, data=replace(spec, mean=mean, std=std))
    plan = plan_evaluations(
        count_cost(method, recipe),
        steps=num_images // recipe.batch_size * recipe.epochs,
        available=min(len(test), HELD_OUT_BUDGET // (spec.channels * build_preprocess(recipe).size ** 2)),
        samples=min(recipe.spectrum.samples, len(test)),
        every=recipe.spectrum.every,
    )
    held_out, labels = _load_held_out(recipe, test, plan.samples, decode_errors)
    return recipe, TrainingData(train, num_images, sample, classes, plan, held_out, labels, decode_errors)


def _open_remote(recipe: Recipe) -> tuple[StreamedImages, Images, Images, str]:
    """Open a source without random access: the stream, a sample of it, images of the test split, and a line for the user.

    Raises:
        UserError: the recipe does not give the number of images in an epoch.
    """
    spec = recipe.data
    if spec.num_images < 1:
        raise UserError(f"{spec.source} has no known length; give the images of an epoch with --data.num_images (50000 for CIFAR-10)")
    train, test = spec.train or "train", spec.test or "test"
    stream = open_stream(spec.source, split=train)
    held_out = open_stream(spec.source, split=test).take(recipe.spectrum.samples or REMOTE_HELD_OUT, seed=recipe.seed)
    statement = (
        f"train with {spec.source} [{train}] as it arrives ({spec.num_images} images an epoch), "
        f"evaluate the spectrum on {len(held_out)} images of [{test}]; "
        "a run that resumes begins a new epoch of the stream"
    )
    return stream, stream.take(STATISTICS_SAMPLES, seed=recipe.seed), held_out, statement


def _load_or_stream(recipe: Recipe, images: Images, decode_errors: DecodeErrors, notify: Callable[[str], Any]) -> MemoryImages | Images:
    """Load the images into memory, or return them as they are to be streamed; the recipe or their size decides."""
    spec = recipe.data
    info = dataset_info(images)
    small = info.uniform and max(info.maximum) <= MEMORY_SIDE and fits(info, MEMORY_BUDGET)
    if spec.storage == "disk" or (spec.storage == "auto" and not (small or (spec.size and fits(info, MEMORY_BUDGET, size=spec.size)))):
        (w, h), (W, H) = info.minimum, info.maximum
        notify(f"images are streamed: {info.count:,} of {w}×{h} to {W}×{H} px (--data.storage memory loads them into memory)")
        return images
    try:
        return load_images(images, channels=spec.channels, size=spec.size or None, decode_errors=decode_errors)
    except UserError as error:
        if spec.storage == "memory" or "several sizes" not in str(error):
            raise
        notify("images are streamed: they have several sizes (--data.size S --data.storage memory loads them at S×S)")
        return images


def _load_held_out(recipe: Recipe, test: Images, samples: int, decode_errors: DecodeErrors) -> tuple[Tensor, Tensor]:
    """Return pixels and labels of `samples` test images, or of all if there are fewer, chosen by the seed."""
    chosen = torch.randperm(len(test), generator=torch.Generator().manual_seed(recipe.seed))[:samples].sort().values
    workers = num_decoders(recipe.data.workers) if len(chosen) >= MIN_IMAGES_FOR_WORKERS else 0
    batches = list(iterate_batches(test.subset(chosen.numpy()), build_preprocess(recipe), workers=workers, decode_errors=decode_errors))
    if not batches:
        raise UserError(f"none of the {len(chosen)} held-out images of {test.source} can be read, expected at least one; repair them")
    return torch.cat([batch.pixels for batch in batches]), torch.cat([batch.labels for batch in batches])


def load_batches(
    recipe: Recipe, views: MultiViewTransform, data: TrainingData, device: torch.device, *, start: int, stop: int
) -> Iterator[Batch]:
    """Return an iterator over this process's views and labels of steps `start` to `stop`, from memory or from the stream."""
    return dataloader(
        data.train,
        views,
        seed=recipe.seed,
        batch_size=recipe.batch_size,
        start=start,
        stop=stop,
        device=device,
        workers=num_decoders(recipe.data.workers),
        rank=rank(),
        world_size=world_size(),
        decode_errors=data.decode_errors,
    )


class SeededBatches:
    """Iterates over batches. Seeds torch's global generator for each step and counts the seconds spent waiting for batches.

    With the seed, a network's dropout is a function of (seed, step, rank).

    Args:
        batches: the batches, from step `start` on.
        seed: of the run.
        start: number of steps already taken.

    >>> batches = SeededBatches(iter([([], torch.zeros(0))] * 3), seed=0, start=0)
    >>> len(list(batches)), batches.wait_seconds > 0
    (3, True)
    """

    def __init__(self, batches: Iterator[Batch], *, seed: int, start: int) -> None:
        self.wait_seconds = 0.0
        self._batches, self._seed, self._step = batches, seed, start

    def __iter__(self) -> "SeededBatches":
        return self

    def __next__(self) -> Batch:
        """Return the next batch."""
        started = time.perf_counter()
        batch = next(self._batches)
        torch.manual_seed(mix(self._seed, self._step, DROPOUT, *((rank(),) if rank() else ())))
        self._step += 1
        self.wait_seconds += time.perf_counter() - started
        return batch


def num_decoders(workers: int) -> int:
    """Return the number of decoding processes: `workers`, or, if negative, one per core of this trainer except its own."""
    return workers if workers >= 0 else max((os.cpu_count() or 1) // local_world_size() - 1, 1)


def write_preview(path: Path, recipe: Recipe, views: MultiViewTransform, data: TrainingData) -> None:
    """Write a grid of a few training images, each with its views, as PNG."""
    indices = batch_indices(recipe.seed, 0, min(PREVIEWED, len(data.sample)), len(data.sample))
    if isinstance(data.sample, MemoryImages):
        pictures = data.sample.pixels[indices]
    else:
        pictures = []
        for index in indices.tolist():
            with suppress(ImageDecodeError):  # the training counts it
                pictures.append(decode(data.sample.open(index), recipe.data.channels, name=data.sample.name(index)))
    preview(pictures, views, seed=recipe.seed).save(path, "PNG")
