"""TIFF files with more bands than Pillow reads, such as those of satellites and microscopes, by the package
tifffile.
"""

import io
import math
import zlib

import numpy as np

from fullrank.images.decode_errors import ImageDecodeError
from fullrank.images.files import BYTES_PER_PIXEL
from fullrank.images.frames import first_of

MAGIC = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
UNCOMPRESSED, LZW, DEFLATE = (1,), (5,), (8, 32946)
"""Numbers of the TIFF compressions that are read."""


def has_tifffile() -> bool:
    """Return whether the package tifffile is installed."""
    try:
        import tifffile  # noqa: F401
    except ImportError:
        return False
    return True


def _has_imagecodecs() -> bool:
    try:
        import imagecodecs  # noqa: F401  # pyright: ignore[reportMissingImports]
    except ImportError:
        return False
    return True


def read_bands(data: bytes, name: str, max_pixels: int) -> np.ndarray:
    """Return all bands of the first page of a TIFF file, (H, W, C), with 8 or 16 bits as in the file.

    Nothing is decompressed before the header is compared with `max_pixels`, and no tile expands to more than its pixels
    need. Only the given bytes are read, and metadata that name other files (OME) are ignored.

    Raises:
        ImageDecodeError: the file is damaged, or has too many pixels, another type or compression, or tiles that expand
            too much.
    """
    import tifffile

    with tifffile.TiffFile(io.BytesIO(data), is_ome=False) as file:
        page = file.pages.first
        if page.axes not in ("YX", "YXS", "SYX"):
            raise ImageDecodeError(
                name, f"the first page has the axes {page.axes}, expected bands of an image; store .npy (H, W, C)"
            )
        if page.dtype not in (np.uint8, np.uint16):
            raise ImageDecodeError(name, f"the bands have the type {page.dtype}, expected uint8 or uint16")
        if page.imagewidth * page.imagelength > max_pixels:
            raise ImageDecodeError(
                name, f"{page.imagewidth}×{page.imagelength} are more pixels than data.max_pixels = {max_pixels}"
            )
        if page.nbytes > BYTES_PER_PIXEL * max_pixels:
            raise ImageDecodeError(
                name, f"its bands need {page.nbytes} bytes, which is more than data.max_pixels can need"
            )
        if page.compression in DEFLATE:
            _check_expansion(data, page, name)
        elif page.compression in LZW:  # imagecodecs writes no more bytes than the pixels of a tile need
            if not _has_imagecodecs():
                raise ImageDecodeError(
                    name, "the bands are compressed by LZW, which needs imagecodecs: pip install 'fullrank[tiff]'"
                )
        elif page.compression not in UNCOMPRESSED:
            raise ImageDecodeError(
                name,
                f"the bands are compressed as {page.compression!s}, expected none, deflate or LZW; write it again, or store .npy (H, W, C)",
            )
        elif page.nbytes > len(data):
            raise ImageDecodeError(
                name, f"the file is truncated: it has {len(data)} bytes, but its pixels need {page.nbytes}"
            )
        pixels = page.asarray(maxworkers=1)
        frames = len(file.pages)
    return first_of(np.moveaxis(pixels, 0, 2) if page.axes == "SYX" else pixels, frames)


def _check_expansion(data: bytes, page: object, name: str) -> None:
    """Check that no tile or strip expands to more than its pixels need."""
    largest = math.prod(page.chunks) * page.dtype.itemsize  # pyright: ignore[reportAttributeAccessIssue]
    for offset, count in zip(page.dataoffsets, page.databytecounts, strict=True):  # pyright: ignore[reportAttributeAccessIssue]
        if len(zlib.decompressobj().decompress(data[offset : offset + count], largest + 1)) > largest:
            raise ImageDecodeError(name, "a tile of the file expands to more than its pixels need")
