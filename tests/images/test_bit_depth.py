import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from fullrank.images import find_bit_depth, open_images

RAMP = np.linspace(0, 1, 64 * 48).reshape(48, 64)


@pytest.fixture
def folder(tmp_path):
    """Return a function that writes 16-bit images with values up to each maximum."""

    def write(*maxima, suffix=".png"):
        for k, maximum in enumerate(maxima):
            values = np.round(RAMP * maximum).astype(np.uint16)
            if suffix == ".npy":
                np.save(tmp_path / f"{k}.npy", values)
            else:
                Image.fromarray(values).save(tmp_path / f"{k}{suffix}")
        return open_images(f"folder:{tmp_path}")["all"]

    return write


@pytest.mark.parametrize("suffix", [".png", ".npy"])
@pytest.mark.parametrize(("maximum", "bits"), [(255, 8), (4095, 12), (65535, 16)])
def test_the_depth_is_that_of_the_largest_value_of_the_data_set(folder, maximum, bits, suffix):
    images = folder(maximum // 3, maximum, suffix=suffix)
    depth = find_bit_depth(images)
    assert depth.bits == bits
    assert f"{bits} bits" in depth.notes[0]
    assert "--data.bits" in depth.notes[0]


def test_colours_that_lose_bits_are_said(tmp_path):
    header = struct.pack(">IIBBBBB", 4, 3, 16, 2, 0, 0, 0)  # a PNG of 4×3 pixels with three channels of 16 bits
    rows = b"".join(b"\0" + np.full(12, 300 * row, ">u2").tobytes() for row in range(3))
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    data = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(c)) + t + c + struct.pack(">I", zlib.crc32(t + c)) for t, c in chunks
    )
    (tmp_path / "a.png").write_bytes(data)
    depth = find_bit_depth(open_images(tmp_path)["all"])
    assert depth.bits == 0
    assert "upper 8" in depth.notes[0]


def test_four_bands_with_a_transparent_one_are_said(tmp_path):
    Image.new("RGBA", (8, 8)).save(tmp_path / "a.tif")
    assert any("--data.channels 4" in note for note in find_bit_depth(open_images(tmp_path)["all"]).notes)
