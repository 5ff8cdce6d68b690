import io

import numpy as np
import pytest
from PIL import Image

from fullrank.errors import UserError
from fullrank.images import decode
from fullrank.images.decode import open_bytes


def encode_and_open(image, format, **options):
    """Save an image and open it again."""
    file = io.BytesIO()
    image.save(file, format, **options)
    return open_bytes(file.getvalue(), "x")


@pytest.mark.parametrize(
    ("mode", "format"),
    [("1", "png"), ("L", "png"), ("P", "gif"), ("CMYK", "jpeg"), ("YCbCr", "jpeg"), ("RGBA", "webp")],
)
@pytest.mark.parametrize("channels", [1, 3])
def test_every_mode_becomes_grayscale_or_colour(photo, mode, format, channels):
    image = decode(encode_and_open(photo.convert(mode), format), channels)
    assert (image.mode, image.size) == ({1: "L", 3: "RGB"}[channels], (64, 48))


def test_colours_of_16_bits_become_their_luma():
    pixels = np.random.default_rng(0).integers(0, 2**16, (4, 6, 3), dtype=np.uint16)
    grey = np.asarray(decode(pixels, 1))
    assert np.allclose(grey[..., 0], pixels / 65535 @ [0.299, 0.587, 0.114], atol=1e-6)


@pytest.mark.parametrize("format", ["png", "tiff", "ppm"])
def test_sixteen_bits_are_scaled_from_their_full_range(format):
    values = np.array([[0, 128, 129, 257, 32768, 65535]], dtype=np.uint16)
    pixels = np.asarray(decode(encode_and_open(Image.fromarray(values), format), 1))
    assert np.array_equal(np.round(pixels[..., 0].astype(float) * 65535), values)
    colours = decode(encode_and_open(Image.fromarray(values), format), 3)
    assert np.array_equal(colours, np.repeat(pixels, 3, axis=2))


def test_transparent_pixels_are_blended_with_white():
    pixels = np.array([[[10, 20, 30, 0], [10, 20, 30, 255], [0, 0, 0, 51]]], dtype=np.uint8)
    decoded = decode(encode_and_open(Image.fromarray(pixels), "png"), 3)
    assert np.asarray(decoded).tolist() == [[[255, 255, 255], [10, 20, 30], [204, 204, 204]]]


@pytest.mark.parametrize("format", ["jpeg", "png"])
@pytest.mark.parametrize("orientation", [1, 3, 5, 6])
def test_the_exif_orientation_is_applied(photo, format, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    turn = {3: "ROTATE_180", 5: "TRANSPOSE", 6: "ROTATE_270"}
    upright = photo.transpose(Image.Transpose[turn[orientation]]) if orientation > 1 else photo
    decoded = decode(encode_and_open(photo, format, exif=exif), 3)
    assert decoded.size == upright.size
    assert np.abs(np.asarray(decoded, float) - np.asarray(upright, float)).mean() < 3


def test_a_jpeg_is_decoded_at_a_reduced_scale_that_keeps_the_shorter_side(photo):
    big = photo.resize((800, 600))
    for shorter, size in [(75, (100, 75)), (76, (200, 150)), (300, (400, 300)), (301, (800, 600)), (9999, (800, 600))]:
        assert decode(encode_and_open(big, "jpeg"), 3, min_size=(shorter, shorter)).size == size
    assert decode(encode_and_open(big, "png"), 3, min_size=(75, 75)).size == (800, 600)


def npy(array, **options):
    file = io.BytesIO()
    np.save(file, array, **options)
    return open_bytes(file.getvalue(), "x.npy")


def test_other_numbers_of_channels_are_not_converted(photo):
    array = np.arange(30, dtype=np.uint8).reshape(2, 3, 5)
    assert np.array_equal(decode(npy(array), 5), array)
    assert np.array_equal(decode(npy(array.astype(np.uint16) * 257), 5), array / np.float32(255))
    assert decode(encode_and_open(photo.convert("CMYK"), "tiff"), 4).shape == (48, 64, 4)
    assert decode(encode_and_open(photo.convert("LA"), "png"), 2).shape == (48, 64, 2)


@pytest.mark.parametrize(("have", "want"), [(5, 3), (3, 4)])
def test_other_numbers_of_channels_cannot_be_converted(have, want):
    with pytest.raises(UserError, match=f"'x.npy' has {have} channels, expected {want}; .*set channels to {have}"):
        decode(npy(np.zeros((2, 3, have), dtype=np.uint8)), want, name="x.npy")
