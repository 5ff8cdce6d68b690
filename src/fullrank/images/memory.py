"""A whole set of images as one tensor of bytes."""

from dataclasses import dataclass, replace
from functools import partial

import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from fullrank.errors import UserError
from fullrank.images.decode import decode
from fullrank.images.decode_errors import DecodeErrors
from fullrank.images.iterate import chunks, mixed_sizes
from fullrank.images.preprocess import Preprocess, to_tensor
from fullrank.images.source import Images, Picture

CHUNK = 512  # images that a worker decodes at a time


@dataclass(frozen=True)
class MemoryImages:
    """All readable images of a source, decoded; a label of -1 means none."""

    pixels: UInt8[Tensor, "n C H W"]
    labels: Int64[Tensor, " n"]
    names: tuple[str, ...]
    classes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.pixels)

    def to(self, device: torch.device | str) -> "MemoryImages":
        return replace(self, pixels=self.pixels.to(device), labels=self.labels.to(device))


def load(
    images: Images, *, channels: int, size: int | None = None, workers: int = 0, decode_errors: DecodeErrors | None = None
) -> MemoryImages:
    """Decode all images into one tensor; those that cannot be read are left out and recorded.

    Args:
        images: Where from.
        channels: 1 is grey, 3 is colour; any other number must be that of the files.
        size: Shorter side to `size` and centre crop, as `Preprocess` does; None keeps the pixels, which must be of one size then.
        workers: Processes that decode; 0 is this one.
        decode_errors: Records what could not be read; by default a new one, which stops past a tenth.

    Raises:
        UserError: several sizes and no `size`, too many unreadable images, or channels that cannot be converted.

    >>> from fullrank.images import open_images
    >>> load(open_images("digits")["all"], channels=1).pixels.shape
    torch.Size([1797, 1, 8, 8])
    """
    pixels, kept = None, []
    one = partial(_whole, channels=channels) if size is None else Preprocess(channels, size, mean=(), std=()).pixels
    for part, rows in chunks(images, one, chunk=CHUNK, workers=workers, decode_errors=decode_errors):
        if pixels is None:
            pixels = torch.empty(len(images), *part.shape[1:], dtype=torch.uint8)
        elif part.shape[1:] != pixels.shape[1:]:
            raise mixed_sizes(images.name(kept[0]), pixels, images.name(rows[0]), part)
        pixels[len(kept) : len(kept) + len(rows)] = part
        kept += rows
    if pixels is None:
        raise UserError(f"none of the {len(images)} images of {images.source} can be read")
    names = tuple(images.name(row) for row in kept)
    return MemoryImages(pixels[: len(kept)], torch.from_numpy(images.labels[kept]), names, images.classes)


def _whole(image: Picture, *, channels: int, name: str) -> UInt8[Tensor, "C H W"]:
    return to_tensor(decode(image, channels, name=name))
