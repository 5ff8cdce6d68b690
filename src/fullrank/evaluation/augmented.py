"""Features of augmented training images: passes over the images, each with other random crops and flips."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fullrank.images import DecodeErrors, Images, MemoryImages, Preprocess, load_images
from fullrank.images.dataloaders import decode_and_crop
from fullrank.images.decode import decode, upright_size
from fullrank.images.decode_errors import ImageDecodeError
from fullrank.images.load import MixedSizesError
from fullrank.images.parallel import parallel_map
from fullrank.images.pixel_values import same_form
from fullrank.images.preprocess import to_tensor
from fullrank.models.features import verify_frozen
from fullrank.views import MultiViewTransform
from fullrank.views.config import CropConfig, JitterConfig, ViewConfig

BLOCK = 512  # images that share one draw of random numbers; the crops do not depend on the size of a forward pass
MEMORY = 2**31  # bytes of decoded images that are kept for the next pass


def crop_and_flip(preprocess: Preprocess, *, crop: tuple[float, float], flip: float) -> MultiViewTransform:
    """Return the transform of one view: a random resized crop of these areas, and a flip, at the size of the
    network.
    """
    none = JitterConfig(probability=0.0)
    view = ViewConfig(count=1, size=preprocess.size, crop=CropConfig(scale=crop), flip=flip, jitter=none, grayscale=0.0)
    return MultiViewTransform(view, mean=preprocess.mean, std=preprocess.std, channels=preprocess.channels)


def augmented_features(
    backbone: nn.Module,
    images: Images | MemoryImages,
    transform: MultiViewTransform,
    number: int,
    *,
    seed: int,
    bits: int = 0,
    **options: Any,
) -> Float[Tensor, "n D"]:
    """Return the features of pass `number` over the augmented images: rows in the order of `extract_features`, on the
    CPU.

    The crops are a function of the seed, the number of the pass and the position of the image; the device, the batch
    size and the number of workers do not change them.

    Args:
        backbone: maps float32 images (n, C, S, S) to features (n, D); the function verifies that it does not change.
        images: training images; they are not resized before the crop.
        transform: the random crop and flip.
        number: number of the pass.
        seed: seed of the crops and flips.
        bits: bits that the values of 16-bit images use.
        **options: as of `extract_features`.

    >>> from fullrank.images import open_images
    >>> digits = open_images("digits")["all"].subset(range(8))
    >>> transform = crop_and_flip(Preprocess(1, 8, (0.5,), (0.5,)), crop=(0.5, 1.0), flip=0.0)
    >>> augmented_features(nn.Flatten(), digits, transform, 0, seed=0).shape
    torch.Size([8, 64])
    """
    device, batch_size, parts = options.get("device", "cpu"), options.get("batch_size", 512), []
    with verify_frozen(backbone.to(device)), torch.inference_mode():
        for block in _views(images, transform, number, seed=seed, bits=bits, device=device, **_decoding(options)):
            parts += [backbone(part).float().cpu() for part in block.split(batch_size)]
    return torch.cat(parts)


def _decoding(options: dict[str, Any]) -> dict[str, Any]:
    return {name: options[name] for name in ("workers", "decode_errors") if name in options}


def _views(
    images: Images | MemoryImages,
    transform: MultiViewTransform,
    number: int,
    *,
    seed: int,
    bits: int,
    device: torch.device | str,
    workers: int = 0,
    decode_errors: DecodeErrors | None = None,
) -> Iterator[Tensor]:
    """Yield the normalised views of each block of images."""
    blocks = [range(start, min(start + BLOCK, len(images))) for start in range(0, len(images), BLOCK)]
    tasks = list(enumerate(blocks, start=number * len(blocks)))
    if isinstance(images, MemoryImages):
        for step, block in tasks:
            pixels = images.pixels[block.start : block.stop].to(device)
            yield transform(pixels, transform.make_params(seed, step, len(block)))[0][0]
        return
    errors = DecodeErrors() if decode_errors is None else decode_errors
    for crops, rows, step, found in parallel_map(_CropBlock(images, transform, seed, bits), tasks, workers=workers):
        errors.add(len(rows) + len(found), found)
        if crops is not None:
            params = transform.make_params(seed, step, BLOCK)
            params = replace(params, uniforms=params.uniforms[:, rows])
            yield transform.augment([crops.to(device)], params)[0][0]
    errors.check()


@dataclass(frozen=True)
class _CropBlock:
    """Decode and crop the images of one block; unreadable images are left out."""

    images: Images
    transform: MultiViewTransform
    seed: int
    bits: int

    def __call__(self, task: tuple[int, range]) -> tuple[Tensor | None, list[int], int, list[ImageDecodeError]]:
        step, indices = task
        params = self.transform.make_params(self.seed, step, len(indices))
        crops, rows, errors = [], [], []
        for row, index in enumerate(indices):
            sample = params.select_samples(slice(row, row + 1))
            try:
                image, name = self.images.open(index), self.images.name(index)
                crops.append(decode_and_crop(image, self.transform, sample, bits=self.bits, name=name)[0])
                rows.append(row)
            except ImageDecodeError as error:
                errors.append(error)
        return (torch.stack(same_form(crops), dim=1) if crops else None), rows, step, errors


def keep_decoded(images: Images | MemoryImages, preprocess: Preprocess, **options: Any) -> Images | MemoryImages:
    """Return the images decoded, with the channels of the network, if they have one size and fit into 2 GiB; else
    unchanged. Passes over decoded images crop on the device of the backbone, and decode nothing.
    """
    if isinstance(images, MemoryImages):
        if images.pixels.shape[1] == preprocess.channels:
            return images
        arrays = (image.permute(1, 2, 0).numpy() for image in images.pixels.cpu())
        return replace(images, pixels=torch.stack([to_tensor(decode(image, preprocess.channels)) for image in arrays]))
    try:
        width, height = upright_size(images.open(0))
        if len(images) * width * height * preprocess.channels > MEMORY:
            return images
        return load_images(images, channels=preprocess.channels, bits=preprocess.bits, **_decoding(options))
    except (ImageDecodeError, AttributeError, MixedSizesError):  # an unreadable image, an array, several sizes
        return images
