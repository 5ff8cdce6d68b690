import io

import numpy as np
import pytest
from PIL import Image, ImageCms, ImageOps

from fullrank.errors import UserError
from fullrank.images import ImageDecodeError, decode
from fullrank.images.decode import open_bytes, open_cell


def encode_and_open(image, format, **options):
    """Save an image and open it again."""
    file = io.BytesIO()
    image.save(file, format, **options)
    return open_bytes(file.getvalue(), "x")


def test_colour_files_become_rgb_and_grayscale_on_request(photo):
    assert np.array_equal(decode(encode_and_open(photo, "png"), 3), photo)
    assert np.array_equal(decode(encode_and_open(photo, "png"), 1), photo.convert("L"))


def test_grayscale_is_repeated_in_three_channels(photo):
    gray = photo.convert("L")
    assert np.array_equal(decode(encode_and_open(gray, "png"), 3), np.dstack([gray] * 3))


@pytest.mark.parametrize(
    ("mode", "format"),
    [("1", "png"), ("L", "png"), ("P", "gif"), ("CMYK", "jpeg"), ("YCbCr", "jpeg"), ("LAB", "tiff"), ("RGBA", "webp")],
)
@pytest.mark.parametrize("channels", [1, 3])
def test_every_mode_becomes_grayscale_or_colour(photo, mode, format, channels):
    source = photo.convert("RGB" if mode == "LAB" else mode)
    source = Image.frombytes("LAB", (64, 48), source.tobytes()) if mode == "LAB" else source
    image = decode(encode_and_open(source, format), channels)
    assert (image.mode, image.size) == ({1: "L", 3: "RGB"}[channels], (64, 48))


@pytest.mark.parametrize("channels", [1, 3])
def test_32_bit_integers_are_read_as_16_bits(channels):
    values = np.array([[-5, 0, 300, 65535, 70000]], dtype=np.int32)
    pixels = decode(encode_and_open(Image.fromarray(values), "tiff"), channels)
    assert np.array_equal(
        np.round(np.asarray(pixels, float) * 65535), np.repeat(values.clip(0, 65535)[..., None], channels, axis=2)
    )


def test_colours_of_16_bits_become_their_luma():
    pixels = np.random.default_rng(0).integers(0, 2**16, (4, 6, 3), dtype=np.uint16)
    grey = np.asarray(decode(pixels, 1))
    assert np.allclose(grey[..., 0], pixels / 65535 @ [0.299, 0.587, 0.114], atol=1e-6)


def test_lab_keeps_its_colours(photo):
    lab = ImageCms.buildTransform(ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB"), "RGB", "LAB").apply(
        photo
    )
    error = np.abs(np.asarray(decode(encode_and_open(lab, "tiff"), 3), float) - np.asarray(photo, float))
    assert error.mean() < 3


def test_a_palette_is_looked_up(photo):
    palette = photo.quantize(16)
    assert np.array_equal(decode(encode_and_open(palette, "png"), 3), palette.convert("RGB"))


def test_cmyk_keeps_its_colours(photo):
    error = np.abs(
        np.asarray(decode(encode_and_open(photo.convert("CMYK"), "tiff"), 3), float) - np.asarray(photo, float)
    )
    assert error.max() <= 1


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


def test_the_transparent_colour_of_a_palette_is_white():
    image = Image.new("P", (2, 1))
    image.putpalette([9, 9, 9, 50, 60, 70])
    image.putpixel((1, 0), 1)
    assert np.asarray(decode(encode_and_open(image, "png", transparency=0), 3)).tolist() == [
        [[255, 255, 255], [50, 60, 70]]
    ]


@pytest.mark.parametrize("format", ["jpeg", "png", "webp", "tiff"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_exif_orientation_is_applied(photo, format, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    turn = {
        2: "FLIP_LEFT_RIGHT",
        3: "ROTATE_180",
        4: "FLIP_TOP_BOTTOM",
        5: "TRANSPOSE",
        6: "ROTATE_270",
        7: "TRANSVERSE",
        8: "ROTATE_90",
    }
    upright = photo.transpose(Image.Transpose[turn[orientation]]) if orientation > 1 else photo
    decoded = decode(encode_and_open(photo, format, exif=exif, **({"lossless": True} if format == "webp" else {})), 3)
    assert decoded.size == upright.size
    assert np.abs(np.asarray(decoded, float) - np.asarray(upright, float)).mean() < 3


def test_an_image_with_invalid_exif_can_be_decoded(photo):
    assert decode(encode_and_open(photo, "jpeg", exif=b"Exif\0\0II*\0\x08\0\0\0\xff\xff rubbish"), 3).size == (64, 48)


def test_a_jpeg_is_decoded_at_a_reduced_scale_that_keeps_the_shorter_side(photo):
    big = photo.resize((800, 600))
    for shorter, size in [(75, (100, 75)), (76, (200, 150)), (300, (400, 300)), (301, (800, 600)), (9999, (800, 600))]:
        assert decode(encode_and_open(big, "jpeg"), 3, min_size=(shorter, shorter)).size == size
    assert decode(encode_and_open(big, "png"), 3, min_size=(75, 75)).size == (800, 600)


def test_the_first_frame_of_an_animation_is_used():
    frames = [Image.new("L", (4, 4), value) for value in (10, 200)]
    assert decode(encode_and_open(frames[0], "gif", save_all=True, append_images=frames[1:]), 1).getpixel((0, 0)) == 10


def npy(array, **options):
    file = io.BytesIO()
    np.save(file, array, **options)
    return open_bytes(file.getvalue(), "x.npy")


def test_arrays_with_one_or_three_channels_are_images():
    gray = np.arange(6, dtype=np.uint8).reshape(2, 3)
    assert np.array_equal(decode(npy(gray), 1), gray)
    assert np.array_equal(decode(npy(gray[..., None]), 3), np.dstack([gray] * 3))
    colour = np.arange(18, dtype=np.uint8).reshape(2, 3, 3)
    assert np.array_equal(decode(npy(colour), 3), colour)


def test_other_numbers_of_channels_are_not_converted(photo):
    array = np.arange(30, dtype=np.uint8).reshape(2, 3, 5)
    assert np.array_equal(decode(npy(array), 5), array)
    assert np.array_equal(decode(npy(array.astype(np.uint16) * 257), 5), array / np.float32(255))
    assert decode(encode_and_open(photo.convert("CMYK"), "tiff"), 4).shape == (48, 64, 4)
    assert decode(encode_and_open(photo.convert("LA"), "png"), 2).shape == (48, 64, 2)


@pytest.mark.parametrize(("have", "want"), [(5, 3), (5, 1), (5, 4), (3, 4), (1, 2)])
def test_other_numbers_of_channels_cannot_be_converted(have, want):
    with pytest.raises(UserError, match=f"'x.npy' has {have} channels, expected {want}; .*set channels to {have}"):
        decode(npy(np.zeros((2, 3, have), dtype=np.uint8)), want, name="x.npy")


@pytest.mark.parametrize(
    ("array", "reason"),
    [
        (np.zeros((2, 3)), "dtype float64"),
        (np.zeros((2, 3, 4, 5), dtype=np.uint8), "shape"),
        (np.zeros((0, 3), dtype=np.uint8), "shape"),
    ],
)
def test_other_arrays_are_decode_errors(array, reason):
    with pytest.raises(ImageDecodeError, match=reason):
        decode(npy(array), 3)


def test_pickled_arrays_are_never_loaded():
    with pytest.raises(ImageDecodeError, match="allow_pickle"):
        npy(np.array([{}], dtype=object), allow_pickle=True)


def test_floats_are_decode_errors(photo):
    with pytest.raises(ImageDecodeError, match="unknown range"):
        decode(encode_and_open(photo.convert("L").convert("F"), "tiff"), 3)


@pytest.mark.parametrize("format", ["jpeg", "png", "gif", "tiff", "webp", "bmp"])
def test_a_truncated_file_is_a_decode_error(photo, format):
    file = io.BytesIO()
    ImageOps.flip(photo).save(file, format)
    with pytest.raises(ImageDecodeError, match=r"^x: "):
        decode(open_bytes(file.getvalue()[: len(file.getvalue()) // 2], "x"), 3, name="x")


def test_other_files_are_decode_errors():
    with pytest.raises(ImageDecodeError, match="cannot identify the image format"):
        open_bytes(b"hello, this is text", "x.jpg")
    with pytest.raises(ImageDecodeError, match="file is empty"):
        open_bytes(b"", "x.jpg")


def test_a_cell_contains_bytes_a_path_or_nothing(write):
    path = write("a.png") / "a.png"
    assert open_cell({"bytes": path.read_bytes(), "path": None}, "row").size == (8, 6)
    assert open_cell({"bytes": None, "path": str(path)}, "row").size == (8, 6)
    with pytest.raises(ImageDecodeError, match="No such file"):
        open_cell({"bytes": None, "path": f"{path}.gone"}, "row")
    with pytest.raises(ImageDecodeError, match="row has no image"):
        open_cell(None, "row")
