import io
import sys

import numpy as np
import pytest

from fullrank.images import ImageDecodeError, find_bit_depth, load_images, open_images
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
    fields = dict(BitsStored=16, HighBit=15, PixelRepresentation=1, RescaleSlope=2, RescaleIntercept=-24)
    fields |= dict(WindowCenter=40, WindowWidth=401)
    expected = ((2.0 * signed - 24 - (39.5 - 200)) / 400).clip(0, 1)
    assert np.allclose(read(encode(signed, **fields)), expected, atol=1e-6)


def test_the_first_frame_is_read_and_a_line_says_so(tmp_path):
    data = encode(np.stack([VALUES, VALUES * 0]), NumberOfFrames=2)
    assert np.allclose(read(data), VALUES / 4095)
    (tmp_path / "a.dcm").write_bytes(data)
    (note,) = find_bit_depth(open_images(tmp_path)["all"]).notes
    assert "several images" in note


def test_deflated_files_are_refused():
    with pytest.raises(ImageDecodeError, match="deflated"):
        read(encode(syntax="1.2.840.10008.1.2.1.99"))


@pytest.mark.parametrize("frames", [1, 2])
def test_run_lengths_are_decoded(frames):
    pixels = np.stack([VALUES, VALUES * 0])[:frames]
    data = encode(pixels, NumberOfFrames=frames, SOPClassUID="1.2", SOPInstanceUID="1.2.3")
    file, out = pydicom.dcmread(io.BytesIO(data)), io.BytesIO()
    file.compress(pydicom.uid.RLELossless, pixels if frames > 1 else pixels[0])
    file.save_as(out)
    assert np.allclose(read(out.getvalue()), VALUES / 4095)


COLOURS = np.random.default_rng(0).integers(0, 256, (3, 4, 3), dtype=np.uint8)
OF_COLOURS = dict(BitsAllocated=8, BitsStored=8, HighBit=7, SamplesPerPixel=3, PhotometricInterpretation="RGB")


@pytest.mark.parametrize("planar", [0, 1])
def test_colours_are_read(planar):
    stored = np.ascontiguousarray(COLOURS.transpose(2, 0, 1)) if planar else COLOURS
    opened = open_bytes(encode(stored, PlanarConfiguration=planar, **OF_COLOURS), "a.dcm")
    assert np.array_equal(np.asarray(opened), COLOURS)


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


def test_files_without_a_suffix_are_recognised_by_their_mark(tmp_path):
    (tmp_path / "IM0001").write_bytes(encode())
    (tmp_path / "1.2.840.113619.2").write_bytes(encode())
    (tmp_path / "README").write_text("no image")
    (tmp_path / "data.12").write_bytes(bytes(10))
    images = open_images(tmp_path)["all"]
    assert [images.name(i) for i in range(len(images))] == ["1.2.840.113619.2", "IM0001"]
    assert load_images(images, channels=1).pixels.shape == (2, 1, 3, 4)
