"""Training batches of views. The views of a step, and its images but for a stream's, depend only on (seed, step)."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32, Int64, Real
from torch import Tensor

from fullrank.errors import UserError
from fullrank.images.decode import RawImage, decode, upright_size
from fullrank.images.decode_errors import Decoding, ImageDecodeError
from fullrank.images.load import MemoryImages
from fullrank.images.parallel import parallel_map
from fullrank.images.preprocess import same_form
from fullrank.images.source import Images
from fullrank.images.streams import StreamedImages
from fullrank.views import AugmentationParams, MultiViewTransform
from fullrank.views.operations import to_device

MAX_ATTEMPTS = 100  # the run stops after this many consecutive unreadable images
# A JPEG is decoded at reduced resolution only if every crop is still at least this many times larger than its view (as
# in Pillow's thumbnails).
OVERSAMPLING = 2.0


def batch_indices(seed: int, step: int, batch_size: int, n: int) -> Int64[Tensor, " batch_size"]:
    """Return the indices of the images of one step: a slice of the permutation of the current epoch.

    An epoch has n // batch_size steps; the incomplete batch at its end is dropped, and each epoch drops other images.
    NumPy's PCG64 draws the permutation of epoch e from the state that `SeedSequence(seed, spawn_key=(e,))` hashes to
    128 bits, so different pairs (seed, e) have unrelated permutations. (A torch generator on the CPU uses only 32 bits
    of its seed: two of many epochs could collide.)

    Args:
        seed: Seed of the run.
        step: The step, counted from 0; the function computes at most one permutation, for any step.
        batch_size: Images per step, over all processes.
        n: Images in the data set.

    Raises:
        UserError: `batch_size` is not between 1 and n.

    >>> epoch = torch.cat([batch_indices(0, step, 3, 9) for step in range(3)])
    >>> epoch.sort().values
    tensor([0, 1, 2, 3, 4, 5, 6, 7, 8])
    """
    if not 0 < batch_size <= n:
        raise UserError(f"batch_size is {batch_size}, but there are only {n} images; choose a batch_size from 1 to {n}")
    epoch, batch = divmod(step, n // batch_size)
    return torch.from_numpy(_permutation(seed, epoch, n)[batch * batch_size : (batch + 1) * batch_size].copy())


@lru_cache(maxsize=2)
def _permutation(seed: int, epoch: int, n: int) -> np.ndarray:
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(epoch,))).permutation(n)


@dataclass(frozen=True)
class Steps:
    """The steps whose batches are loaded, and this process's share of each: n = batch_size / world_size images.

    Attributes:
        seed: Seed of the order and of the views.
        batch_size: Images per step, over all processes; a multiple of `world_size`.
        start: First step.
        stop: One more than the last step.
        rank: Index of this process.
        world_size: Number of processes.
        pass_ends: Of a stream, the number of images of this process up to the end of each pass; `dataloader` appends
            to it. With the list of the run that goes on, `dataloader` reads only the last pass again, else all.
    """

    seed: int
    batch_size: int
    start: int
    stop: int
    rank: int = 0
    world_size: int = 1
    pass_ends: list[int] = field(default_factory=list, compare=False)

    @property
    def share(self) -> slice:
        """This process's part of a batch."""
        if self.batch_size % self.world_size:
            n = self.world_size
            raise UserError(f"a batch of {self.batch_size} is not divisible by {n} processes; choose a multiple of {n}")
        size = self.batch_size // self.world_size
        return slice(self.rank * size, (self.rank + 1) * size)

    def indices(self, step: int, n: int) -> Int64[Tensor, " n"]:
        """Return the indices of this process's images of a step, among n images."""
        return batch_indices(self.seed, step, self.batch_size, n)[self.share]

    def params(self, transform: MultiViewTransform, step: int) -> AugmentationParams:
        """Return the augmentation parameters of this process's images of a step."""
        return transform.make_params(self.seed, step, self.batch_size).select_samples(self.share)


def dataloader(
    images: MemoryImages | Images | StreamedImages,
    transform: MultiViewTransform,
    steps: Steps,
    *,
    device: torch.device | str | None = None,
    decoding: Decoding | None = None,
) -> Iterator[tuple[list[Float32[Tensor, "_ n C _ _"]], Int64[Tensor, " n"]]]:
    """Yield (views, labels) of each step: this process's images of each batch.

    Indices and augmentation parameters are drawn for the whole batch and sliced by rank, so `world_size` processes
    together get the same batch as a single process. Images in memory are cropped on the device; other images are
    decoded and cropped by workers; the batches do not depend on the number of workers. No state is carried from step to
    step, so a resumed run gets the same batches. `StreamedImages` have no random access: their images depend on
    `world_size`, and a resumed run reads again what it has used (`Steps.pass_ends`).

    Args:
        images: The images. An unreadable image is replaced by the next readable image.
        transform: Computes the views.
        steps: Which steps, and which part of each batch.
        device: Device of the views; by default the device of images in memory, else the CPU.
        decoding: In how many processes, with how many bits, and how many images may be unreadable.

    Raises:
        UserError: `batch_size` is larger than the number of images or not divisible by `world_size`, or too many images
            are unreadable.

    >>> from fullrank.images import open_images
    >>> from fullrank.views import ViewConfig
    >>> transform = MultiViewTransform(ViewConfig(size=6), mean=(0.3,), std=(0.4,), channels=1)
    >>> digits = open_images("digits")["all"]
    >>> (views,), labels = next(dataloader(digits, transform, Steps(seed=0, batch_size=4, start=0, stop=1)))
    >>> views.shape, labels.shape
    (torch.Size([2, 4, 1, 6, 6]), torch.Size([4]))
    """
    if isinstance(images, MemoryImages):
        images = images if device is None else images.to(device)
        for step in range(steps.start, steps.stop):
            indices = to_device(steps.indices(step, len(images)), images.pixels.device)
            yield transform(images.pixels[indices], steps.params(transform, step)), images.labels[indices]
        return
    batches = crop_batches(images, transform, steps, decoding)
    for step, (crops, labels) in enumerate(batches, start=steps.start):
        *crops, labels = (x.to(device or "cpu", non_blocking=True) for x in (*crops, labels))
        yield transform.augment(crops, steps.params(transform, step)), labels


def crop_batches(
    images: Images | StreamedImages, transform: MultiViewTransform, steps: Steps, decoding: Decoding | None = None
) -> Iterator[tuple[list[Real[Tensor, "_ n C _ _"]], Int64[Tensor, " n"]]]:
    """Yield (crops, labels) of each step; `transform.augment` takes the crops. The arguments are those of
    `dataloader`.
    """
    decoding, numbers = decoding or Decoding(), range(steps.start, steps.stop)
    if isinstance(images, StreamedImages):
        n, collect = steps.share.stop - steps.share.start, images.collect
        place = {"rank": steps.rank, "world_size": steps.world_size, "pass_ends": steps.pass_ends}
        stream = images.iterate(seed=steps.seed, start=steps.start * n, **place)
        tasks = ((step, list(range(n)), collect(list(islice(stream, n)))) for step in numbers)
    else:
        tasks = ((step, steps.indices(step, len(images)).tolist(), None) for step in numbers)
    whole = images if isinstance(images, Images) else None
    # The workers only crop. Their transform has no compiled functions and no custom transforms, because these may not
    # be picklable.
    transform = MultiViewTransform(
        transform.configs, mean=transform.mean.tolist(), std=transform.std.tolist(), channels=transform.channels
    )
    crop = _CropBatch(whole, transform, steps, decoding.bits)
    for crops, labels, errors in parallel_map(crop, tasks, workers=decoding.workers):
        decoding.errors.add(len(labels) + len(errors), errors)
        yield crops, labels
    decoding.errors.check()


def decode_and_crop(
    image: RawImage, transform: MultiViewTransform, params: AugmentationParams, *, bits: int = 16, name: str = "image"
) -> list[Real[Tensor, "_ C _ _"]]:
    """Return the crops of one image, one tensor per view size; `params` must hold exactly one sample.

    A large JPEG is decoded at 1/2, 1/4 or 1/8 of its scale if the side of every crop is then at least `OVERSAMPLING`
    times that of its view. The boxes are then rounded to the pixels of the reduced image.

    Raises:
        ImageDecodeError: the image is unreadable.
    """
    if getattr(image, "format", None) not in ("JPEG", "MPO"):  # the only formats that can be decoded at a reduced scale
        image = decode(image, transform.channels, bits=bits, name=name)
    width, height = upright_size(image)
    boxes = transform.get_crop_boxes(params, height, width)
    sides = (box[:, 2:].min().item() / size for box, size in zip(boxes, transform.sizes, strict=True))
    scale = min(sides) / OVERSAMPLING
    min_size = (int(width / scale), int(height / scale)) if scale >= 2 else None
    decoded = np.array(decode(image, transform.channels, bits=bits, min_size=min_size, name=name))
    pixels = torch.from_numpy(decoded.reshape(*decoded.shape[:2], -1))
    reduction = torch.tensor([pixels.shape[0] / height, pixels.shape[1] / width] * 2)
    return transform.crop_image(pixels, [(box * reduction).round().long() for box in boxes], params)


@dataclass(frozen=True)
class _CropBatch:
    """Decode and crop the images of one step for one process: (step, indices, images) → (crops, labels, errors), where
    the images are those of a stream, or None. An unreadable image is replaced by the next one.
    """

    images: Images | None
    transform: MultiViewTransform
    steps: Steps
    bits: int

    def __call__(self, task: tuple[int, list[int], Images | None]) -> tuple[list[Tensor], Tensor, list[Any]]:
        step, indices, images = task
        images = self.images if images is None else images
        assert images is not None, "a task of a stream has its images"
        params, crops, labels, errors = self.steps.params(self.transform, step), [], [], []
        for j, first in enumerate(indices):
            sample = params.select_samples(slice(j, j + 1))
            for attempt in range(MAX_ATTEMPTS):
                index = (first + attempt) % len(images)
                try:
                    image, name = images.open(index), images.name(index)
                    crops.append(decode_and_crop(image, self.transform, sample, bits=self.bits, name=name))
                    labels.append(int(images.labels[index]))
                    break
                except ImageDecodeError as error:
                    errors.append(error)
            else:
                found = f"{MAX_ATTEMPTS} consecutive images of {images} cannot be read, the last: '{errors[-1]}'"
                raise UserError(f"{found}; restore the images, then continue with --resume")
        sizes = [torch.stack(same_form(size), dim=1) for size in zip(*crops, strict=True)]
        return sizes, torch.tensor(labels), errors
