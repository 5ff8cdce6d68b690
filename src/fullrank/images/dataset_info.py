"""What a sample of the images says about all: number, sizes, channels and memory, from a few headers; how many bits
16-bit images use; mean and standard deviation of the pixels; the fingerprint, by which a resumed run knows its images.
"""

import hashlib
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Int64, Real
from torch import Tensor

from fullrank.config import config
from fullrank.errors import UserError
from fullrank.images.decode import RawImage, unnamed_bands, upright_size
from fullrank.images.decode_errors import Decoding, ImageDecodeError, convert_errors
from fullrank.images.load import MemoryImages, iterate_batches
from fullrank.images.preprocess import Preprocess, to_16_bits
from fullrank.images.source import Images

Size = tuple[int, int]  # width, height
GRAY_MODES = ("1", "L", "I", "F", "I;16", "I;16L", "I;16B", "I;16N")  # names of Pillow's grayscale modes
CHUNK = 512  # number of images in memory per histogram
LEVELS = 2**16  # of the histograms; a value of 8 bits is one of them as well
DEPTHS = (8, 10, 12, 14, 16)
COMPARED = 128  # number of images whose content is in a fingerprint, evenly spaced


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
        bytes_per_value: 1 for images of 8 bits; 4 if some have more, because their values are kept as floats.
    """

    count: int
    channels: int
    minimum: Size
    median: Size
    maximum: Size
    bytes_per_value: int = 1

    @property
    def uniform(self) -> bool:
        """Whether all sampled images have the same size."""
        return self.minimum == self.maximum

    def bytes_in_memory(self, size: int = 0) -> int:
        """Return the bytes of all decoded images, resized to `size`×`size`, or with 0 at the median size."""
        width, height = (size, size) if size else self.median
        return self.count * self.channels * width * height * self.bytes_per_value


def dataset_info(images: Images, sample: int = 64) -> DatasetInfo:
    """Read the headers of `sample` images that are evenly spaced in the source.

    Raises:
        UserError: no image of the sample can be read.

    >>> from fullrank.images import open_images
    >>> dataset_info(open_images("digits")["all"]).bytes_in_memory() == 1797 * 8 * 8
    True
    """
    headers: list[tuple[bool, int, Size]] = []
    errors: list[ImageDecodeError] = []
    for index in evenly_spaced(len(images), sample):
        try:
            headers.append(_read_header(images.open(index), images.name(index)))
        except ImageDecodeError as error:
            errors.append(error)
    if not headers:
        raise UserError(f"none of {len(errors)} sampled images of {images.source} can be read: '{errors[0]}' …")
    deep, numbers, sizes = zip(*headers, strict=True)
    channels = max(numbers) if set(numbers) <= {1, 3} else max(set(numbers), key=numbers.count)
    minimum, median, maximum = (tuple(f(sizes, axis=0).astype(int).tolist()) for f in (np.min, np.median, np.max))
    return DatasetInfo(len(images), channels, minimum, median, maximum, bytes_per_value=4 if any(deep) else 1)


def evenly_spaced(count: int, sample: int) -> list[int]:
    """Return evenly spaced indices in `range(count)`: folders and tables are often sorted by class.

    >>> evenly_spaced(10, 4), evenly_spaced(3, 64)
    ([0, 3, 6, 9], [0, 1, 2])
    """
    return np.linspace(0, count - 1, min(count, sample)).round().astype(int).tolist()


def _read_header(image: RawImage, name: str) -> tuple[bool, int, Size]:
    """Return whether an image has more than 8 bits, its channels and its upright size."""
    if isinstance(image, np.ndarray):
        return image.dtype != np.uint8, image.shape[2] if image.ndim == 3 else 1, upright_size(image)
    with convert_errors(name):
        is_gray = image.mode in GRAY_MODES and not image.has_transparency_data  # transparent images may have colours
        return image.mode.startswith("I"), unnamed_bands(image) or (1 if is_gray else 3), upright_size(image)


class BitDepth(NamedTuple):
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
        UserError: too many images of the sample cannot be read, or all of them.

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
        chunks = (batch.pixels for batch in iterate_batches(subset, whole, batch_size=1, decoding=decoding))
    histogram = sum(map(_histogram, chunks), torch.zeros(1, LEVELS, dtype=torch.int64))
    if not histogram.any():
        raise UserError("none of the sampled images can be read, so their mean and standard deviation are unknown")
    values = torch.arange(LEVELS, dtype=torch.float64) / (LEVELS - 1)
    weights = histogram.double() / histogram.sum(dim=1, keepdim=True)  # (C, levels)
    mean = weights @ values
    variance = (weights * (values - mean[:, None]) ** 2).sum(dim=1)
    return tuple(mean.tolist()), tuple(variance.sqrt().tolist())


def _histogram(pixels: Real[Tensor, "n C H W"]) -> Int64[Tensor, "C levels"]:
    """Return how often each level occurs in each channel."""
    bands = to_16_bits(pixels).int().unbind(dim=1)
    return torch.stack([band.flatten().bincount(minlength=LEVELS) for band in bands]).cpu()


@config
class Fingerprint:
    """What a run remembers of its training images.

    Attributes:
        count: Number of images.
        digest: Hash of the names, the labels, the groups and the classes, and of the content of `COMPARED` images: of
            the pixels in memory, or of the files on disk; without content if it differs at each access.
    """

    count: int
    digest: str

    @classmethod
    def of(cls, images: Images | MemoryImages) -> "Fingerprint":
        """Compute the fingerprint of images.

        >>> from fullrank.images import load_images, open_images
        >>> Fingerprint.of(load_images(open_images("digits")["all"], channels=1)).count
        1797
        """
        digest = hashlib.sha256(f"{images.classes}\0".encode(errors="surrogateescape"))
        digest.update(np.asarray(images.labels, dtype=np.int64).tobytes())
        for several in (images.multi_labels, images.groups):
            digest.update(np.asarray(several).tobytes() if several is not None and (several >= 0).any() else b"")
        in_memory = isinstance(images, MemoryImages)
        for name in images.names if in_memory else map(images.name, range(len(images))):
            digest.update(name.encode(errors="surrogateescape") + b"\0")
        for index in () if is_random(images) else evenly_spaced(len(images), COMPARED):
            digest.update(images.pixels[index].cpu().numpy().tobytes() if in_memory else _content(images, index))
        return cls(count=len(images), digest=digest.hexdigest()[:16])

    def changes(self, found: "Fingerprint") -> list[str]:
        """Return what differs from the fingerprint of the images now: one sentence, or nothing."""
        if found.count != self.count:
            return [f"{self.count:,} images are now {found.count:,}"]
        return [] if found == self else ["names, labels, groups or contents differ, or their place: memory or disk"]


def is_random(images: Any) -> bool:
    """Return whether the pixels of an image differ at a second access, as those of a torch data set with random
    transforms.
    """
    items = getattr(getattr(images, "rows", None), "items", None)
    count = COMPARED if isinstance(items, torch.utils.data.Dataset) else 0
    return any(_content(images, k) != _content(images, k) for k in evenly_spaced(len(images), count))


def _content(images: Images, index: int) -> bytes:
    """Return the content of the image file, which is not decoded, or the pixels if there is no file."""
    try:
        image = images.open(index)
    except (ImageDecodeError, OSError, ValueError):
        return b"unreadable"
    if (file := getattr(image, "fp", None)) is None:
        return np.ascontiguousarray(np.asarray(image)).tobytes()
    file.seek(0)
    return file.read()
