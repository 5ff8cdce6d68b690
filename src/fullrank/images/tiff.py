"""TIFF files with more bands than Pillow reads, such as those of satellites and microscopes, by the package
tifffile.
"""

import importlib.util
import io
import math
import zlib
from typing import Any

import numpy as np

from fullrank.images.decode_errors import ImageDecodeError, first_of
from fullrank.images.files import BYTES_PER_PIXEL

MAGIC = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
# Numbers of the TIFF compressions that are read.
UNCOMPRESSED, LZW, DEFLATE = (1,), (5,), (8, 32946)


def has_tifffile() -> bool:
    """Return whether the package tifffile is installed."""
    return importlib.util.find_spec("tifffile") is not None


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
        page: Any = file.pages.first
        uncompressed, lzw = page.compression in UNCOMPRESSED, page.compression in LZW
        for wrong, received in (
            (page.axes not in ("YX", "YXS", "SYX"), f"the axes {page.axes}, expected bands of an image"),
            (page.dtype not in (np.uint8, np.uint16), f"values of type {page.dtype}, expected uint8 or uint16"),
            (
                page.imagewidth * page.imagelength > max_pixels or page.nbytes > BYTES_PER_PIXEL * max_pixels,
                f"{page.imagewidth}×{page.imagelength} px in {page.nbytes} bytes, more than data.max_pixels allows",
            ),
            (
                not uncompressed and not lzw and page.compression not in DEFLATE,
                f"the compression {page.compression!s}, expected none, deflate or LZW",
            ),
            # imagecodecs writes no more bytes than the pixels of a tile need
            (
                lzw and importlib.util.find_spec("imagecodecs") is None,
                "bands compressed by LZW, which needs imagecodecs: pip install 'fullrank[tiff]'",
            ),
            (uncompressed and page.nbytes > len(data), f"{len(data)} bytes: it is truncated"),
        ):
            if wrong:
                raise ImageDecodeError(name, f"the file has {received}; write it again, or store .npy (H, W, C)")
        if page.compression in DEFLATE and _expands(data, page):
            raise ImageDecodeError(name, "a tile of the file expands to more than its pixels need")
        pixels, frames = page.asarray(maxworkers=1), len(file.pages)
    return first_of(np.moveaxis(pixels, 0, 2) if page.axes == "SYX" else pixels, frames)


def _expands(data: bytes, page: Any) -> bool:
    """Return whether a tile or strip expands to more than its pixels need."""
    largest = math.prod(page.chunks) * page.dtype.itemsize
    return any(
        len(zlib.decompressobj().decompress(data[offset : offset + count], largest + 1)) > largest
        for offset, count in zip(page.dataoffsets, page.databytecounts, strict=True)
    )
