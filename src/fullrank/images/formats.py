"""Files that Pillow does not read: arrays of NumPy, DICOM (radiology, by pydicom), and TIFF files with more bands than
colours (satellites, microscopes, by tifffile). Each header is compared with a limit before anything is expanded.
"""

import importlib.util
import io
import math
import zlib
from typing import Any

import numpy as np

from fullrank.images.decode_errors import ImageDecodeError

# Pixels are stored with at most this many bytes: eight bands of 16 bits. A longer file than its pixels can need is not
# read.
BYTES_PER_PIXEL = 16
NUMPY_MAGIC = b"\x93NUMPY"
TIFF_MAGIC = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
UNCOMPRESSED, LZW, DEFLATE = (1,), (5,), (8, 32946)  # numbers of the TIFF compressions that are read
# DICOM transfer syntaxes that are read: little endian with implicit and with explicit types, and RLE, of which no byte
# expands to more than 64.
SYNTAXES = ("1.2.840.10008.1.2", "1.2.840.10008.1.2.1", "1.2.840.10008.1.2.5")
DEFLATED = b"1.2.840.10008.1.2.1.99"


class FirstFrame(np.ndarray):
    """The pixels of the first image of a file; `n_frames` is the number of its images, as of a Pillow image."""

    n_frames: int = 1


def first_of(pixels: np.ndarray, frames: int) -> np.ndarray:
    """Return the pixels with the number of images of their file.

    >>> first_of(np.zeros((2, 2, 1)), 5).n_frames
    5
    """
    first = pixels.view(FirstFrame)
    first.n_frames = frames
    return first


def check_pixels(name: str, width: int, height: int, max_pixels: int) -> None:
    """Raise ImageDecodeError for an image of more pixels than are allowed."""
    if width * height > max_pixels:
        raise ImageDecodeError(name, f"{width}×{height} are more pixels than data.max_pixels = {max_pixels}")


def read_array(data: bytes, name: str, max_pixels: int) -> np.ndarray:
    """Read an array, (H, W) or (H, W, C), after a comparison of its header with the length of the data: the header
    decides how much memory NumPy allocates. Pickled objects are never loaded.

    Raises:
        ImageDecodeError: the array is truncated, too large, or has another shape.
    """
    file = io.BytesIO(data)
    version = np.lib.format.read_magic(file)
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read_header(file)
    if len(shape) not in (2, 3):
        raise ImageDecodeError(name, f"the array has shape {shape}, expected (H, W) or (H, W, C)")
    check_pixels(name, shape[1], shape[0], max_pixels)
    if not dtype.hasobject and math.prod(shape) * dtype.itemsize > len(data):
        raise ImageDecodeError(name, f"the array of shape {shape} is truncated: the file has only {len(data)} bytes")
    return np.load(io.BytesIO(data), allow_pickle=False)


def is_dicom(data: bytes) -> bool:
    """Return whether the content has the mark of a DICOM file."""
    return data[128:132] == b"DICM"


def read_dicom(data: bytes, name: str, max_pixels: int) -> np.ndarray:
    """Return the first frame of a DICOM file: grey as float32 in [0, 1], (H, W, 1); colours of 8 bits as uint8 RGB, (H,
    W, 3).

    Grey values are rescaled by slope and intercept. The first window of the file becomes [0, 1]; without one, the range
    that the stored bits allow does. MONOCHROME1 is inverted.

    Raises:
        ImageDecodeError: pydicom is missing, or the file is damaged, too large, compressed otherwise than by RLE, or
            has other colours.
    """
    try:
        import pydicom
        from pydicom.pixels import apply_modality_lut, apply_windowing, pixel_array
    except ImportError:
        raise ImageDecodeError(name, "DICOM files need pydicom: pip install 'fullrank[dicom]'") from None
    if DEFLATED in data:  # pydicom would inflate it without a bound
        raise ImageDecodeError(name, "the DICOM file is deflated, expected uncompressed; write it again")
    file = pydicom.dcmread(io.BytesIO(data))
    kind, bits, stored = file.PhotometricInterpretation, file.BitsAllocated, file.BitsStored
    forms = {"RGB": (3, (8,)), "MONOCHROME1": (1, (8, 16)), "MONOCHROME2": (1, (8, 16))}
    samples, depths = forms.get(kind, (0, ()))
    syntax = file.file_meta.TransferSyntaxUID
    if syntax not in SYNTAXES or file.SamplesPerPixel != samples or bits not in depths or file.HighBit != stored - 1:
        received = f"{syntax.name}, {kind}, {stored} of {bits} bits up to bit {file.HighBit}"
        expected = "grey of 8 or 16 bits or RGB of 8, uncompressed or RLE"
        raise ImageDecodeError(name, f"the DICOM file has {received}, expected {expected}; convert it to PNG")
    check_pixels(name, file.Columns, file.Rows, max_pixels)
    pixels, frames = pixel_array(file, index=0), int(file.get("NumberOfFrames", 1) or 1)
    if samples == 3:
        return first_of(pixels, frames)
    lowest = -(2 ** (stored - 1)) if file.PixelRepresentation else 0  # signed or not
    low, high = apply_modality_lut(np.array([lowest, lowest + 2**stored - 1]), file).astype(float)
    if not low < high < math.inf:
        raise ImageDecodeError(name, f"the DICOM file has the range {low:g} to {high:g}, expected an increasing one")
    windowed = apply_windowing(apply_modality_lut(pixels, file), file)
    unit = ((windowed - low) / (high - low)).clip(0, 1).astype(np.float32)[..., None]
    return first_of(1 - unit if kind == "MONOCHROME1" else unit, frames)


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
        check_pixels(name, page.imagewidth, page.imagelength, max_pixels)
        for wrong, received in (
            (page.axes not in ("YX", "YXS", "SYX"), f"the axes {page.axes}, expected bands of an image"),
            (page.dtype not in (np.uint8, np.uint16), f"values of type {page.dtype}, expected uint8 or uint16"),
            (page.nbytes > BYTES_PER_PIXEL * max_pixels, f"{page.nbytes} bytes, more than data.max_pixels allows"),
            # imagecodecs, which reads LZW, writes no more bytes than the pixels of a tile need
            (page.compression not in UNCOMPRESSED + LZW + DEFLATE, f"the compression {page.compression!s}"),
            (page.compression in UNCOMPRESSED and page.nbytes > len(data), f"{len(data)} bytes: it is truncated"),
            (page.compression in DEFLATE and _expands(data, page), "a tile that expands to more than its pixels need"),
        ):
            if wrong:
                raise ImageDecodeError(name, f"the file has {received}; write it again, or store .npy (H, W, C)")
        pixels, frames = page.asarray(maxworkers=1), len(file.pages)
    return first_of(np.moveaxis(pixels, 0, 2) if page.axes == "SYX" else pixels, frames)


def _expands(data: bytes, page: Any) -> bool:
    """Return whether a tile or strip expands to more than its pixels need."""
    largest = math.prod(page.chunks) * page.dtype.itemsize
    return any(
        len(zlib.decompressobj().decompress(data[offset : offset + count], largest + 1)) > largest
        for offset, count in zip(page.dataoffsets, page.databytecounts, strict=True)
    )
