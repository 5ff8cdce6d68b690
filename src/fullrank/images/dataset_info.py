"""What a sample of the images says about all: number, sizes, channels and memory, from a few headers; how many bits
16-bit images use; mean and standard deviation of the pixels.
"""

from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Int64, Real
from torch import Tensor

from fullrank.errors import UserError
from fullrank.images.decode import RawImage, unnamed_bands, upright_size
from fullrank.images.decode_errors import Decoding, ImageDecodeError, convert_errors
from fullrank.images.load import MemoryImages, decode_chunks
from fullrank.images.pixel_values import to_16_bits
from fullrank.images.preprocess import Preprocess
from fullrank.images.source import Images

Size = tuple[int, int]  # width, height
GRAY_MODES = ("1", "L", "I", "F", "I;16", "I;16L", "I;16B", "I;16N")  # names of Pillow's grayscale modes
CHUNK = 512  # number of images in memory per histogram
LEVELS = 2**16  # of the histograms; a value of 8 bits is one of them as well
DEPTHS = (8, 10, 12, 14, 16)


@dataclass(frozen=True)
class DatasetInfo:
    """Number, sizes and channels of images. Sizes are (width, height); width and height are summarised independently.

    Attributes:
        count: Number of images in the source.
        channels: 1 if every sampled image is grayscale, else 3; if some have another number of bands, the most
            frequent number.
        minimum: Smallest width and height.
        median: Median width and height.
        maximum: Largest width and height.
        uniform: Whether all sampled images have the same size.
        bytes_in_memory: Size of all decoded images: exact if `uniform`, else at the median size.
        bytes_per_value: 1 for images of 8 bits; 4 if some have more, because their values are kept as floats.
        modes: Number of sampled images of each Pillow mode (`"L"`, `"RGB"`, …; an array has a mode such as
            `"uint8×5"`).
    """

    count: int
    channels: int
    minimum: Size
    median: Size
    maximum: Size
    uniform: bool
    bytes_in_memory: int
    modes: dict[str, int]
    bytes_per_value: int = 1


def dataset_info(images: Images, sample: int = 64) -> DatasetInfo:
    """Read the headers of `sample` images that are evenly spaced in the source.

    Raises:
        UserError: no image of the sample can be read.

    >>> from fullrank.images import open_images
    >>> dataset_info(open_images("digits")["all"]).bytes_in_memory == 1797 * 8 * 8
    True
    """
    headers: list[tuple[str, int, Size]] = []
    errors: list[ImageDecodeError] = []
    for index in evenly_spaced(len(images), sample):
        try:
            headers.append(_read_header(images.open(index), images.name(index)))
        except ImageDecodeError as error:
            errors.append(error)
    if not headers:
        raise UserError(f"none of {len(errors)} sampled images of {images.source} can be read: '{errors[0]}' …")
    modes, numbers, sizes = zip(*headers, strict=True)
    channels = max(numbers) if set(numbers) <= {1, 3} else max(set(numbers), key=numbers.count)
    minimum, median, maximum = (tuple(f(sizes, axis=0).astype(int).tolist()) for f in (np.min, np.median, np.max))
    bytes_per_value = 4 if any(mode.startswith(("I", "uint16", "float")) for mode in modes) else 1
    in_memory = len(images) * channels * median[0] * median[1] * bytes_per_value
    counts, uniform = {mode: modes.count(mode) for mode in sorted(set(modes))}, minimum == maximum
    return DatasetInfo(
        len(images), channels, minimum, median, maximum, uniform, in_memory, counts, bytes_per_value=bytes_per_value
    )


def fits(info: DatasetInfo, budget_bytes: int, *, size: int | None = None) -> bool:
    """Return whether all images fit in `budget_bytes`; with `size`, the images are first resized to `size`×`size`."""
    resized = info.count * info.channels * (size or 0) ** 2 * info.bytes_per_value
    return (resized if size else info.bytes_in_memory) <= budget_bytes


def evenly_spaced(count: int, sample: int) -> list[int]:
    """Return evenly spaced indices in `range(count)`: folders and tables are often sorted by class.

    >>> evenly_spaced(10, 4), evenly_spaced(3, 64)
    ([0, 3, 6, 9], [0, 1, 2])
    """
    return np.linspace(0, count - 1, min(count, sample)).round().astype(int).tolist()


def _read_header(image: RawImage, name: str) -> tuple[str, int, Size]:
    """Return the mode, the channels and the upright size of an image."""
    if isinstance(image, np.ndarray):
        if image.ndim not in (2, 3):
            raise ImageDecodeError(name, f"the array has shape {image.shape}, expected (H, W) or (H, W, C)")
        channels = image.shape[2] if image.ndim == 3 else 1
        return f"{image.dtype}×{channels}", channels, upright_size(image)
    with convert_errors(name):
        is_gray = image.mode in GRAY_MODES and not image.has_transparency_data  # transparent images may have colours
        return image.mode, unnamed_bands(image) or (1 if is_gray else 3), upright_size(image)


@dataclass(frozen=True)
class BitDepth:
    """The bits that the values of 16-bit images use, and lines for the user.

    Attributes:
        bits: 8, 10, 12, 14 or 16; 0 if the sample has no 16-bit images.
        notes: What was decided and what is lost.
    """

    bits: int
    notes: tuple[str, ...]


def find_bit_depth(images: Images, *, bits: int = 0, channels: int = 3, sample: int = 64) -> BitDepth:
    """Find how many bits the values of 16-bit images use: the smallest of 8, 10, 12, 14 and 16 that holds every value
    of the sample.

    All images of a data set have one scale, so that differences of brightness between images remain.

    Args:
        images: The images; 8-bit images are only opened, not decoded.
        bits: The user's choice; 0: the sample decides.
        channels: Channels to which the images will be decoded; with 1 or 3, a band of transparency is blended.
        sample: Number of images to look at, evenly spaced.

    >>> from fullrank.images import open_images
    >>> find_bit_depth(open_images("digits")["all"])
    BitDepth(bits=0, notes=())
    """
    largest, colours, blended, several = -1, 0, 0, 0
    for index in evenly_spaced(len(images), sample):
        with suppress(ImageDecodeError), convert_errors(images.name(index)):  # counted when the images are decoded
            image = images.open(index)
            several += getattr(image, "n_frames", 1) > 1
            if isinstance(image, np.ndarray):
                largest = max(largest, int(image.max())) if image.dtype == np.uint16 else largest
                continue
            is_tiff = image.format == "TIFF" and image.mode == "RGBA" and not unnamed_bands(image)
            blended += is_tiff and channels in (1, 3)
            if image.mode.startswith("I"):
                largest = max(largest, int(np.asarray(image).clip(0, 65535).max()))
            elif any(";16" in str(tile[3]) for tile in getattr(image, "tile", ())):  # what Pillow reads as 8 bits
                image.load()
                colours += 1
    found = 0 if largest < 0 else next(depth for depth in DEPTHS if largest < 2**depth)
    notes = {
        f"{several} of the sampled files hold several images, of which only the first is used": several,
        f"{blended} of the sampled TIFF files have four bands, the last of which is read as transparency "
        "(--data.channels 4 keeps it)": blended,
        f"warning: of {colours} of the sampled files with colours of 16 bits, Pillow reads the upper 8": colours,
        f"16-bit images up to {largest} are read as {found} bits (--data.bits 16: whole range)": found and not bits,
        f"warning: 16-bit images have values up to {largest}; larger ones than {2**bits - 1} become white "
        f"(--data.bits {found})": 0 < bits < found,
    }
    return BitDepth(found and (bits or found), tuple(note for note, holds in notes.items() if holds))


def channel_statistics(
    images: MemoryImages | Images, *, channels: int = 3, sample: int = 1000, decoding: Decoding | None = None
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the mean and the standard deviation of each channel, for pixels in [0, 1].

    The function counts the values, on 65536 levels, of all images in memory, or of `sample` evenly spaced images of a
    source. It decodes the sample to `channels`, gives large images more weight, skips unreadable images and records
    them in `decoding.errors`.

    Raises:
        UserError: too many images of the sample cannot be read.

    >>> from fullrank.images import load_images, open_images
    >>> mean, std = channel_statistics(load_images(open_images("digits")["all"], channels=1))
    >>> f"{mean[0]:.3f} {std[0]:.3f}"
    '0.305 0.376'
    """
    if isinstance(images, MemoryImages):
        chunks = iter(images.pixels.split(CHUNK))
    else:
        subset, decoding = images.subset(evenly_spaced(len(images), sample)), decoding or Decoding()
        whole = Preprocess(channels, size=0, mean=(), std=(), bits=decoding.bits)
        chunks = (pixels for pixels, _ in decode_chunks(subset, whole, chunk=1, decoding=decoding))
    histogram = torch.as_tensor(sum(map(_histogram, chunks)))
    values = torch.arange(LEVELS, dtype=torch.float64) / (LEVELS - 1)
    weights = histogram.double() / histogram.sum(dim=1, keepdim=True)  # (C, levels)
    mean = weights @ values
    variance = (weights * (values - mean[:, None]) ** 2).sum(dim=1)
    return tuple(mean.tolist()), tuple(variance.sqrt().tolist())


def _histogram(pixels: Real[Tensor, "n C H W"]) -> Int64[Tensor, "C levels"]:
    """Return how often each level occurs in each channel."""
    bands = to_16_bits(pixels).int().unbind(dim=1)
    return torch.stack([band.flatten().bincount(minlength=LEVELS) for band in bands]).cpu()
