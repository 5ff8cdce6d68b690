import contextlib
import struct
import tracemalloc
import zlib

import numpy as np
import pytest

from fullrank.errors import UserError
from fullrank.images import ImageDecodeError, dataset_info, decode, load_images, open_images
from fullrank.images.decode import open_bytes

tifffile = pytest.importorskip("tifffile")

BANDS = np.random.default_rng(0).integers(0, 2**16, (12, 10, 7), dtype=np.uint16)


def write(path, pixels, **options):
    options = {"photometric": "minisblack", "planarconfig": "contig", **options}
    tifffile.imwrite(path, pixels, **options)
    return path.read_bytes()


@pytest.mark.parametrize(
    "options", [{}, {"compression": "deflate"}, {"tile": (16, 16), "compression": "deflate"}, {"bigtiff": True}]
)
@pytest.mark.parametrize("bands", [2, 7])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_all_bands_are_read_with_all_bits(tmp_path, options, bands, dtype):
    pixels = BANDS[..., :bands].astype(dtype)
    opened = open_bytes(write(tmp_path / "a.tif", pixels, **options), "a.tif")
    assert np.array_equal(np.asarray(opened), pixels)


def test_a_tile_of_lzw_cannot_expand_without_bound(tmp_path):
    imagecodecs = pytest.importorskip("imagecodecs")
    data = write(tmp_path / "a.tif", BANDS, compression="lzw")
    with tifffile.TiffFile(tmp_path / "a.tif") as file:
        tags = file.pages.first.tags
        count, offset = tags["StripByteCounts"], tags["StripOffsets"]
    bomb = imagecodecs.lzw_encode(bytes(50_000_000))
    forged = bytearray(data + bomb)
    struct.pack_into("<I", forged, offset.valueoffset, len(data))
    code, size = ("<I", len(bomb)) if count.dtype == 4 else ("<H", 65535)
    struct.pack_into(code, forged, count.valueoffset, size)
    tracemalloc.start()
    with contextlib.suppress(ImageDecodeError):
        assert np.asarray(open_bytes(bytes(forged), "a.tif")).nbytes == BANDS.nbytes
    assert tracemalloc.get_traced_memory()[1] < 10_000_000
    tracemalloc.stop()


def test_a_folder_of_bands_is_a_source(tmp_path):
    for k in range(3):
        write(tmp_path / f"{k}.tif", np.roll(BANDS, k))
    images = open_images(tmp_path)["all"]
    assert dataset_info(images).channels == 7
    loaded = load_images(images, channels=7)
    assert loaded.pixels.shape == (3, 7, 12, 10)
    assert np.array_equal(np.round(loaded.pixels[0].permute(1, 2, 0).double().numpy() * 65535), BANDS)
    with pytest.raises(UserError, match=r"--data\.channels 7"):
        decode(images.open(0), 3)


def test_what_cannot_be_read_is_a_decode_error(tmp_path):
    data = write(tmp_path / "a.tif", BANDS)
    for broken in (data[:500], data[:10], data[: len(data) // 2]):
        with pytest.raises(ImageDecodeError):
            open_bytes(broken, "a.tif")
    with pytest.raises(ImageDecodeError, match="float32"):
        open_bytes(write(tmp_path / "f.tif", BANDS.astype(np.float32)), "f.tif")
    with pytest.raises(ImageDecodeError, match="max_pixels"):
        open_bytes(data, "a.tif", max_pixels=100)


def test_a_tile_cannot_expand_without_bound(tmp_path):
    data = write(tmp_path / "a.tif", BANDS, compression="deflate")
    with tifffile.TiffFile(tmp_path / "a.tif") as file:
        page = file.pages.first
        count, offset = page.tags["StripByteCounts"], page.tags["StripOffsets"]
        assert len(page.dataoffsets) == 1
    bomb = zlib.compress(bytes(10_000_000))
    forged = bytearray(data + bomb)
    struct.pack_into("<I", forged, offset.valueoffset, len(data))
    struct.pack_into("<I" if count.dtype == 4 else "<H", forged, count.valueoffset, len(bomb))
    with pytest.raises(ImageDecodeError, match="expands"):
        open_bytes(bytes(forged), "a.tif")
