"""Features of augmented training images: passes over the images, each with other random crops and flips."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from fullrank.evaluation.protocol import GradientProtocol, SupervisedProtocol
from fullrank.images import Images, MemoryImages, MixedSizesError, Preprocess, dataset_info, decode, fits, load_images
from fullrank.images.dataloaders import decode_and_crop
from fullrank.images.decode_errors import DecodeErrors, Decoding, ImageDecodeError
from fullrank.images.parallel import parallel_map
from fullrank.images.pixel_values import same_form
from fullrank.images.preprocess import to_tensor
from fullrank.models.features import verify_frozen
from fullrank.views import MultiViewTransform
from fullrank.views.config import CropConfig, JitterConfig, ViewConfig

BLOCK = 512  # images that share one draw of random numbers; the crops do not depend on the size of a forward pass
MEMORY = 2**31  # bytes of decoded images that are kept for the next pass


def crop_and_flip(preprocess: Preprocess, protocol: GradientProtocol | SupervisedProtocol) -> MultiViewTransform:
    """Return the transform of one view: the random resized crop and the flip of a protocol, at the size of the
    network.
    """
    none, crop = JitterConfig(probability=0.0), CropConfig(scale=protocol.crop)
    view = ViewConfig(count=1, size=preprocess.size, crop=crop, flip=protocol.flip, jitter=none, grayscale=0.0)
    return MultiViewTransform(view, mean=preprocess.mean, std=preprocess.std, channels=preprocess.channels)


def passes_of(
    backbone: nn.Module,
    images: Images | MemoryImages,
    preprocess: Preprocess,
    protocol: GradientProtocol,
    seed: int,
    *,
    device: torch.device | str = "cpu",
    batch_size: int = 512,
    **decoding: Any,
) -> Callable[[int], Tensor]:
    """Return the function number of a pass → features of the augmented images: rows in the order of `extract_features`,
    on the CPU.

    The crops are a function of the seed, the number of the pass and the position of the image; the device, the batch
    size and the number of workers do not change them.

    Args:
        backbone: maps float32 images (n, C, S, S) to features (n, D); it is verified that it does not change.
        images: training images; they are not resized before the crop.
        preprocess: the preprocessing of the backbone.
        protocol: the distribution of crops and flips.
        seed: seed of the crops and flips.
        device: device of the backbone.
        batch_size: images per forward pass.
        **decoding: `workers` and `decode_errors` of `extract_features`.

    >>> from fullrank.evaluation.protocol import SgdProtocol
    >>> from fullrank.images import open_images
    >>> digits = open_images("digits")["all"].subset(range(8))
    >>> passes_of(nn.Flatten(), digits, Preprocess(1, 8, (0.5,), (0.5,)), SgdProtocol(), 0)(1).shape
    torch.Size([8, 64])
    """
    images, transform = keep_decoded(images, preprocess, **decoding), crop_and_flip(preprocess, protocol)
    blocks = [range(start, min(start + BLOCK, len(images))) for start in range(0, len(images), BLOCK)]

    def views(number: int) -> Iterator[Tensor]:
        tasks = enumerate(blocks, start=number * len(blocks))
        if isinstance(images, MemoryImages):
            for step, block in tasks:
                pixels = images.pixels[block.start : block.stop].to(device)
                yield transform(pixels, transform.make_params(seed, step, len(block)))[0][0]
            return
        errors = decoding.get("decode_errors") or DecodeErrors()
        crop = _CropBlock(images, transform, seed, preprocess.bits)
        for crops, rows, step, found in parallel_map(crop, tasks, workers=decoding.get("workers", 0)):
            errors.add(len(rows) + len(found), found)
            if crops is not None:
                params = transform.make_params(seed, step, BLOCK)
                params = replace(params, uniforms=params.uniforms[:, rows])
                yield transform.augment([crops.to(device)], params)[0][0]
        errors.check()

    def one_pass(number: int) -> Tensor:
        with verify_frozen(backbone.to(device)), torch.inference_mode():
            parts = [backbone(X).float().cpu() for block in views(number) for X in block.split(batch_size)]
        return torch.cat(parts)

    return one_pass


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


def keep_decoded(images: Images | MemoryImages, preprocess: Preprocess, **decoding: Any) -> Images | MemoryImages:
    """Return the images decoded, with the channels of the network, if they have one size and fit into 2 GiB; else
    unchanged. Passes over decoded images crop on the device of the backbone, and decode nothing.
    """
    if isinstance(images, MemoryImages):
        if images.pixels.shape[1] == preprocess.channels:
            return images
        arrays = (image.permute(1, 2, 0).numpy() for image in images.pixels.cpu())
        return replace(images, pixels=torch.stack([to_tensor(decode(image, preprocess.channels)) for image in arrays]))
    info = dataset_info(images)
    try:
        if info.uniform and fits(info, MEMORY):
            errors = decoding.get("decode_errors") or DecodeErrors()
            how = Decoding(decoding.get("workers", 0), preprocess.bits, errors)
            return load_images(images, channels=preprocess.channels, decoding=how)
    except MixedSizesError:  # of images that were not in the sample
        pass
    return images
