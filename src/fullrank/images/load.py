"""Decode the images of a source: in batches for evaluation and embedding, or into one tensor in memory."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Int8, Int64, Real
from torch import Tensor

from fullrank.errors import UserError
from fullrank.images.decode_errors import Decoding, ImageDecodeError
from fullrank.images.parallel import parallel_map
from fullrank.images.preprocess import Preprocess, same_form
from fullrank.images.source import Images

CHUNK = 512  # number of images per task of a worker in `load_images`


class MixedSizesError(UserError):
    """The images have several sizes, so that they do not fit into one tensor unless they are resized."""


@dataclass(eq=False)
class MemoryImages:
    """Decoded images: all readable images of a source, or a batch of them.

    Pixels are uint8, or float32 in [0, 1] if some images have more than 8 bits.

    Attributes:
        labels: -1 means no label.
        groups: On the CPU; -1 means no group. None: no image has a group.
        multi_labels: Several labels per image, on the CPU, see `Images.multi_labels`; None for one label per image.
        indices: Which images of the source these are. None: all, in their order.
    """

    pixels: Real[Tensor, "n C H W"]
    labels: Int64[Tensor, " n"]
    names: tuple[str, ...]
    classes: tuple[str, ...] = ()
    groups: Int64[Tensor, " n"] = None  # pyright: ignore[reportAssignmentType]
    multi_labels: Int8[Tensor, "n K"] | None = None
    indices: Int64[Tensor, " n"] = None  # pyright: ignore[reportAssignmentType]

    def __post_init__(self) -> None:
        self.groups = torch.full((len(self),), -1) if self.groups is None else self.groups
        self.indices = torch.arange(len(self)) if self.indices is None else self.indices

    def __len__(self) -> int:
        return len(self.pixels)

    def subset(self, rows: Sequence[int] | np.ndarray) -> "MemoryImages":
        """Return the images at `rows`, in that order."""
        on_host = torch.as_tensor(np.asarray(rows, dtype=np.int64))
        index = on_host.to(self.pixels.device)
        several = None if self.multi_labels is None else self.multi_labels[on_host]
        kept = {"names": tuple(self.names[row] for row in rows), "groups": self.groups[on_host], "indices": on_host}
        return replace(self, pixels=self.pixels[index], labels=self.labels[index], multi_labels=several, **kept)

    def class_texts(self, names: Sequence[str] = ()) -> list[str | None]:
        """Return the class of each image, or its classes ("cat|dog"), by name or else by number; None: no label."""
        known, Y = dict(enumerate(names)), self.multi_labels
        cells = [[k] if k >= 0 else None for k in self.labels.tolist()]
        cells = cells if Y is None else [None if row[0] < 0 else row.nonzero().flatten().tolist() for row in Y]
        return [None if cell is None else "|".join(known.get(k, str(k)) for k in cell) for cell in cells]

    def to(self, device: torch.device | str) -> "MemoryImages":
        """Return the images with pixels and labels on a device; what nothing there needs stays on the host."""
        return replace(self, pixels=self.pixels.to(device), labels=self.labels.to(device))


AnyImages = Images | MemoryImages


def _with_pixels(images: Images, indices: list[int], pixels: Tensor) -> MemoryImages:
    """Return some of the images of a source, given their pixels."""
    labels, groups = torch.from_numpy(images.labels[indices]), torch.from_numpy(images.groups[indices])
    several = None if images.multi_labels is None else torch.from_numpy(images.multi_labels[indices])
    names = tuple(map(images.name, indices))
    return MemoryImages(pixels, labels, names, images.classes, groups, several, torch.tensor(indices))


def iterate_batches(
    images: Images, preprocess: Preprocess, *, batch_size: int = 256, decoding: Decoding | None = None
) -> Iterator[MemoryImages]:
    """Yield all readable images in order. A batch with unreadable images is shorter, and may be missing.

    Args:
        images: The images.
        preprocess: Resizes all images to one size.
        batch_size: Images per batch.
        decoding: In how many processes, and what becomes of unreadable images.

    Raises:
        MixedSizesError: `preprocess` keeps the sizes, and the images of a batch have several.
        UserError: too many images are unreadable, or their channels cannot be converted.

    >>> from fullrank.images import open_images
    >>> digits = open_images("digits")["all"]
    >>> [len(batch) for batch in iterate_batches(digits, Preprocess(1, 8, (0.3,), (0.4,)), batch_size=1000)]
    [1000, 797]
    """
    decoding = decoding or Decoding()
    tasks = [range(start, min(start + batch_size, len(images))) for start in range(0, len(images), batch_size)]
    for pixels, indices, errors in parallel_map(_DecodeBatch(images, preprocess), tasks, workers=decoding.workers):
        decoding.errors.add(len(indices) + len(errors), errors)
        if pixels is not None:
            yield _with_pixels(images, indices, pixels)
    decoding.errors.check()


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
    decoding = decoding or Decoding()
    return load_preprocessed(images, Preprocess(channels, size or 0, mean=(), std=(), bits=decoding.bits), decoding)


def load_preprocessed(images: Images, preprocess: Preprocess, decoding: Decoding) -> MemoryImages:
    """Decode, resize and crop all images into one tensor; see `load_images`."""
    pixels, indices = None, []
    for batch in iterate_batches(images, preprocess, batch_size=CHUNK, decoding=decoding):
        if pixels is None:
            pixels = torch.empty(len(images), *batch.pixels.shape[1:], dtype=batch.pixels.dtype)
        elif batch.pixels.shape[1:] != pixels.shape[1:]:
            raise _mixed_sizes_error(images.name(indices[0]), pixels, batch.names[0], batch.pixels)
        pixels, some = same_form([pixels, batch.pixels])
        pixels[len(indices) : len(indices) + len(batch)] = some
        indices += batch.indices.tolist()
    if pixels is None:
        raise UserError(f"none of the {len(images)} images of {images.source} can be read")
    return _with_pixels(images, indices, pixels[: len(indices)])


@dataclass(frozen=True)
class _DecodeBatch:
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
