"""DICOM files, the images of radiology, by the package pydicom."""

import io
from typing import Any

import numpy as np
from PIL import Image

from fullrank.images.decode_errors import ImageDecodeError
from fullrank.images.frames import first_of

DEFLATED = b"1.2.840.10008.1.2.1.99"
UNCOMPRESSED = ("1.2.840.10008.1.2", "1.2.840.10008.1.2.1")
"""Transfer syntaxes that are read: little endian with implicit and with explicit types."""
RLE = "1.2.840.10008.1.2.5"
JPEG = ("1.2.840.10008.1.2.4.50", "1.2.840.10008.1.2.4.90", "1.2.840.10008.1.2.4.91")
"""JPEG baseline and JPEG 2000, which pydicom decodes by Pillow."""
COLOURS = ("RGB", "YBR_FULL", "YBR_FULL_422", "YBR_ICT", "YBR_RCT")


def is_dicom(data: bytes) -> bool:
    """Return whether the content has the mark of a DICOM file."""
    return data[128:132] == b"DICM"


def read_frame(data: bytes, name: str, max_pixels: int) -> np.ndarray:
    """Return the first frame of a DICOM file: grey as float32 in [0, 1], (H, W, 1); colours of 8 bits as uint8 RGB, (H,
    W, 3).

    Grey values are rescaled by slope and intercept. The first linear window of the file becomes [0, 1]; without one,
    the range that the stored bits allow does. MONOCHROME1 is inverted. Files are uncompressed, or compressed by RLE, of
    which no byte expands to more than 64, or by JPEG baseline or JPEG 2000, of which the size in the stream is compared
    with that of the file before it is decoded.

    Raises:
        ImageDecodeError: pydicom is missing, or the file is damaged, too large, or has another compression or other
            colours.
    """
    try:
        import pydicom
    except ImportError:
        raise ImageDecodeError(name, "DICOM files need pydicom: pip install 'fullrank[dicom]'") from None
    if DEFLATED in data:  # pydicom would inflate it without a bound
        raise ImageDecodeError(name, "the DICOM file is deflated, expected uncompressed; write it again")
    file = pydicom.dcmread(io.BytesIO(data))
    syntax = file.file_meta.TransferSyntaxUID
    if syntax not in (*UNCOMPRESSED, *JPEG, RLE):
        message = f"the DICOM file has the transfer syntax {syntax.name}, expected uncompressed little endian, RLE, JPEG baseline or JPEG 2000"
        raise ImageDecodeError(
            name, f"{message}; decompress it with pydicom's decompress and its plugin {_plugin(syntax)}"
        )
    kind, bits, stored = file.PhotometricInterpretation, file.BitsAllocated, file.BitsStored
    rows, columns, colour = file.Rows, file.Columns, kind in COLOURS
    if not (colour or kind in ("MONOCHROME1", "MONOCHROME2")) or file.SamplesPerPixel != (3 if colour else 1):
        raise ImageDecodeError(
            name, f"the DICOM file is {kind}, expected MONOCHROME1, MONOCHROME2, RGB or YBR; convert it to PNG"
        )
    if bits not in (8, 16) or not 1 <= stored <= bits or file.HighBit != stored - 1:
        raise ImageDecodeError(
            name, f"the DICOM file has {stored} of {bits} bits, expected 8 or 16 with the values in the lowest bits"
        )
    if rows * columns > max_pixels:
        raise ImageDecodeError(name, f"{columns}×{rows} are more pixels than data.max_pixels = {max_pixels}")
    if colour:
        if (bits, stored) != (8, 8):
            raise ImageDecodeError(name, f"the DICOM file has colours of {stored} bits, expected 8; convert it to PNG")
        return first_of(_decode(file, name), int(file.get("NumberOfFrames", 1) or 1))
    if syntax in UNCOMPRESSED:
        values = (
            np.frombuffer(file.PixelData, dtype=f"<u{bits // 8}", count=rows * columns)
            .reshape(rows, columns, 1)
            .astype(np.int32)
        )
    else:
        values = _decode(file, name).astype(np.int32)[..., None]
    values &= 2**stored - 1
    low, high = 0, 2**stored - 1
    if file.PixelRepresentation:
        low, high = -(2 ** (stored - 1)), 2 ** (stored - 1) - 1
        values -= (values > high) * np.int32(2**stored)
    if "ModalityLUTSequence" in file:
        raise ImageDecodeError(
            name, "the DICOM file has a modality LUT, expected slope and intercept; convert it to PNG"
        )
    slope, intercept = (
        default if (value := file.get(field)) is None else float(value)
        for field, default in (("RescaleSlope", 1.0), ("RescaleIntercept", 0.0))
    )
    pixels, first, last = values * slope + intercept, low * slope + intercept, high * slope + intercept
    if file.get("WindowCenter") is not None and file.get("WindowWidth") is not None:
        if (file.get("VOILUTFunction") or "LINEAR") != "LINEAR":
            raise ImageDecodeError(name, f"the DICOM file has a window of type {file.VOILUTFunction}, expected LINEAR")
        center, width = (float(np.atleast_1d(x)[0]) for x in (file.WindowCenter, file.WindowWidth))
        first, last = center - 0.5 - (width - 1) / 2, center - 0.5 + (width - 1) / 2  # DICOM PS3.3, C.11.2.1.2
    if not (np.isfinite([first, last]).all() and first < last):
        raise ImageDecodeError(
            name, f"the DICOM file has the range {first:g} to {last:g}, expected an increasing finite range"
        )
    unit = ((pixels - first) / (last - first)).clip(0, 1).astype(np.float32)
    return first_of(1 - unit if kind == "MONOCHROME1" else unit, int(file.get("NumberOfFrames", 1) or 1))


def _decode(file: Any, name: str) -> np.ndarray:
    """Return the first frame as pydicom decodes it, colours as RGB."""
    from pydicom.encaps import get_frame
    from pydicom.pixels import pixel_array

    if file.file_meta.TransferSyntaxUID not in JPEG:
        return pixel_array(file, index=0)
    stream = get_frame(file.PixelData, 0, number_of_frames=int(file.get("NumberOfFrames", 1)))
    with Image.open(io.BytesIO(stream), formats=("JPEG", "JPEG2000")) as image:
        if image.size != (file.Columns, file.Rows):
            raise ImageDecodeError(
                name, f"the compressed image has {image.size} px, expected {file.Columns}×{file.Rows} as in the file"
            )
    return pixel_array(file, index=0, decoding_plugin="pillow")


def _plugin(syntax: Any) -> str:
    """Return the packages with which pydicom reads a transfer syntax."""
    from pydicom.pixels import get_decoder

    try:
        return "; ".join(" ".join(line.split()) for line in get_decoder(syntax).missing_dependencies) or "for it"
    except NotImplementedError:
        return "for it"
