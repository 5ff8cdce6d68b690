"""How many bits the values of 16-bit images use: a 12-bit camera stores 0…4095 in 16 bits, which would leave 16 of 256 grey levels."""

from dataclasses import dataclass

import numpy as np
from PIL import Image

from fullrank.images.dataset_info import evenly_spaced
from fullrank.images.decode import scale_to_uint8, unnamed_bands
from fullrank.images.decode_errors import ImageDecodeError, convert_errors
from fullrank.images.source import Images, RawImage

DEPTHS = (8, 10, 12, 14, 16)
FEW_LEVELS = 32


@dataclass(frozen=True)
class BitDepth:
    """The bits that the values of 16-bit images use, and lines for the user.

    Attributes:
        bits: 8, 10, 12, 14 or 16; 0 if the sample has no 16-bit images.
        notes: What was decided and what is lost.
    """

    bits: int
    notes: tuple[str, ...]


def find_bit_depth(images: Images, *, bits: int = 0, sample: int = 64) -> BitDepth:
    """Find how many bits the values of 16-bit images use: the smallest of 8, 10, 12, 14 and 16 that holds every value of the sample.

    All images of a data set have one scale, so that differences of brightness between images remain.

    Args:
        images: The images; 8-bit images are only opened, not decoded.
        bits: The user's choice; 0 decides from the sample.
        sample: Number of images to look at, evenly spaced.

    >>> from fullrank.images import open_images
    >>> find_bit_depth(open_images("digits")["all"])
    BitDepth(bits=0, notes=())
    """
    values, deep, blended = np.zeros(2**16, dtype=bool), 0, 0
    for index in evenly_spaced(len(images), sample):
        name = images.name(index)
        try:
            image = images.open(index)
            with convert_errors(name):
                blended += _is_tiff_with_transparency(image)
                pixels = _values_of_16_bits(image)
        except ImageDecodeError:  # counted when the images are decoded
            continue
        if pixels is not None:
            deep += 1
            values[np.unique(pixels)] = True
    notes = []
    if blended:
        notes.append(
            f"{blended} of the sampled TIFF files have four bands, the last of which is read as transparency and blended with white "
            "(--data.channels 4 keeps it as a band)"
        )
    if not deep:
        return BitDepth(0, tuple(notes))
    present = np.flatnonzero(values)
    found = next(depth for depth in DEPTHS if present[-1] < 2**depth)
    if not bits:
        notes.append(f"16-bit images with values up to {present[-1]} are read as {found} bits (--data.bits 16 for the whole range)")
    levels = len(np.unique(scale_to_uint8(present, bits or found)))
    if levels < FEW_LEVELS:
        notes.append(f"warning: only {levels} grey levels remain of the sampled 16-bit images; set --data.bits, or store 8-bit images")
    return BitDepth(bits or found, tuple(notes))


def _values_of_16_bits(image: RawImage) -> np.ndarray | None:
    """Return the values of a 16-bit image, or None. Of colours, Pillow reads only the upper 8 of 16 bits: they are returned as x·256."""
    if isinstance(image, np.ndarray):
        return image if image.dtype == np.uint16 else None
    if image.mode.startswith("I"):
        image.load()
        return np.asarray(image).astype(np.int64).clip(0, 65535)
    raw_modes = [argument for tile in getattr(image, "tile", ()) for argument in np.atleast_1d(np.array(tile[3], dtype=object))[:1]]
    if any(isinstance(mode, str) and ";16" in mode for mode in raw_modes):
        image.load()
        return np.asarray(image).astype(np.int64) * 257
    return None


def _is_tiff_with_transparency(image: RawImage) -> bool:
    return isinstance(image, Image.Image) and image.format == "TIFF" and image.mode == "RGBA" and not unnamed_bands(image)
