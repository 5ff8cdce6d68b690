"""Training batches of images that do not fit in memory: decoded and cropped step by step, by worker processes."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count, cycle, islice
from typing import Any, NamedTuple

import torch
from jaxtyping import Int64, UInt8
from PIL import Image
from torch import Tensor

from fullrank.errors import UserError
from fullrank.images.decode import decode, orientation
from fullrank.images.decode_error import ImageDecodeError
from fullrank.images.decode_errors import DecodeErrors
from fullrank.images.order import batch_indices
from fullrank.images.parallel import parallel
from fullrank.images.source import Images, Picture
from fullrank.images.streaming import StreamedImages
from fullrank.views import AugmentationParams, MultiViewTransform

PATIENCE = 100  # unreadable images in a row after which there is no point in trying the next


def stream_batches(
    images: Images | StreamedImages,
    views: MultiViewTransform,
    *,
    seed: int,
    batch: int,
    start_step: int,
    steps: int,
    workers: int = 0,
    rank: int = 0,
    world: int = 1,
    decode_errors: DecodeErrors | None = None,
) -> Iterator[tuple[list[UInt8[Tensor, "_ n C _ _"]], Int64[Tensor, " n"]]]:
    """Yield (crops, labels) of each step: this process's n = batch / world images, with `views.finish` left to do.

    The same whatever the number of workers, and all processes together see what one would: order and views are functions of
    (seed, step), drawn for the whole batch and sliced by rank. An unreadable image is replaced by the next readable one.
    (Images that only arrive, see `StreamedImages`, keep none of this on resuming but the views.)

    Args:
        images: Where from.
        views: What is cropped.
        seed: Of the order and of the views.
        batch: Images of a step, over all processes; a multiple of `world`.
        start_step: The first step.
        steps: How many steps follow, the first included.
        workers: Processes that decode; 0 is this one.
        rank: Number of this process.
        world: How many processes there are.
        decode_errors: Records what could not be read; by default a new one, which stops past a tenth.

    Raises:
        UserError: a batch that does not suit the images or processes, or too many unreadable images.

    >>> from fullrank.images import open_images
    >>> from fullrank.views import ViewConfig
    >>> views = MultiViewTransform(ViewConfig(size=6), mean=(0.3,), std=(0.4,), channels=1)
    >>> digits = open_images("digits")["all"]
    >>> crops, labels = next(stream_batches(digits, views, seed=0, batch=4, start_step=0, steps=1))
    >>> crops[0].shape, labels.shape
    (torch.Size([2, 4, 1, 6, 6]), torch.Size([4]))
    """
    if batch % world:
        raise UserError(f"a batch of {batch} images cannot be shared by {world} processes; choose a multiple of {world}")
    decode_errors = DecodeErrors() if decode_errors is None else decode_errors
    share = slice(rank * batch // world, (rank + 1) * batch // world)
    wanted = range(start_step, start_step + steps)
    if isinstance(images, StreamedImages):
        tasks = _arriving(images, seed, batch, wanted, rank, world)
        images = replace(images, rows=None)  # the workers get what arrives; they need not know where from
    else:
        tasks = (_Task(step, batch_indices(seed, step, batch, len(images))[share].tolist()) for step in wanted)
    # The workers only crop: what is compiled, or of the user, stays here, since it may not be picklable.
    views = MultiViewTransform(views.specs, mean=views.mean.tolist(), std=views.std.tolist(), channels=views.channels)
    for done in parallel(_Crop(images, views, seed, batch, share.start), tasks, workers=workers):
        decode_errors.add(len(done.labels) + len(done.failures), done.failures)
        yield done.crops, done.labels
    decode_errors.finish()


class _Task(NamedTuple):
    step: int
    keys: list[Any]  # indices, or arrivals


class _Done(NamedTuple):
    crops: list[Tensor]
    labels: Tensor
    failures: list[ImageDecodeError]


def _arriving(images: StreamedImages, seed: int, batch: int, steps: range, rank: int, world: int) -> Iterator[_Task]:
    arrivals = images.arrivals(seed=seed, start=steps.start, rank=rank, world=world)
    for step in steps:
        yield _Task(step, [next(arrivals) for _ in range(batch // world)])


@dataclass(frozen=True)
class _Crop:
    """The work of one step on one process; `first` is the place of its first image in the whole batch."""

    images: Images | StreamedImages
    views: MultiViewTransform
    seed: int
    batch: int
    first: int

    def __call__(self, task: _Task) -> _Done:
        draws = self.views.draw(self.seed, task.step, self.batch)
        crops, labels, failures = [], [], []
        for j in range(len(task.keys)):
            for attempt, key in enumerate(self._candidates(task.keys, j)):
                if attempt == PATIENCE:
                    raise UserError(f"{PATIENCE} images in a row cannot be read, the last is '{failures[-1].name}': {failures[-1].reason}")
                try:
                    crops.append(self._crops(key, draws, self.first + j))
                    labels.append(self.images.label(key))
                    break
                except ImageDecodeError as bad:
                    failures.append(bad)
        return _Done([torch.stack(size, dim=1) for size in zip(*crops, strict=True)], torch.tensor(labels), failures)

    def _candidates(self, keys: list[Any], j: int) -> Iterator[Any]:
        """The j-th image, then those that stand in for it: the next of the source, or of the batch where images only arrive."""
        if isinstance(self.images, Images):
            return ((keys[j] + k) % len(self.images) for k in count())
        return islice(cycle(keys), j, None)

    def _crops(self, key: Any, draws: AugmentationParams, i: int) -> list[Tensor]:
        name, image = self.images.name(key), self.images.open(key)
        if not _may_wait(image, self.views.channels):
            return self.views.crops(decode(image, self.views.channels, shorter=_shorter(self.views, image), name=name), draws, i)
        try:
            return self.views.crops(image, draws, i)
        except Exception:
            decode(self.images.open(key), self.views.channels, name=name)  # ImageDecodeError if it was the file's fault
            raise


def _may_wait(image: Picture, channels: int) -> bool:
    """Tell whether the crop itself may decode the image: an upright JPEG, at the scale that the boxes of this sample allow."""
    return isinstance(image, Image.Image) and image.format == "JPEG" and orientation(image) == 1 and channels in (1, 3)


def _shorter(views: MultiViewTransform, image: Picture) -> int | None:
    """The shorter side that a JPEG keeps at least so that no crop, were it the smallest of all, is enlarged."""
    if not isinstance(image, Image.Image):
        return None
    smallest = min(
        (image.width * image.height * view.crop.scale[0] / max(view.crop.ratio[1], 1 / view.crop.ratio[0])) ** 0.5 / (view.size + 1)
        for view in views.specs  # size + 1: a pixel of a reduced side may be lost to rounding
    )
    return math.ceil(min(image.size) / smallest) if smallest >= 2 else None
