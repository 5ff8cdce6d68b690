"""From any image file to 8-bit pixels with the number of channels that was asked for."""

import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import ExifTags, Image, ImageCms, ImageOps

from fullrank.errors import UserError
from fullrank.images.decode_error import ImageDecodeError, reading
from fullrank.images.source import Picture, Pixels


def open_bytes(data: bytes, name: str) -> Picture:
    """Open the content of an image file, or of a `.npy` file with an array `(H, W)` or `(H, W, C)`.

    Raises:
        ImageDecodeError: neither of them.
    """
    with reading(name):
        if not data:
            raise ImageDecodeError(name, "empty file")
        if data.startswith(b"\x93NUMPY"):
            return np.load(io.BytesIO(data), allow_pickle=False)
        return Image.open(io.BytesIO(data))  # from memory: a lazily opened path would hold its file open


def open_cell(cell: dict[str, Any] | None, name: str) -> Picture:
    """Open the undecoded content of an image column: the bytes of a file, or the path to one."""
    if cell is None:
        raise ImageDecodeError(name, "no image in this row")
    if cell["bytes"] is not None:
        return open_bytes(cell["bytes"], name)
    with reading(name):
        return open_bytes(Path(cell["path"]).read_bytes(), name)


def decode(image: Picture, channels: int, *, shorter: int | None = None, name: str = "image") -> Picture:
    """Decode an opened image to 8 bits and `channels` channels, upright.

    1 channel is grey (ITU-R 601 luma of colours), 3 are red, green and blue (grey is repeated); both come back as a Pillow image of
    mode L or RGB. Any other number must be the file's own, and comes back as an array `(H, W, C)`.

    - The EXIF orientation is applied; of an animation the first frame counts.
    - 16-bit values x become round(255·x / 65535), whatever range the image uses; 32-bit integers count as 16-bit ones.
    - Transparent pixels are laid over white.

    Args:
        image: What `Images.open` returned.
        channels: How many channels the result has.
        shorter: A JPEG may be decoded at 1/2, 1/4 or 1/8 of its scale, as long as its shorter side keeps this many pixels.
        name: How errors call the image.

    Raises:
        ImageDecodeError: broken file, or pixels that have no 8-bit meaning.
        UserError: the file's channels are not those asked for, and no conversion between them is meant.

    >>> decode(np.array([[0, 65535]], dtype=np.uint16), 3).getpixel((1, 0))
    (255, 255, 255)
    """
    with reading(name):
        if isinstance(image, np.ndarray):
            image = _picture(_bytes_of_array(image, name))
        else:
            if shorter is not None:
                image.draft(None, (shorter, shorter))  # Pillow keeps both sides at least as long
            image.load()  # only now a PNG knows its EXIF
            image = image if orientation(image) == 1 else ImageOps.exif_transpose(image)
        if channels in (1, 3) and isinstance(image, Image.Image):
            return _convert(image, "L" if channels == 1 else "RGB", name)
        pixels = np.asarray(image)
        if pixels.ndim == 3 and pixels.shape[2] == channels and pixels.dtype == np.uint8:
            return pixels
        raise UserError(
            f"'{name}' has {_channels(image)} channels, {channels} were asked for; "
            f"only 1 and 3 are converted into each other: set channels to {_channels(image)}, or convert the files"
        )


def orientation(image: Image.Image) -> int:
    """Return the EXIF orientation: 1 is upright; from 5 to 8 width and height are exchanged."""
    if "exif" not in image.info:
        return 1
    try:
        return image.getexif().get(ExifTags.Base.Orientation, 1)
    except Exception:  # Pillow raises many kinds; a broken note does not make a bad image
        return 1


def _channels(image: Picture) -> int:
    return image.shape[2] if isinstance(image, np.ndarray) else len(image.getbands())


def _bytes_of_array(pixels: np.ndarray, name: str) -> Pixels:
    if pixels.ndim not in (2, 3) or not pixels.size:
        raise ImageDecodeError(name, f"an array of shape {pixels.shape}, not (H, W) or (H, W, C)")
    if pixels.dtype == np.uint16:
        pixels = _eight_bits(pixels)
    if pixels.dtype != np.uint8:
        raise ImageDecodeError(name, f"an array of {pixels.dtype}, not uint8 or uint16")
    return pixels.reshape(*pixels.shape[:2], -1)


def _eight_bits(pixels: np.ndarray) -> np.ndarray:
    return ((pixels.astype(np.int64).clip(0, 65535) * 255 + 32767) // 65535).astype(np.uint8)


def _picture(pixels: Pixels) -> Picture:
    match pixels.shape[2]:
        case 1:
            return Image.fromarray(np.ascontiguousarray(pixels[..., 0]))
        case 3:
            return Image.fromarray(np.ascontiguousarray(pixels))
        case _:
            return pixels


def _convert(image: Image.Image, mode: str, name: str) -> Image.Image:
    if image.mode == "F":
        raise ImageDecodeError(name, "32-bit float pixels, whose range is not known; store 8 or 16 bits")
    if image.mode.startswith("I"):  # I;16, I;16B, … and I, in which Pillow keeps 16-bit PGM
        image = Image.fromarray(_eight_bits(np.asarray(image)))
    elif image.mode == "LAB":
        image = ImageCms.buildTransform(ImageCms.createProfile("LAB"), ImageCms.createProfile("sRGB"), "LAB", "RGB").apply(image)
    elif image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image if image.mode == mode else image.convert(mode)
