"""DICOM files, the images of radiology, by the package pydicom."""

import io
from typing import Any

import numpy as np
from PIL import Image

from fullrank.images.decode_errors import ImageDecodeError, first_of

DEFLATED = b"1.2.840.10008.1.2.1.99"
RLE = "1.2.840.10008.1.2.5"
# Transfer syntaxes that are read: little endian with implicit and with explicit types.
UNCOMPRESSED = ("1.2.840.10008.1.2", "1.2.840.10008.1.2.1")
# JPEG baseline and JPEG 2000, which pydicom decodes by Pillow.
JPEG = ("1.2.840.10008.1.2.4.50", "1.2.840.10008.1.2.4.90", "1.2.840.10008.1.2.4.91")
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
    kind, bits, stored, syntax = file.PhotometricInterpretation, file.BitsAllocated, file.BitsStored, file.file_meta
    colour, frames = kind in COLOURS, int(file.get("NumberOfFrames", 1) or 1)
    for wrong, received in (
        (syntax.TransferSyntaxUID not in (*UNCOMPRESSED, *JPEG, RLE), syntax.TransferSyntaxUID.name),
        (not (colour or kind in ("MONOCHROME1", "MONOCHROME2")), kind),
        (file.SamplesPerPixel != (3 if colour else 1), f"{file.SamplesPerPixel} samples a pixel"),
        (bits not in ((8,) if colour else (8, 16)) or not 1 <= stored <= bits, f"{stored} of {bits} bits"),
        (file.HighBit != stored - 1 or (colour and stored != 8), f"{stored} bits up to bit {file.HighBit}"),
        ("ModalityLUTSequence" in file, "a modality LUT"),
        ((file.get("VOILUTFunction") or "LINEAR") != "LINEAR", f"a window of type {file.get('VOILUTFunction')}"),
    ):
        if wrong:
            expected = "grey of 8 or 16 bits or colours of 8, uncompressed, RLE, JPEG baseline or JPEG 2000"
            raise ImageDecodeError(name, f"the DICOM file has {received}, expected {expected}; convert it to PNG")
    if file.Rows * file.Columns > max_pixels:
        message = f"{file.Columns}×{file.Rows} are more pixels than data.max_pixels = {max_pixels}"
        raise ImageDecodeError(name, message)
    pixels = _decode(file, name, bits)
    return first_of(pixels if colour else _to_unit(file, pixels.astype(np.int32)[..., None], name), frames)


def _decode(file: Any, name: str, bits: int) -> np.ndarray:
    """Return the first frame as it is stored, colours as RGB."""
    from pydicom.encaps import get_frame
    from pydicom.pixels import pixel_array

    syntax, grey = file.file_meta.TransferSyntaxUID, file.SamplesPerPixel == 1
    if syntax in UNCOMPRESSED and grey:
        values = np.frombuffer(file.PixelData, dtype=f"<u{bits // 8}", count=file.Rows * file.Columns)
        return values.reshape(file.Rows, file.Columns)
    if syntax not in JPEG:
        return pixel_array(file, index=0)
    stream = get_frame(file.PixelData, 0, number_of_frames=int(file.get("NumberOfFrames", 1)))
    with Image.open(io.BytesIO(stream), formats=("JPEG", "JPEG2000")) as image:
        if image.size != (file.Columns, file.Rows):
            received = f"the compressed image has {image.size} px, not {file.Columns}×{file.Rows} as the file says"
            raise ImageDecodeError(name, received)
    return pixel_array(file, index=0, decoding_plugin="pillow")


def _to_unit(file: Any, values: np.ndarray, name: str) -> np.ndarray:
    """Return stored grey values as float32 in [0, 1], by the rescaling and the window of the file."""
    stored = file.BitsStored
    values, low, high = values & (2**stored - 1), 0, 2**stored - 1
    if file.PixelRepresentation:  # signed
        low, high = -(2 ** (stored - 1)), 2 ** (stored - 1) - 1
        values -= (values > high) * np.int32(2**stored)
    slope, intercept = (
        default if (value := file.get(field)) is None else float(value)
        for field, default in (("RescaleSlope", 1.0), ("RescaleIntercept", 0.0))
    )
    first, last = low * slope + intercept, high * slope + intercept
    if file.get("WindowCenter") is not None and file.get("WindowWidth") is not None:
        center, width = (float(np.atleast_1d(x)[0]) for x in (file.WindowCenter, file.WindowWidth))
        first, last = center - 0.5 - (width - 1) / 2, center - 0.5 + (width - 1) / 2  # DICOM PS3.3, C.11.2.1.2
    if not (np.isfinite([first, last]).all() and first < last):
        raise ImageDecodeError(name, f"the DICOM file has the range {first:g} to {last:g}, expected an increasing one")
    unit = ((values * slope + intercept - first) / (last - first)).clip(0, 1).astype(np.float32)
    return 1 - unit if file.PhotometricInterpretation == "MONOCHROME1" else unit
