"""Uncompressed DICOM files, the images of radiology, by the package pydicom."""

import io

import numpy as np

from fullrank.images.decode_errors import ImageDecodeError

DEFLATED = b"1.2.840.10008.1.2.1.99"
UNCOMPRESSED = ("1.2.840.10008.1.2", "1.2.840.10008.1.2.1")
"""Transfer syntaxes that are read: little endian with implicit and with explicit types."""


def is_dicom(data: bytes) -> bool:
    """Return whether the content has the mark of a DICOM file."""
    return data[128:132] == b"DICM"


def read_frame(data: bytes, name: str, max_pixels: int) -> np.ndarray:
    """Return the first frame of a grey DICOM file, (H, W, 1), as float32 in [0, 1].

    The values are rescaled by slope and intercept. The first linear window of the file becomes [0, 1]; without one, the range that the
    stored bits allow does. MONOCHROME1 is inverted. Nothing is decompressed: every pixel that is read is in the file.

    Raises:
        ImageDecodeError: pydicom is missing, or the file is damaged, compressed, coloured or too large.
    """
    try:
        import pydicom
    except ImportError:
        raise ImageDecodeError(name, "DICOM files need pydicom: pip install 'fullrank[dicom]'") from None
    if DEFLATED in data:  # pydicom would inflate it without a bound
        raise ImageDecodeError(name, "the DICOM file is deflated, expected uncompressed; write it again")
    file = pydicom.dcmread(io.BytesIO(data))
    syntax = file.file_meta.TransferSyntaxUID
    if syntax not in UNCOMPRESSED:
        raise ImageDecodeError(name, f"the DICOM file has the transfer syntax {syntax.name}, expected uncompressed little endian")
    kind, bits, stored = file.PhotometricInterpretation, file.BitsAllocated, file.BitsStored
    if kind not in ("MONOCHROME1", "MONOCHROME2") or file.SamplesPerPixel != 1:
        raise ImageDecodeError(name, f"the DICOM file is {kind}, expected MONOCHROME1 or MONOCHROME2; convert it to PNG")
    if bits not in (8, 16) or not 1 <= stored <= bits or file.HighBit != stored - 1:
        raise ImageDecodeError(name, f"the DICOM file has {stored} of {bits} bits, expected 8 or 16 with the values in the lowest bits")
    rows, columns = file.Rows, file.Columns
    if rows * columns > max_pixels:
        raise ImageDecodeError(name, f"{columns}×{rows} are more pixels than data.max_pixels = {max_pixels}")
    values = np.frombuffer(file.PixelData, dtype=f"<u{bits // 8}", count=rows * columns).reshape(rows, columns, 1).astype(np.int32)
    values &= 2**stored - 1
    low, high = 0, 2**stored - 1
    if file.PixelRepresentation:
        low, high = -(2 ** (stored - 1)), 2 ** (stored - 1) - 1
        values -= (values > high) * np.int32(2**stored)
    if "ModalityLUTSequence" in file:
        raise ImageDecodeError(name, "the DICOM file has a modality LUT, expected slope and intercept; convert it to PNG")
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
        raise ImageDecodeError(name, f"the DICOM file has the range {first:g} to {last:g}, expected an increasing finite range")
    unit = ((pixels - first) / (last - first)).clip(0, 1).astype(np.float32)
    return 1 - unit if kind == "MONOCHROME1" else unit
