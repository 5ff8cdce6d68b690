"""Decode all images of a source: in batches for evaluation and embedding, or into one tensor in memory."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Int8, Int64, Real
from torch import Tensor

from fullrank.errors import UserError
from fullrank.images.decode_errors import Decoding, ImageDecodeError
from fullrank.images.parallel import parallel_map
from fullrank.images.pixel_values import same_form, to_unit
from fullrank.images.preprocess import Preprocess
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
    images: Images, preprocess: Preprocess, *, batch_size: int = 256, decoding: Decoding | None = None
) -> Iterator[Batch]:
    """Yield all readable images in order. A batch with unreadable images is shorter.

    Args:
        images: The images.
        preprocess: Resizes all images to one size.
        batch_size: Images per batch.
        decoding: In how many processes, and what becomes of unreadable images.

    Raises:
        UserError: too many images are unreadable, or their channels cannot be converted.

    >>> from fullrank.images import open_images
    >>> digits = open_images("digits")["all"]
    >>> [len(batch.pixels) for batch in iterate_batches(digits, Preprocess(1, 8, (0.3,), (0.4,)), batch_size=1000)]
    [1000, 797]
    """
    for pixels, indices in decode_chunks(images, preprocess, chunk=batch_size, decoding=decoding):
        labels, names = torch.from_numpy(images.labels[indices]), [images.name(i) for i in indices]
        yield Batch(pixels, labels, names, torch.tensor(indices))


def load_images(
    images: Images, *, channels: int, size: int | None = None, decoding: Decoding | None = None
) -> MemoryImages:
    """Decode all images into one tensor; unreadable images are skipped and recorded.

    Args:
        images: The images.
        channels: 1 for grayscale, 3 for RGB; with any other number, the files must have that number of channels.
        size: Resize the shorter side to `size` and crop the centre, as `Preprocess` does; with None, all images must
            have the same size.
        decoding: In how many processes, with how many bits, and what becomes of unreadable images.

    Raises:
        MixedSizesError: the images have several sizes and `size` is None.
        UserError: too many images are unreadable, or their channels cannot be converted.

    >>> from fullrank.images import open_images
    >>> load_images(open_images("digits")["all"], channels=1).pixels.shape
    torch.Size([1797, 1, 8, 8])
    """
    pixels, indices, decoding = None, [], decoding or Decoding()
    preprocess = Preprocess(channels, size or 0, mean=(), std=(), bits=decoding.bits)
    for chunk, chunk_indices in decode_chunks(images, preprocess, chunk=CHUNK, decoding=decoding):
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


def decode_chunks(
    images: Images, preprocess: Preprocess, *, chunk: int, decoding: Decoding | None
) -> Iterator[tuple[Real[Tensor, "n C H W"], list[int]]]:
    """Yield (pixels, indices) of all readable images, `chunk` images at a time."""
    decoding = decoding or Decoding()
    tasks = [range(start, min(start + chunk, len(images))) for start in range(0, len(images), chunk)]
    for pixels, indices, errors in parallel_map(_DecodeChunk(images, preprocess), tasks, workers=decoding.workers):
        decoding.errors.add(len(indices) + len(errors), errors)
        if pixels is not None:
            yield pixels, indices
    decoding.errors.check()


@dataclass(frozen=True)
class _DecodeChunk:
    """Decode some images: indices → (pixels or None, indices of the readable images, errors)."""

    images: Images
    preprocess: Preprocess

    def __call__(self, indices: range) -> tuple[Tensor | None, list[int], list[ImageDecodeError]]:
        tensors, readable, errors = [], [], []
        for index in indices:
            try:
                tensors.append(self.preprocess.pixels(self.images.open(index), name=self.images.name(index)))
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
