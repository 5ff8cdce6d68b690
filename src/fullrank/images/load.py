"""Decode all images of a source: in batches for evaluation and embedding, or into one tensor in memory."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Int8, Int64, Real
from torch import Tensor

from fullrank.errors import UserError
from fullrank.images.decode import RawImage, decode
from fullrank.images.decode_errors import DecodeErrors, ImageDecodeError
from fullrank.images.parallel import parallel_map
from fullrank.images.pixel_values import same_form, to_unit
from fullrank.images.preprocess import Preprocess, to_tensor
from fullrank.images.source import Images

CHUNK = 512  # number of images per task of a worker in `load_images`


class MixedSizesError(UserError):
    """The images have several sizes, so that they do not fit into one tensor unless they are resized."""


@dataclass(frozen=True)
class Batch:
    """Readable images with their labels, names and indices in the source; pixels are uint8, or floats in [0, 1] for
    more than 8 bits.
    """

    pixels: Real[Tensor, "n C H W"]
    labels: Int64[Tensor, " n"]
    names: list[str]
    indices: Int64[Tensor, " n"]


@dataclass(frozen=True)
class MemoryImages:
    """All readable images of a source, decoded; a label of -1 means no label, and a group of -1 no group.

    Pixels are uint8, or float32 in [0, 1] if some images have more than 8 bits.

    Attributes:
        multi_labels: Several labels an image, on the CPU, see `Images.multi_labels`; None for one label an image.
    """

    pixels: Real[Tensor, "n C H W"]
    labels: Int64[Tensor, " n"]
    names: tuple[str, ...]
    classes: tuple[str, ...]
    groups: Int64[Tensor, " n"] = None  # pyright: ignore[reportAssignmentType]  # None becomes -1 for each image
    multi_labels: Int8[Tensor, "n K"] | None = None

    def __post_init__(self) -> None:
        if self.groups is None:
            object.__setattr__(self, "groups", torch.full((len(self.pixels),), -1, dtype=torch.int64))

    def __len__(self) -> int:
        return len(self.pixels)

    def subset(self, rows: Sequence[int] | np.ndarray) -> "MemoryImages":
        """Return the images at `rows`, in that order."""
        on_host = torch.as_tensor(np.asarray(rows, dtype=np.int64))
        index = on_host.to(self.pixels.device)
        several = None if self.multi_labels is None else self.multi_labels[on_host]
        kept = {"names": tuple(self.names[row] for row in rows), "groups": self.groups[on_host]}
        return replace(self, pixels=self.pixels[index], labels=self.labels[index], multi_labels=several, **kept)

    def to(self, device: torch.device | str) -> "MemoryImages":
        """Return the images with pixels and labels on a device; the groups, which nothing there needs, stay on the
        host.
        """
        return replace(self, pixels=self.pixels.to(device), labels=self.labels.to(device))


def iterate_batches(
    images: Images,
    preprocess: Preprocess,
    *,
    batch_size: int = 256,
    workers: int = 0,
    decode_errors: DecodeErrors | None = None,
) -> Iterator[Batch]:
    """Yield all readable images in order. A batch with unreadable images is shorter.

    Args:
        images: The images.
        preprocess: Resizes all images to one size.
        batch_size: Images per batch.
        workers: Number of processes that decode images; 0 decodes in this process.
        decode_errors: Records unreadable images; the default stops the run if more than 10 % are unreadable.

    Raises:
        UserError: too many images are unreadable, or their channels cannot be converted.

    >>> from fullrank.images import open_images
    >>> digits = open_images("digits")["all"]
    >>> [len(batch.pixels) for batch in iterate_batches(digits, Preprocess(1, 8, (0.3,), (0.4,)), batch_size=1000)]
    [1000, 797]
    """
    how: Any = {"workers": workers, "decode_errors": decode_errors}
    for pixels, indices in decode_chunks(images, preprocess.pixels, chunk=batch_size, **how):
        labels, names = torch.from_numpy(images.labels[indices]), [images.name(i) for i in indices]
        yield Batch(pixels, labels, names, torch.tensor(indices))


def load_images(
    images: Images,
    *,
    channels: int,
    size: int | None = None,
    bits: int = 16,
    workers: int = 0,
    decode_errors: DecodeErrors | None = None,
) -> MemoryImages:
    """Decode all images into one tensor; unreadable images are skipped and recorded.

    Args:
        images: The images.
        channels: 1 for grayscale, 3 for RGB; with any other number, the files must have that number of channels.
        size: Resize the shorter side to `size` and crop the centre, as `Preprocess` does; with None, all images must
            have the same size.
        bits: Number of bits that the values of 16-bit images use.
        workers: Number of processes that decode images; 0 decodes in this process.
        decode_errors: Records unreadable images; the default stops the run if more than 10 % are unreadable.

    Raises:
        MixedSizesError: the images have several sizes and `size` is None.
        UserError: too many images are unreadable, or their channels cannot be converted.

    >>> from fullrank.images import open_images
    >>> load_images(open_images("digits")["all"], channels=1).pixels.shape
    torch.Size([1797, 1, 8, 8])
    """
    pixels, indices = None, []
    to_pixels = partial(decode_to_tensor, channels=channels, bits=bits)
    if size is not None:
        to_pixels = Preprocess(channels, size, mean=(), std=(), bits=bits).pixels
    how: Any = {"workers": workers, "decode_errors": decode_errors}
    for chunk, chunk_indices in decode_chunks(images, to_pixels, chunk=CHUNK, **how):
        if pixels is None:
            pixels = torch.empty(len(images), *chunk.shape[1:], dtype=chunk.dtype)
        elif chunk.shape[1:] != pixels.shape[1:]:
            raise _mixed_sizes_error(images.name(indices[0]), pixels, images.name(chunk_indices[0]), chunk)
        if chunk.dtype != pixels.dtype:  # images of 8 and of 16 bits
            pixels, chunk = to_unit(pixels), to_unit(chunk)
        pixels[len(indices) : len(indices) + len(chunk_indices)] = chunk
        indices += chunk_indices
    if pixels is None:
        raise UserError(f"none of the {len(images)} images of {images.source} can be read")
    names = tuple(images.name(i) for i in indices)
    labels, groups = torch.from_numpy(images.labels[indices]), torch.from_numpy(images.groups[indices])
    multi = None if images.multi_labels is None else torch.from_numpy(images.multi_labels[indices])
    return MemoryImages(pixels[: len(indices)], labels, names, images.classes, groups, multi)


def decode_to_tensor(image: RawImage, *, channels: int, name: str, bits: int = 16) -> Real[Tensor, "C H W"]:
    """Decode one image to a tensor of its original size."""
    return to_tensor(decode(image, channels, bits=bits, name=name))


def decode_chunks(
    images: Images, to_pixels: Callable[..., Tensor], *, chunk: int, workers: int, decode_errors: DecodeErrors | None
) -> Iterator[tuple[Real[Tensor, "n C H W"], list[int]]]:
    """Yield (pixels, indices) of all readable images, `chunk` images at a time; `to_pixels(image, name=…)` decodes one
    image.
    """
    decode_errors = DecodeErrors() if decode_errors is None else decode_errors
    tasks = [range(start, min(start + chunk, len(images))) for start in range(0, len(images), chunk)]
    for pixels, indices, errors in parallel_map(_DecodeChunk(images, to_pixels), tasks, workers=workers):
        decode_errors.add(len(indices) + len(errors), errors)
        if pixels is not None:
            yield pixels, indices
    decode_errors.check()


@dataclass(frozen=True)
class _DecodeChunk:
    """Decode some images: indices → (pixels or None, indices of the readable images, errors)."""

    images: Images
    to_pixels: Callable[..., Tensor]

    def __call__(self, indices: range) -> tuple[Tensor | None, list[int], list[ImageDecodeError]]:
        tensors, readable, errors = [], [], []
        for index in indices:
            try:
                tensors.append(self.to_pixels(self.images.open(index), name=self.images.name(index)))
                readable.append(index)
            except ImageDecodeError as error:
                errors.append(error)
            # at once, because a chunk of huge images does not fit in memory
            if tensors and tensors[-1].shape != tensors[0].shape:
                names = self.images.name(readable[0]), self.images.name(index)
                raise _mixed_sizes_error(names[0], tensors[0], names[1], tensors[-1])
        return (torch.stack(same_form(tensors)) if tensors else None), readable, errors


def _mixed_sizes_error(name: str, image: Tensor, other_name: str, other: Tensor) -> MixedSizesError:
    (h, w), (H, W) = image.shape[-2:], other.shape[-2:]
    sizes = f"'{name}' has {w}×{h} pixels, '{other_name}' has {W}×{H}"
    return MixedSizesError(f"the images have several sizes: {sizes}; set size to resize all images")
