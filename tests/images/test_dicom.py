import io
import sys

import numpy as np
import pytest

from fullrank.images import ImageDecodeError, load_images, open_images
from fullrank.images.decode import open_bytes

pydicom = pytest.importorskip("pydicom")
VALUES = np.arange(12, dtype=np.uint16).reshape(3, 4) * 300


def encode(values=VALUES, syntax="1.2.840.10008.1.2.1", **fields):
    file = pydicom.Dataset()
    file.file_meta = pydicom.dataset.FileMetaDataset()
    file.file_meta.TransferSyntaxUID = pydicom.uid.UID(syntax)
    file.Rows, file.Columns, file.SamplesPerPixel = 3, 4, 1
    file.BitsAllocated, file.BitsStored, file.HighBit, file.PixelRepresentation = 16, 12, 11, 0
    file.PhotometricInterpretation = "MONOCHROME2"
    file.add_new("PixelData", "OW", values.tobytes())
    for key, value in fields.items():
        setattr(file, key, value)
    out = io.BytesIO()
    out.write(bytes(128) + b"DICM")
    pydicom.filewriter.write_file_meta_info(out, file.file_meta, enforce_standard=False)
    body = pydicom.filebase.DicomBytesIO()
    body.is_little_endian, body.is_implicit_VR = True, syntax == "1.2.840.10008.1.2"
    pydicom.filewriter.write_dataset(body, file)
    return out.getvalue() + body.getvalue()


def read(data, **options):
    return np.asarray(open_bytes(data, "a.dcm", **options))[..., 0]


@pytest.mark.parametrize("syntax", ["1.2.840.10008.1.2", "1.2.840.10008.1.2.1"])
def test_stored_bits_become_the_unit_interval(syntax):
    assert np.allclose(read(encode(syntax=syntax)), VALUES / 4095)


def test_monochrome1_is_inverted():
    assert np.allclose(read(encode(PhotometricInterpretation="MONOCHROME1")), 1 - VALUES / 4095)


def test_signed_values_are_rescaled_and_windowed():
    signed = (VALUES.astype(np.int16) - 1000).astype("<i2")
    fields = {
        "BitsStored": 16,
        "HighBit": 15,
        "PixelRepresentation": 1,
        "RescaleSlope": 2,
        "RescaleIntercept": -24,
        "WindowCenter": 40,
        "WindowWidth": 401,
    }
    expected = ((2.0 * signed - 24 - (39.5 - 200)) / 400).clip(0, 1)
    assert np.allclose(read(encode(signed, **fields)), expected, atol=1e-6)


def test_empty_fields_have_their_defaults():
    fields = {"RescaleSlope": None, "RescaleIntercept": None, "WindowCenter": 2047.5, "WindowWidth": 4096, "VOILUTFunction": ""}
    assert np.allclose(read(encode(**fields)), VALUES / 4095, atol=1e-3)


def test_a_modality_lut_is_refused():
    lut = pydicom.Dataset()
    lut.LUTDescriptor = [4096, 0, 16]
    with pytest.raises(ImageDecodeError, match="modality LUT"):
        read(encode(ModalityLUTSequence=[lut]))


def test_the_first_frame_is_read():
    assert np.allclose(read(encode(np.stack([VALUES, VALUES * 0]), NumberOfFrames=2)), VALUES / 4095)


@pytest.mark.parametrize("syntax", ["1.2.840.10008.1.2.1.99", "1.2.840.10008.1.2.4.90"])
def test_compressed_files_are_refused(syntax):
    with pytest.raises(ImageDecodeError, match="expected uncompressed"):
        read(encode(syntax=syntax))


def test_hostile_sizes_are_refused():
    with pytest.raises(ImageDecodeError, match="more pixels"):
        read(encode(), max_pixels=11)
    with pytest.raises(ImageDecodeError):
        read(encode(Rows=3000, Columns=3000))


def test_without_pydicom_the_error_names_the_extra(monkeypatch):
    data = encode()
    monkeypatch.setitem(sys.modules, "pydicom", None)
    with pytest.raises(ImageDecodeError, match=r"fullrank\[dicom\]"):
        read(data)


def test_a_folder_of_dicom_is_a_source(tmp_path):
    (tmp_path / "a.dcm").write_bytes(encode())
    pixels = load_images(open_images(tmp_path)["all"], channels=1).pixels
    assert np.allclose(pixels[0, 0], VALUES / 4095)
