"""The images of a run: opened, split, in memory or on disk; those held out for spectrum evaluations; its batches."""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fullrank.distributed import local_world_size, rank, world_size
from fullrank.errors import Notify, UserError, silent
from fullrank.evaluation.task import why_not_scorable
from fullrank.images import DecodeErrors, Decoding, Images, StreamedImages, open_stream, train_and_test
from fullrank.images.dataloaders import Steps, dataloader
from fullrank.images.dataset_info import Fingerprint, channel_statistics, dataset_info, find_bit_depth, is_random
from fullrank.images.load import MemoryImages, MixedSizesError, load_images
from fullrank.methods import Method
from fullrank.methods.backbones import feature_dim
from fullrank.recipes import Recipe, build_preprocess, check_num_images
from fullrank.run.cost import SpectrumPlan, plan_evaluations
from fullrank.seeding import mix
from fullrank.spectrum.metrics import SAMPLES_PER_DIMENSION
from fullrank.views import MultiViewTransform

# The views (V_k, n, C, S_k, S_k) of each size, and the labels (n,).
Batch = tuple[list[Tensor], Tensor]

MEMORY_BUDGET = 4 * 2**30  # max. bytes of decoded images for storage 'auto' to use memory
# max. side in pixels for storage 'auto' to use memory; larger images are decoded from disk at reduced resolution
MEMORY_SIDE = 128
HELD_OUT_BUDGET = 2**30  # max. bytes of images held out for the spectrum evaluations
MIN_IMAGES_FOR_WORKERS = 2048  # fewer images are decoded without worker processes
STATISTICS_SAMPLES = 256  # number of images for the channel statistics, if the images are not in memory
STREAMING_HELD_OUT = 5120  # number of streamed images for the spectrum evaluations
DROPOUT_STREAM = 1  # extra hash input that separates dropout's seed from the seed of the views


@dataclass(frozen=True)
class TrainingData:
    """The images that a run trains on, and the held-out images of its spectrum evaluations.

    Attributes:
        num_images: Number of images per epoch.
        sample: Training images with random access: all of them, or the first images of a stream.
        held_out: Held-out images, resized and cropped for the backbone.
        full: Held-out and training images of the first and the last spectrum: ten per dimension, or all there are;
            none if `held_out` has as many.
        scored: The labelled images on which a probe is scored during training: the test images for the online probe at
            `probe.epochs`, or training and test images of `probe.labelled` for a linear probe; or none.
        pass_ends: `Steps.pass_ends` of this process.
    """

    train: MemoryImages | Images | StreamedImages
    num_images: int
    sample: MemoryImages | Images
    plan: SpectrumPlan
    held_out: MemoryImages
    decoding: Decoding
    scored: tuple[MemoryImages | Images, ...] = ()
    full: tuple[MemoryImages | Images, ...] = ()
    pass_ends: list[int] = field(default_factory=list)

    @property
    def num_classes(self) -> int:
        """Number of classes of the online probe: the named classes, or all classes up to the largest label."""
        largest = max(int(torch.as_tensor(labels).max()) for labels in (self.sample.labels, self.held_out.labels))
        return max(len(self.sample.classes), largest + 1, 2)

    @cached_property
    def fingerprint(self) -> Fingerprint | None:
        """What a checkpoint remembers of the training images; None for a stream."""
        return None if isinstance(self.train, StreamedImages) else Fingerprint.of(self.train)

    @property
    def stream(self) -> dict[str, Any] | None:
        """What decides the order of a stream, beside the seed; None for other images."""
        if isinstance(self.train, StreamedImages):
            return {"datasets": version("datasets"), "files": self.train.rows.num_shards}
        return None


def open_data(
    recipe: Recipe, method: Method, *, images: Images | None = None, held_out_before: int = 0, notify: Notify
) -> tuple[Recipe, TrainingData]:
    """Open and load the images of a recipe that passed `check`.

    Args:
        recipe: its `data` names the images and how to read them.
        method: the method to train; the number of held-out images depends on its dimensions.
        images: images that were given as Python objects, instead of those of `recipe.data.source`; a fifth of them is
            held out.
        held_out_before: number of images in the spectrum evaluations of a resumed run so far, which it keeps if
            `spectrum.samples` is 0, so that a curve rests on the same images also with another number of epochs.
        notify: function that is called with each line for the user.

    Returns:
        The recipe with the channel statistics and the bit depth of the images, and the images.

    Raises:
        UserError: the source cannot be read, it has fewer images than a batch, or its images have other channels.
    """
    decoding = Decoding(errors=DecodeErrors(max_error_fraction=recipe.data.max_error_fraction))
    if recipe.data.storage == "streaming":
        train, sample, test = _open_streams(recipe, images, notify)
        num_images = recipe.data.num_images
    else:
        recipe, train, test = _open_splits(recipe, images, decoding, notify)
        sample, num_images = train, len(train)
    check_num_images(recipe, num_images)  # again, because unreadable images do not count
    decoding = replace(decoding, bits=recipe.data.bits or 16)
    if not recipe.data.mean or not recipe.data.std:
        number = STATISTICS_SAMPLES
        mean, std = channel_statistics(sample, channels=recipe.data.channels, sample=number, decoding=decoding)
        recipe = replace(recipe, data=replace(recipe.data, mean=mean, std=std))
    features = feature_dim(method.backbone)
    numbers = {
        "steps": num_images // recipe.batch_size * recipe.epochs,
        "dimensions": max(features, recipe.projector.dimensions(features)),
        "available": min(len(test), HELD_OUT_BUDGET // _bytes_per_image(recipe, sample)),
    }
    for samples in (recipe.spectrum.samples, held_out_before):
        plan = plan_evaluations(recipe, **numbers, samples=min(samples, len(test)))
        held_out = _preprocess(recipe, _some(test, plan.samples, recipe.seed), decoding)
        if recipe.spectrum.samples or len(held_out) == held_out_before or not held_out_before:
            break
    if lost := plan.samples - len(held_out):
        notify(f"{lost:,} of {plan.samples:,} held-out images cannot be read")
    wanted = SAMPLES_PER_DIMENSION * numbers["dimensions"]
    more = 0 if isinstance(train, StreamedImages) else max(wanted - len(test), 0)
    full = tuple(_some(images, n, recipe.seed) for images, n in ((test, wanted), (sample, more)) if n)
    full = full if sum(map(len, full)) > plan.samples else ()
    scored: list[Images] = []
    if recipe.probe.labelled:
        scored = open_labelled(recipe, notify)
    elif recipe.probe.epochs and (test.labels >= 0).any():
        scored = [test]
    elif recipe.probe.epochs:
        notify(f"--probe.epochs: no score of the online probe, as the test images of {test.source} have no labels")
    labelled = tuple(_labelled(recipe, images, decoding) for images in scored)
    decoding = replace(decoding, workers=resolve_num_workers(recipe.data.workers))
    return recipe, TrainingData(train, num_images, sample, plan, held_out, decoding, labelled, full)


def _some(images: Any, count: int, seed: int) -> Any:
    """Return random images, in the order of the source."""
    chosen = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))[:count]
    return images.subset(chosen.sort().values.numpy())


def _open_streams(recipe: Recipe, images: Images | None, notify: Notify) -> tuple[StreamedImages, Images, Images]:
    """Return a stream of the training images, a sample of the stream, and images of the test split."""
    spec = recipe.data
    if images is not None:
        raise UserError("data.storage is streaming, but the images were given in memory; give --data.storage auto")
    if spec.num_images < 1:
        raise UserError(f"{spec.source} has no known length; give the images per epoch with --data.num-images")
    train, test = spec.reading.train or "train", spec.reading.test or "test"
    stream, held_out = (open_stream(spec.source, spec.reading, split=split) for split in (train, test))
    held_out = held_out.take(recipe.spectrum.samples or STREAMING_HELD_OUT, seed=recipe.seed)
    notify(
        f"training streams {spec.source} [{train}] ({spec.num_images} images per epoch); the spectrum is evaluated on "
        f"{len(held_out)} images of [{test}]"
    )
    return stream, stream.take(STATISTICS_SAMPLES, seed=recipe.seed), held_out


def _open_splits(
    recipe: Recipe, images: Images | None, decoding: Decoding, notify: Notify
) -> tuple[Recipe, MemoryImages | Images, Images]:
    """Return the recipe with the bit depth of the images, the training images, and the test images."""
    spec = recipe.data
    source = spec.source if images is None else images
    options: Any = {"seed": recipe.split_seed, "validation": spec.validation, "subset": spec.subset}
    options["subset_seed"] = spec.subset_seed
    splits = train_and_test(source, spec.reading, **options)
    check_num_images(recipe, len(splits.train))
    depth = find_bit_depth(splits.train, bits=spec.bits, channels=spec.channels)
    for line in (splits.statement, *depth.notes):
        notify(line)
    recipe = replace(recipe, data=replace(spec, bits=spec.bits or depth.bits))
    train = _load(recipe, splits.train, decoding, notify)
    if lost := len(splits.train) - len(train):
        notify(f"{lost:,} of {len(splits.train):,} training images cannot be read")
    return recipe, train, splits.test


def _load(recipe: Recipe, images: Images, decoding: Decoding, notify: Notify) -> MemoryImages | Images:
    """Load the images into memory, or return them unchanged, to be decoded from disk; `data.storage` or their size
    decides.

    Raises:
        UserError: the images have other channels, or do not fit into memory, where the user wants them.
    """
    spec, info, size = recipe.data, dataset_info(images), recipe.data.size or None
    # images of mode RGBA have four channels as well; `decode` raises if one has not
    if info.channels not in (spec.channels, 1, 3):
        raise UserError(
            f"the images have {info.channels} channels, but the recipe expects {spec.channels}; give --data.channels "
            f"{info.channels} (with colour jitter and grayscale off, --views.0.jitter.saturation 0 …), or convert them"
        )
    if is_random(images):
        notify("the images differ at each access: they are read at each step, and known by number, labels and groups")
        return images
    small = info.uniform and max(info.maximum) <= MEMORY_SIDE and info.bytes_in_memory() <= MEMORY_BUDGET
    resized = size is not None and info.bytes_in_memory(size) <= MEMORY_BUDGET
    (w, h), (W, H) = info.minimum, info.maximum
    on_disk = f"images stay on disk and are decoded when needed: {info.count:,} of {w}×{h} to {W}×{H} px"
    if spec.storage == "disk" or (spec.storage == "auto" and not (small or resized)):
        if spec.storage == "auto":
            notify(f"{on_disk} (--data.storage memory loads them)")
        return images
    try:
        decoding = replace(decoding, bits=spec.bits or 16)
        return load_images(images, channels=spec.channels, size=size, decoding=decoding)
    except MixedSizesError:
        if spec.storage == "memory":
            raise
        notify(f"{on_disk}, of several sizes (--data.size S --data.storage memory loads them at S×S)")
        return images


def _preprocess(recipe: Recipe, images: Images, decoding: Decoding) -> MemoryImages:
    """Decode, resize and crop all images, which then are uint8, or float32 in [0, 1] if some have more than 8 bits."""
    workers = resolve_num_workers(recipe.data.workers) if len(images) >= MIN_IMAGES_FOR_WORKERS else 0
    channels, size = recipe.data.channels, build_preprocess(recipe).size
    return load_images(images, channels=channels, size=size, decoding=replace(decoding, workers=workers))


def open_labelled(recipe: Recipe, notify: Notify = silent) -> list[Images]:
    """Return the labelled training and test images of `probe.labelled`.

    Raises:
        UserError: the source cannot be read, or lacks labels.
    """
    source = recipe.probe.labelled
    try:
        splits = train_and_test(source, seed=recipe.split_seed)
    except UserError as error:
        raise UserError(f"--labelled {source}, for which --data flags do not count: {error}") from error
    if reason := why_not_scorable(splits.train, splits.test):
        raise UserError(f"--labelled {source}: nothing can be scored: {reason}")
    notify(f"linear probe on the labels: {splits.statement}")
    bits, own = find_bit_depth(splits.train, channels=recipe.data.channels).bits, recipe.data.bits or 16
    if bits and bits != own:
        notify(f"warning: the labelled images use {bits} of 16 bits, but are read with {own}, as in the run")
    return [splits.train, splits.test]


def _labelled(recipe: Recipe, images: Images, decoding: Decoding) -> MemoryImages | Images:
    """Return the images with a label; the first process, which alone scores, decodes them now if they fit in memory."""
    labelled = images.subset(np.flatnonzero(images.labels >= 0))
    if rank() or len(labelled) * _bytes_per_image(recipe, labelled) > HELD_OUT_BUDGET:
        return labelled
    return _preprocess(recipe, labelled, decoding)


def _bytes_per_image(recipe: Recipe, images: Images | MemoryImages) -> int:
    """Return the bytes of a preprocessed image in memory: uint8, or float32 for images of more than 8 bits."""
    in_memory = isinstance(images, MemoryImages)
    per_value = images.pixels.element_size() if in_memory else dataset_info(images).bytes_per_value
    return recipe.data.channels * build_preprocess(recipe).size ** 2 * per_value


def load_batches(
    recipe: Recipe, views: MultiViewTransform, data: TrainingData, device: torch.device, *, start: int, stop: int
) -> "SeededBatches":
    """Return this process's views and labels of the steps `start` to `stop`."""
    steps = Steps(recipe.seed, recipe.batch_size, start, stop, rank(), world_size(), data.pass_ends)
    batches = dataloader(data.train, views, steps, device=device, decoding=data.decoding)
    return SeededBatches(batches, seed=recipe.seed, start=start)


class SeededBatches:
    """Iterate over batches, seed torch's global generator at each step, and count the seconds spent waiting for
    batches.

    The seed makes a network's dropout a function of (seed, step, rank).

    Args:
        batches: the batches, from step `start` on.
        seed: the seed of the run.
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
        torch.manual_seed(mix(self._seed, self._step, DROPOUT_STREAM, *((rank(),) if rank() else ())))
        self._step += 1
        self.wait_seconds += time.perf_counter() - started
        return batch


def resolve_num_workers(workers: int) -> int:
    """Return the number of workers; if negative, the CPU cores per training process minus one."""
    return workers if workers >= 0 else max((os.cpu_count() or 1) // local_world_size() - 1, 1)
