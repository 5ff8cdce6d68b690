"""Images one after the other in batches of 8-bit pixels, for evaluation and embedding."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from fullrank.errors import UserError
from fullrank.images.decode_error import ImageDecodeError
from fullrank.images.decode_errors import DecodeErrors
from fullrank.images.parallel import parallel
from fullrank.images.preprocess import Preprocess
from fullrank.images.source import Images


@dataclass(frozen=True)
class Batch:
    """Readable images: what they look like, what they are, and where they stand in the source."""

    pixels: UInt8[Tensor, "n C H W"]
    labels: Int64[Tensor, " n"]
    names: list[str]
    indices: Int64[Tensor, " n"]


def iterate(
    images: Images, preprocess: Preprocess, *, batch: int = 256, workers: int = 0, decode_errors: DecodeErrors | None = None
) -> Iterator[Batch]:
    """Yield all readable images in order; a batch is shorter by those of its images that could not be read.

    Args:
        images: Where from.
        preprocess: Makes all images of one size.
        batch: Images a batch.
        workers: Processes that decode; 0 is this one.
        decode_errors: Records what could not be read; by default a new one, which stops past a tenth.

    Raises:
        UserError: too many unreadable images, or channels that cannot be converted.

    >>> from fullrank.images import open_images
    >>> digits = open_images("digits")["all"]
    >>> [len(batch.pixels) for batch in iterate(digits, Preprocess(1, 8, (0.3,), (0.4,)), batch=1000)]
    [1000, 797]
    """
    for pixels, rows in chunks(images, preprocess.pixels, chunk=batch, workers=workers, decode_errors=decode_errors):
        indices = torch.tensor(rows)
        yield Batch(pixels, torch.from_numpy(images.labels[rows]), [images.name(row) for row in rows], indices)


def chunks(
    images: Images, pixels: Callable[..., UInt8[Tensor, "C H W"]], *, chunk: int, workers: int, decode_errors: DecodeErrors | None
) -> Iterator[tuple[UInt8[Tensor, "n C H W"], list[int]]]:
    """Yield the pixels of all readable images with their indices, `chunk` images at a time; `pixels(image, name=…)` decodes one."""
    decode_errors = DecodeErrors() if decode_errors is None else decode_errors
    tasks = [range(start, min(start + chunk, len(images))) for start in range(0, len(images), chunk)]
    for result in parallel(_Decode(images, pixels), tasks, workers=workers):
        decode_errors.add(len(result.rows) + len(result.failures), result.failures)
        if result.pixels is not None:
            yield result.pixels, result.rows
    decode_errors.finish()


class _Decoded(NamedTuple):
    pixels: Tensor | None  # None if there is no readable image
    rows: list[int]
    failures: list[ImageDecodeError]


@dataclass(frozen=True)
class _Decode:
    images: Images
    pixels: Callable[..., Tensor]

    def __call__(self, rows: range) -> _Decoded:
        tensors, readable, failures = [], [], []
        for row in rows:
            try:
                name = self.images.name(row)
                tensors.append(self.pixels(self.images.open(row), name=name))
                readable.append(row)
            except ImageDecodeError as bad:
                failures.append(bad)
        for tensor, row in zip(tensors, readable, strict=True):
            if tensor.shape != tensors[0].shape:
                raise mixed_sizes(self.images.name(readable[0]), tensors[0], self.images.name(row), tensor)
        return _Decoded(torch.stack(tensors) if tensors else None, readable, failures)


def mixed_sizes(name: str, image: Tensor, other: str, unlike: Tensor) -> UserError:
    """Say that two images cannot lie in one tensor."""
    height, width = image.shape[-2:]
    return UserError(
        f"images of several sizes: '{name}' has {width}×{height} pixels, '{other}' {unlike.shape[-1]}×{unlike.shape[-2]}; "
        "give a size, to which all of them are resized"
    )
