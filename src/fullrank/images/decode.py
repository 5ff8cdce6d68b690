"""Decode any image file to pixels of 8 bits, or of 16 bits as floats, with a given number of channels."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import numpy as np
from jaxtyping import Real
from PIL import ExifTags, Image, ImageOps, TiffImagePlugin, UnidentifiedImageError

from fullrank.errors import UserError
from fullrank.images import formats
from fullrank.images.decode_errors import ImageDecodeError, convert_errors
from fullrank.images.reading import MAX_PIXELS

# A Pillow image, or an array (H, W, C).
RawImage = Image.Image | np.ndarray
# uint8, or float32 in [0, 1] for images of more than 8 bits.
Pixels = Real[np.ndarray, "H W C"]

ROUNDING = 1e-6  # resized floats may exceed 1 by the rounding of float32
LUMA = np.array([0.299, 0.587, 0.114], dtype=np.float32)  # ITU-R 601, as in Pillow's conversion to mode L
# Pillow recognises a file by its content. Other formats are refused; to read EPS, for example, Pillow would run
# Ghostscript.
FORMATS = ("JPEG", "MPO", "PNG", "BMP", "DIB", "GIF", "WEBP", "AVIF", "TIFF", "PPM")


def open_bytes(data: bytes, name: str, *, max_pixels: int = MAX_PIXELS) -> RawImage:
    """Open the content of an image file, or of a `.npy` file with an array `(H, W)` or `(H, W, C)`.

    Raises:
        ImageDecodeError: the content is neither an image nor an array, or it has more than `max_pixels` pixels.
    """
    with convert_errors(name):
        if not data:
            raise ImageDecodeError(name, "the file is empty")
        if formats.is_dicom(data):
            return formats.read_dicom(data, name, max_pixels)
        if data.startswith(formats.NUMPY_MAGIC):
            return formats.read_array(data, name, max_pixels)
        try:
            with _pillow_allows(max_pixels):  # from memory, because Pillow would not close the file of a path
                image = Image.open(io.BytesIO(data), formats=_formats())
        except UnidentifiedImageError:
            if not (data.startswith(formats.TIFF_MAGIC) and formats.has_tifffile()):
                raise
            return formats.read_bands(data, name, max_pixels)
        if unnamed_bands(image) > len(image.getbands()) and formats.has_tifffile():
            return formats.read_bands(data, name, max_pixels)
        formats.check_pixels(name, *image.size, max_pixels)
        return image


@cache
def _formats() -> tuple[str, ...]:
    """Return the formats that this Pillow can read; AVIF is missing in some builds."""
    Image.init()
    return tuple(name for name in FORMATS if name in Image.OPEN)


@contextmanager
def _pillow_allows(max_pixels: int) -> Iterator[None]:
    """Raise Pillow's own limit inside the context, if `max_pixels` is larger."""
    limit = Image.MAX_IMAGE_PIXELS
    Image.MAX_IMAGE_PIXELS = limit and max(limit, max_pixels)
    try:
        yield
    finally:
        Image.MAX_IMAGE_PIXELS = limit


def decode(
    image: RawImage, channels: int, *, bits: int = 16, min_size: tuple[int, int] | None = None, name: str = "image"
) -> RawImage:
    """Decode an opened image to `channels` channels, upright, keeping the bits of its values.

    An image with 8 bits and 1 channel (grayscale; colours become their ITU-R 601 luma) or 3 channels (RGB; grayscale is
    repeated) becomes a Pillow image of mode L or RGB. An image with more bits becomes a float32 array `(H, W, C)` with
    values in [0, 1]. With any other number of channels, the file must have that number, and the result is an array,
    uint8 or float32.

    - The EXIF orientation is applied, and an animation is represented by its first frame.
    - 16-bit values x become x / (2^bits − 1) in [0, 1], independent of the range that the image uses; larger values
      become 1. With `bits` = 8 they become uint8. 32-bit integers are read as 16-bit values.
    - Transparent pixels are blended with white.
    - Bands without a meaning, as in a TIFF file with an infrared band, are never dropped: `channels` must then count
    all bands.

    Args:
        image: An image that `Images.open` returned.
        channels: Number of channels of the result.
        bits: Number of bits that the values of 16-bit images use; `find_bit_depth` finds it.
        min_size: A JPEG may be decoded at 1/2, 1/4 or 1/8 of its scale, as long as the upright (width, height) is at
            least `min_size`.
        name: Name of the image in errors.

    Raises:
        ImageDecodeError: the image is unreadable, or its pixels have an unknown range.
        UserError: the file has another number of channels, which cannot be converted.

    >>> decode(np.array([[0, 65535]], dtype=np.uint16), 3)[0, 1]
    array([1., 1., 1.], dtype=float32)
    """
    with convert_errors(name):
        if isinstance(image, np.ndarray):
            image = _from_array(_check_array(image, name, bits))
        else:
            _check_bands(image, channels, name)
            if min_size is not None:
                width, height = min_size
                image.draft(None, (height, width) if orientation(image) >= 5 else (width, height))
            image.load()  # a PNG's EXIF is known only after loading
            image = image if orientation(image) == 1 else ImageOps.exif_transpose(image)
            if image.mode.startswith("I"):  # I;16, I;16B, … and I, which Pillow uses for 16-bit PGM
                image = _from_array(scale_values(np.asarray(image)[..., None], bits))
        if channels in (1, 3) and isinstance(image, Image.Image):
            return _convert_mode(image, "L" if channels == 1 else "RGB", name)
        if isinstance(image, np.ndarray) and (image.shape[2], channels) in ((1, 3), (3, 1)):
            return np.repeat(image, 3, axis=2) if channels == 3 else np.asarray(image @ LUMA)[..., None]
        pixels = np.asarray(image)
        if pixels.ndim == 3 and pixels.shape[2] == channels and pixels.dtype in (np.uint8, np.float32):
            return pixels
        found = image.shape[2] if isinstance(image, np.ndarray) else len(image.getbands())
        remedy = f"set channels to {found} (--data.channels {found}), or convert the files"
        raise UserError(f"'{name}' has {found} channels, expected {channels}; {remedy}")


def unnamed_bands(image: Image.Image) -> int:
    """Return the number of bands of a TIFF file that has bands without a meaning (neither colour nor transparency), or
    else 0.
    """
    if not isinstance(image, TiffImagePlugin.TiffImageFile):
        return 0
    tags, known = image.tag_v2, len(image.getbands())
    bands = tags.get(TiffImagePlugin.SAMPLESPERPIXEL, 1)
    extra = tags.get(TiffImagePlugin.EXTRASAMPLES, ())
    return bands if bands > known or image.mode == "RGBX" or any(kind == 0 for kind in extra) else 0


def _check_bands(image: Image.Image, channels: int, name: str) -> None:
    bands, readable = unnamed_bands(image), len(image.getbands())
    if bands and (bands != channels or readable < bands):
        remedy = f"give --data.channels {bands}, with tifffile installed, or store .npy (H, W, {bands})"
        raise ImageDecodeError(name, f"the file has {bands} bands, expected {channels}; {remedy}")


def orientation(image: Image.Image) -> int:
    """Return the EXIF orientation: 1 is upright; 5 to 8 exchange width and height."""
    if "exif" not in image.info:
        return 1
    try:
        value = image.getexif().get(ExifTags.Base.Orientation, 1)
    except Exception:  # Pillow raises many types; an image with invalid EXIF can still be used
        return 1
    return value if value in range(1, 9) else 1


def upright_size(image: RawImage) -> tuple[int, int]:
    """Return the width and height after the EXIF orientation is applied; the pixels are not decoded.

    >>> upright_size(np.zeros((3, 5, 1), dtype=np.uint8))
    (5, 3)
    """
    if isinstance(image, np.ndarray):
        return image.shape[1], image.shape[0]
    width, height = image.size
    return (height, width) if orientation(image) >= 5 else (width, height)


def _check_array(pixels: np.ndarray, name: str, bits: int) -> Pixels:
    """Return uint8 values, or floats in [0, 1], of an array, (H, W, C)."""
    if pixels.ndim not in (2, 3) or not pixels.size:
        raise ImageDecodeError(name, f"the array has shape {pixels.shape}, expected (H, W) or (H, W, C)")
    if pixels.dtype == np.uint16:
        pixels = scale_values(pixels, bits)
    if pixels.dtype not in (np.uint8, np.float32):
        found = f"the array has dtype {pixels.dtype}"
        raise ImageDecodeError(name, f"{found}, expected uint8, uint16, or float32 in [0, 1]")
    if pixels.dtype == np.float32 and not (pixels.min() >= 0 and pixels.max() <= 1 + ROUNDING):  # also true for NaN
        found = f"the array has float32 values from {pixels.min():.4g} to {pixels.max():.4g}"
        raise ImageDecodeError(name, f"{found}, expected [0, 1]; scale the values, or store uint16")
    return pixels.reshape(*pixels.shape[:2], -1)


def scale_values(pixels: np.ndarray, bits: int) -> np.ndarray:
    """Return min(x / (2^bits − 1), 1) as float32, which is exact enough for every one of 2^16 values; 8 bits remain
    uint8.

    >>> scale_values(np.array([0, 4095, 9999]), bits=12), scale_values(np.array([255, 256]), bits=8)
    (array([0., 1., 1.], dtype=float32), array([255, 255], dtype=uint8))
    """
    largest = 2**bits - 1
    pixels = pixels.clip(0, largest)
    return pixels.astype(np.uint8) if bits <= 8 else pixels.astype(np.float32) / np.float32(largest)


def _from_array(pixels: Pixels) -> RawImage:
    """Return a Pillow image if the array has 8 bits and 1 or 3 channels, else the array."""
    if pixels.dtype != np.uint8 or pixels.shape[2] not in (1, 3):
        return pixels
    return Image.fromarray(np.ascontiguousarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels))


def _convert_mode(image: Image.Image, mode: str, name: str) -> Image.Image:
    if image.mode == "F":
        raise ImageDecodeError(name, "the pixels are 32-bit floats of unknown range; store 8 or 16 bits")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image if image.mode == mode else image.convert(mode)
