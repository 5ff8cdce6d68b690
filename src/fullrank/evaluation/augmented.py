"""Features of augmented training images: passes over the images, each with other random crops and flips."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fullrank.evaluation.features import format_slice
from fullrank.evaluation.frozen import verify_frozen
from fullrank.images import DecodeErrors, Images, MemoryImages, Preprocess, load_images
from fullrank.images.dataloaders import decode_and_crop
from fullrank.images.decode import decode, upright_size
from fullrank.images.decode_errors import ImageDecodeError
from fullrank.images.load import MixedSizesError
from fullrank.images.parallel import parallel_map
from fullrank.images.pixel_values import same_form
from fullrank.images.preprocess import to_tensor
from fullrank.views import MultiViewTransform
from fullrank.views.config import CropConfig, JitterConfig, ViewConfig

BLOCK = 512  # images that share one draw of random numbers; the crops do not depend on the size of a forward pass
MEMORY = 2**31  # bytes of decoded images that are kept for the next pass


@dataclass(frozen=True)
class Augmentation:
    """The random resized crop and the flip of training images."""

    crop: tuple[float, float]
    """Smallest and largest area of the crop, as a share of the image's area; its width / height is between 3/4 and
    4/3."""
    flip: float
    """Probability of a flip left to right."""

    def transform(self, preprocess: Preprocess) -> MultiViewTransform:
        """Return the transform of one view in the size of the preprocessing."""
        none = JitterConfig(probability=0.0)
        view = ViewConfig(
            count=1, size=preprocess.size, crop=CropConfig(scale=self.crop), flip=self.flip, jitter=none, grayscale=0.0
        )
        return MultiViewTransform(view, mean=preprocess.mean, std=preprocess.std, channels=preprocess.channels)


def augmented_features(
    backbone: nn.Module,
    images: Images | MemoryImages,
    preprocess: Preprocess,
    augmentation: Augmentation,
    number: int,
    *,
    seed: int,
    dimensions: slice = slice(None),
    batch_size: int = 512,
    device: torch.device | str = "cpu",
    workers: int = 0,
    decode_errors: DecodeErrors | None = None,
) -> Float[Tensor, "n D"]:
    """Return the features of pass `number` over the augmented images: rows in the order of `extract_features`, on the
    CPU.

    The crops are a function of the seed, the number of the pass and the position of the image; the device, the batch
    size and the number of workers do not change them.

    Args:
        backbone: maps float32 images (n, C, S, S) to features (n, D); the function verifies that it does not change.
        images: training images.
        preprocess: gives channels, size, mean and standard deviation; an augmented image is not resized before the
            crop.
        augmentation: the random crop and flip.
        number: number of the pass.
        seed: seed of the crops and flips.
        dimensions: dimensions to return.
        batch_size: images per forward pass.
        device: device of the backbone.
        workers: number of processes that decode images; 0 decodes in this process.
        decode_errors: records images that cannot be read.

    Raises:
        AssertionError: the backbone changed.
        UserError: too many images are unreadable.

    >>> from fullrank.images import open_images
    >>> digits, crop = open_images("digits")["all"].subset(range(8)), Augmentation((0.5, 1.0), flip=0.0)
    >>> augmented_features(nn.Flatten(), digits, Preprocess(1, 8, (0.5,), (0.5,)), crop, 0, seed=0).shape
    torch.Size([8, 64])
    """
    transform, parts = augmentation.transform(preprocess), []
    views = _views(
        images, preprocess, transform, number, seed=seed, device=device, workers=workers, decode_errors=decode_errors
    )
    with verify_frozen(backbone.to(device)), torch.inference_mode():
        for block in views:
            parts += [backbone(part)[:, dimensions].float().cpu() for part in block.split(batch_size)]
    X = torch.cat(parts)
    assert X.shape[1], f"no dimension in {format_slice(dimensions)}"
    return X


def _views(
    images: Images | MemoryImages,
    preprocess: Preprocess,
    transform: MultiViewTransform,
    number: int,
    *,
    seed: int,
    device: torch.device | str,
    workers: int,
    decode_errors: DecodeErrors | None,
) -> Iterator[Tensor]:
    """Yield the normalised views of each block of images."""
    blocks = [range(start, min(start + BLOCK, len(images))) for start in range(0, len(images), BLOCK)]
    first = number * len(blocks)
    if isinstance(images, MemoryImages):
        for step, block in enumerate(blocks, start=first):
            pixels = images.pixels[block.start : block.stop].to(device)
            yield transform(pixels, transform.make_params(seed, step, len(block)))[0][0]
        return
    decode_errors = DecodeErrors() if decode_errors is None else decode_errors
    tasks = (_Block(step, block) for step, block in enumerate(blocks, start=first))
    for crops, rows, step, errors in parallel_map(
        _CropBlock(images, transform, seed, preprocess.bits), tasks, workers=workers
    ):
        decode_errors.add(len(rows) + len(errors), errors)
        if crops is not None:
            params = transform.make_params(seed, step, BLOCK)
            params = replace(params, uniforms=params.uniforms[:, rows])
            yield transform.augment([crops.to(device)], params)[0][0]
    decode_errors.check()


class _Block(NamedTuple):
    step: int
    indices: range


@dataclass(frozen=True)
class _CropBlock:
    """Decode and crop the images of one block; unreadable images are left out."""

    images: Images
    transform: MultiViewTransform
    seed: int
    bits: int

    def __call__(self, task: _Block) -> tuple[Tensor | None, list[int], int, list[ImageDecodeError]]:
        params = self.transform.make_params(self.seed, task.step, len(task.indices))
        crops, rows, errors = [], [], []
        for row, index in enumerate(task.indices):
            sample = params.select_samples(slice(row, row + 1))
            try:
                image, name = self.images.open(index), self.images.name(index)
                crops.append(decode_and_crop(image, self.transform, sample, bits=self.bits, name=name)[0])
                rows.append(row)
            except ImageDecodeError as error:
                errors.append(error)
        return (torch.stack(same_form(crops), dim=1) if crops else None), rows, task.step, errors


def keep_decoded(
    images: Images | MemoryImages,
    preprocess: Preprocess,
    *,
    workers: int = 0,
    decode_errors: DecodeErrors | None = None,
) -> Images | MemoryImages:
    """Return the images decoded, with the channels of the network, if they have one size and fit into 2 GiB; else
    unchanged.

    Passes over decoded images crop on the device of the backbone, and decode nothing.
    """
    if isinstance(images, MemoryImages):
        if images.pixels.shape[1] == preprocess.channels:
            return images
        arrays = (image.permute(1, 2, 0).numpy() for image in images.pixels.cpu())
        return replace(images, pixels=torch.stack([to_tensor(decode(image, preprocess.channels)) for image in arrays]))
    try:
        width, height = upright_size(images.open(0))
    except (ImageDecodeError, AttributeError):  # an unreadable image, or an array
        return images
    if len(images) * width * height * preprocess.channels > MEMORY:
        return images
    try:
        return load_images(
            images, channels=preprocess.channels, bits=preprocess.bits, workers=workers, decode_errors=decode_errors
        )
    except MixedSizesError:
        return images
