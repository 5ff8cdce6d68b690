"""How many bits the values of 16-bit images use: a 12-bit camera stores 0…4095 in 16 bits, which would be nearly
black.
"""

from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from PIL import Image

from fullrank.images.dataset_info import evenly_spaced
from fullrank.images.decode import RawImage, unnamed_bands
from fullrank.images.decode_errors import ImageDecodeError, convert_errors, count_frames
from fullrank.images.source import Images

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
    values, levels, colours, blended, several = np.zeros(2**16, dtype=bool), set(), 0, 0, 0
    for index in evenly_spaced(len(images), sample):
        with suppress(ImageDecodeError):  # counted when the images are decoded
            image = images.open(index)
            with convert_errors(images.name(index)):
                several += count_frames(image) > 1
                blended += channels in (1, 3) and _is_tiff_with_transparency(image)
                pixels = _values_of_16_bits(image)
                if pixels is not None:
                    values[np.unique(pixels)] = True
                elif _has_reduced_colours(image):
                    colours += 1
                    levels.update(np.unique(np.asarray(image)).tolist())
    few = f"; they have only {len(levels)} levels" if len(levels) < FEW_LEVELS else ""
    largest = int(np.flatnonzero(values)[-1]) if values.any() else 0
    found = next(depth for depth in DEPTHS if largest < 2**depth) if values.any() else 0
    notes = (
        (several, f"{several} of the sampled files hold several images, of which only the first is used"),
        (
            blended,
            f"{blended} of the sampled TIFF files have four bands, the last of which is read as transparency and "
            "blended with white (--data.channels 4 keeps it as a band)",
        ),
        (
            colours,
            f"warning: {colours} of the sampled files have colours of 16 bits, of which Pillow reads the upper 8{few}; "
            "to keep 16 bits, store .npy (H, W, 3)",
        ),
        (
            found and not bits,
            f"16-bit images with values up to {largest} are read as {found} bits (--data.bits 16 for the whole range)",
        ),
        (
            0 < bits < found,
            f"warning: 16-bit images have values up to {largest}; those above {2**bits - 1} become white "
            f"(--data.bits {found})",
        ),
    )
    return BitDepth(found and (bits or found), tuple(note for holds, note in notes if holds))


def _values_of_16_bits(image: RawImage) -> np.ndarray | None:
    """Return the values of a 16-bit image, or None."""
    if isinstance(image, np.ndarray):
        return image if image.dtype == np.uint16 else None
    if not image.mode.startswith("I"):
        return None
    image.load()
    return np.asarray(image).clip(0, 65535).astype(np.int64)


def _has_reduced_colours(image: RawImage) -> bool:
    """Return whether a file has colours of 16 bits, of which Pillow reads the upper 8; such an image is loaded."""
    tiles = getattr(image, "tile", ())
    raw_modes = [argument for tile in tiles for argument in np.atleast_1d(np.array(tile[3], dtype=object))[:1]]
    if not isinstance(image, Image.Image) or not any(isinstance(mode, str) and ";16" in mode for mode in raw_modes):
        return False
    image.load()
    return True


def _is_tiff_with_transparency(image: RawImage) -> bool:
    return (
        isinstance(image, Image.Image) and image.format == "TIFF" and image.mode == "RGBA" and not unnamed_bands(image)
    )
