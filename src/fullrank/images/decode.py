"""Decode any image file to 8-bit pixels with a given number of channels."""

import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import ExifTags, Image, ImageCms, ImageOps

from fullrank.errors import UserError
from fullrank.images.decode_errors import ImageDecodeError, convert_errors
from fullrank.images.source import Pixels, RawImage


def open_bytes(data: bytes, name: str) -> RawImage:
    """Open the content of an image file, or of a `.npy` file with an array `(H, W)` or `(H, W, C)`.

    Raises:
        ImageDecodeError: the content is neither an image nor an array.
    """
    with convert_errors(name):
        if not data:
            raise ImageDecodeError(name, "the file is empty")
        if data.startswith(b"\x93NUMPY"):
            return np.load(io.BytesIO(data), allow_pickle=False)
        return Image.open(io.BytesIO(data))  # opened from memory, because Pillow would not close the file of a path


def open_cell(cell: dict[str, Any] | None, name: str) -> RawImage:
    """Open the undecoded cell of an image column: the bytes of a file, or the path of a file."""
    if cell is None:
        raise ImageDecodeError(name, "the row has no image")
    if cell["bytes"] is not None:
        return open_bytes(cell["bytes"], name)
    with convert_errors(name):
        return open_bytes(Path(cell["path"]).read_bytes(), name)


def decode(image: RawImage, channels: int, *, min_size: tuple[int, int] | None = None, name: str = "image") -> RawImage:
    """Decode an opened image to 8 bits and `channels` channels, upright.

    With 1 channel (grayscale; colours become their ITU-R 601 luma) or 3 channels (RGB; grayscale is repeated), the result is a Pillow image
    of mode L or RGB. With any other number of channels, the file must have that number, and the result is an array `(H, W, C)`.

    - The EXIF orientation is applied, and an animation is represented by its first frame.
    - 16-bit values x become round(255·x / 65535), independent of the range that the image uses; 32-bit integers are read as 16-bit values.
    - Transparent pixels are blended with white.

    Args:
        image: An image that `Images.open` returned.
        channels: Number of channels of the result.
        min_size: A JPEG may be decoded at 1/2, 1/4 or 1/8 of its scale, as long as the upright (width, height) is at least `min_size`.
        name: Name of the image in errors.

    Raises:
        ImageDecodeError: the image is unreadable, or its pixels cannot be converted to 8 bits.
        UserError: the file has another number of channels, which cannot be converted.

    >>> decode(np.array([[0, 65535]], dtype=np.uint16), 3).getpixel((1, 0))
    (255, 255, 255)
    """
    with convert_errors(name):
        if isinstance(image, np.ndarray):
            image = _from_array(_array_to_uint8(image, name))
        else:
            if min_size is not None:
                width, height = min_size
                image.draft(None, (height, width) if orientation(image) >= 5 else (width, height))
            image.load()  # a PNG's EXIF is known only after loading
            image = image if orientation(image) == 1 else ImageOps.exif_transpose(image)
        if channels in (1, 3) and isinstance(image, Image.Image):
            return _convert_mode(image, "L" if channels == 1 else "RGB", name)
        pixels = np.asarray(image)
        if pixels.ndim == 3 and pixels.shape[2] == channels and pixels.dtype == np.uint8:
            return pixels
        found = image.shape[2] if isinstance(image, np.ndarray) else len(image.getbands())
        raise UserError(
            f"'{name}' has {found} channels, expected {channels}; only 1 and 3 channels can be converted: "
            f"set channels to {found}, or convert the files"
        )


def orientation(image: Image.Image) -> int:
    """Return the EXIF orientation: 1 is upright; 5 to 8 exchange width and height."""
    if "exif" not in image.info:
        return 1
    try:
        return image.getexif().get(ExifTags.Base.Orientation, 1)
    except Exception:  # Pillow raises many types; an image with invalid EXIF can still be used
        return 1


def upright_size(image: RawImage) -> tuple[int, int]:
    """Return the width and height after the EXIF orientation is applied; the pixels are not decoded.

    >>> upright_size(np.zeros((3, 5, 1), dtype=np.uint8))
    (5, 3)
    """
    if isinstance(image, np.ndarray):
        return image.shape[1], image.shape[0]
    width, height = image.size
    return (height, width) if orientation(image) >= 5 else (width, height)


def _array_to_uint8(pixels: np.ndarray, name: str) -> Pixels:
    if pixels.ndim not in (2, 3) or not pixels.size:
        raise ImageDecodeError(name, f"the array has shape {pixels.shape}, expected (H, W) or (H, W, C)")
    if pixels.dtype == np.uint16:
        pixels = _scale_to_uint8(pixels)
    if pixels.dtype != np.uint8:
        raise ImageDecodeError(name, f"the array has dtype {pixels.dtype}, expected uint8 or uint16")
    return pixels.reshape(*pixels.shape[:2], -1)


def _scale_to_uint8(pixels: np.ndarray) -> np.ndarray:
    return ((pixels.astype(np.int64).clip(0, 65535) * 255 + 32767) // 65535).astype(np.uint8)


def _from_array(pixels: Pixels) -> RawImage:
    """Return a Pillow image if the array has 1 or 3 channels, else the array."""
    channels = pixels.shape[2]
    return Image.fromarray(np.ascontiguousarray(pixels[..., 0] if channels == 1 else pixels)) if channels in (1, 3) else pixels


def _convert_mode(image: Image.Image, mode: str, name: str) -> Image.Image:
    if image.mode == "F":
        raise ImageDecodeError(name, "the pixels are 32-bit floats of unknown range; store 8 or 16 bits")
    if image.mode.startswith("I"):  # I;16, I;16B, … and I, which Pillow uses for 16-bit PGM
        image = Image.fromarray(_scale_to_uint8(np.asarray(image)))
    elif image.mode == "LAB":
        image = ImageCms.buildTransform(ImageCms.createProfile("LAB"), ImageCms.createProfile("sRGB"), "LAB", "RGB").apply(image)
    elif image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image if image.mode == mode else image.convert(mode)
