"""Mean and standard deviation of the pixels of each channel."""

from collections.abc import Iterator

import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from fullrank.images.dataset_info import evenly
from fullrank.images.decode import decode
from fullrank.images.decode_error import ImageDecodeError
from fullrank.images.decode_errors import DecodeErrors
from fullrank.images.memory import MemoryImages
from fullrank.images.preprocess import to_tensor
from fullrank.images.source import Images

CHUNK = 4096  # images in memory that are counted at a time


def channel_statistics(
    images: MemoryImages | Images, *, channels: int = 3, sample: int = 1000, decode_errors: DecodeErrors | None = None
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the mean and the standard deviation of each channel, for pixels in [0, 1].

    Exact, from a histogram of the 256 values: all pixels of images in memory, or those of `sample` images that lie evenly in a
    source (decoded to `channels`; large images weigh more; unreadable ones are left out and recorded in `decode_errors`).

    Raises:
        UserError: too many images of the sample cannot be read.

    >>> from fullrank.images import load, open_images
    >>> mean, std = channel_statistics(load(open_images("digits")["all"], channels=1))
    >>> f"{mean[0]:.3f} {std[0]:.3f}"
    '0.305 0.376'
    """
    parts = images.pixels.split(CHUNK) if isinstance(images, MemoryImages) else _sample(images, channels, sample, decode_errors)
    histogram = sum(map(_histogram, parts), torch.zeros((), dtype=torch.int64))
    assert histogram.ndim, "an empty source was opened"
    values = torch.arange(256, dtype=torch.float64) / 255
    weights = histogram.double() / histogram.sum(dim=1, keepdim=True)  # (C, 256)
    mean = weights @ values
    variance = (weights * (values - mean[:, None]) ** 2).sum(dim=1)
    return tuple(mean.tolist()), tuple(variance.sqrt().tolist())


def _sample(images: Images, channels: int, sample: int, decode_errors: DecodeErrors | None) -> Iterator[UInt8[Tensor, "n C H W"]]:
    decode_errors = DecodeErrors() if decode_errors is None else decode_errors
    for index in evenly(len(images), sample):
        name = images.name(index)
        try:
            pixels = to_tensor(decode(images.open(index), channels, name=name))
        except ImageDecodeError as bad:
            decode_errors.add(1, [bad])
        else:
            decode_errors.add(1)
            yield pixels[None]
    decode_errors.finish()


def _histogram(pixels: UInt8[Tensor, "n C H W"]) -> Int64[Tensor, "C 256"]:
    return torch.stack([band.flatten().bincount(minlength=256) for band in pixels.unbind(dim=1)]).cpu()
