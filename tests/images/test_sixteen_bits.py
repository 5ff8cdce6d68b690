"""Images of 16 bits keep their bits from the file to the network."""

import struct
import zlib

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from fullrank.evaluation import extract_features
from fullrank.images import Preprocess, as_images, iterate_batches, load_images, open_images
from fullrank.images.dataset_info import channel_statistics, find_bit_depth
from fullrank.methods.config import BackboneConfig
from fullrank.models import Model

STEPS = 40000 + np.arange(256, dtype=np.uint16).reshape(16, 16)  # in 8 bits, these 256 values would be two


@pytest.fixture
def folder(tmp_path):
    """Four 16-bit images of 256 neighbouring values each."""
    for k in range(4):
        Image.fromarray(STEPS + np.uint16(256 * k)).save(tmp_path / f"{k}.png")
    return open_images(tmp_path)["all"]


def values(pixels):
    return np.round(pixels.double().numpy() * 65535).astype(int)


def test_every_value_reaches_memory_batches_and_features(folder):
    preprocess = Preprocess(1, 16, (0.5,), (0.25,))
    (batch,) = iterate_batches(folder, preprocess)
    assert np.array_equal(values(load_images(folder, channels=1).pixels[0, 0]), STEPS)
    assert np.array_equal(values(batch.pixels[3, 0]), STEPS + 768)
    features = extract_features(nn.Flatten(), folder, preprocess).X
    assert np.array_equal(values(features[1].reshape(16, 16) * 0.25 + 0.5), STEPS + 256)


def test_images_of_8_and_16_bits_mix(folder):
    mixed = as_images([np.full((16, 16, 1), 51, np.uint8), STEPS[..., None]])
    for chunk in (1, 2):
        batches = list(iterate_batches(mixed, Preprocess(1, 16, (0.0,), (1.0,)), batch_size=chunk))
        assert batches[0].pixels.dtype == (torch.uint8 if chunk == 1 else torch.float32)
    pixels = load_images(mixed, channels=1).pixels
    assert pixels[0].unique().item() == np.float32(0.2)
    assert np.array_equal(values(pixels[1, 0]), STEPS)
    mean, std = channel_statistics(mixed, channels=1)
    exact = np.stack([np.full((16, 16), 0.2), STEPS / 65535])
    assert np.allclose((mean[0], std[0]), (exact.mean(), exact.std()), atol=1e-9)


def test_a_model_receives_every_value_of_images_in_memory(folder):
    model = Model("pixels", nn.Flatten(), Preprocess(1, 16, (0.0,), (1.0,)), BackboneConfig())
    for images in (folder, load_images(folder, channels=1), [STEPS + np.uint16(256 * k) for k in range(4)]):
        assert np.array_equal(values(model.features(images)[3].reshape(16, 16)), STEPS + 768)


RAMP = np.linspace(0, 1, 64 * 48).reshape(48, 64)


@pytest.fixture
def write_depths(tmp_path):
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
def test_the_depth_is_that_of_the_largest_value_of_the_data_set(write_depths, maximum, bits, suffix):
    images = write_depths(maximum // 3, maximum, suffix=suffix)
    depth = find_bit_depth(images)
    assert depth.bits == bits
    assert f"{bits} bits" in depth.notes[0]
    assert "--data.bits" in depth.notes[0]


def test_colours_that_lose_bits_are_said(tmp_path):
    header = struct.pack(">IIBBBBB", 4, 3, 16, 2, 0, 0, 0)  # a PNG of 4×3 pixels with three channels of 16 bits
    rows = b"".join(b"\0" + np.full(12, 300 * row, ">u2").tobytes() for row in range(3))
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    parts = (struct.pack(">I", len(c)) + t + c + struct.pack(">I", zlib.crc32(t + c)) for t, c in chunks)
    (tmp_path / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(parts))
    depth = find_bit_depth(open_images(tmp_path)["all"])
    assert depth.bits == 0
    assert "upper 8" in depth.notes[0]


def test_four_bands_with_a_transparent_one_are_said(tmp_path):
    Image.new("RGBA", (8, 8)).save(tmp_path / "a.tif")
    assert any("--data.channels 4" in note for note in find_bit_depth(open_images(tmp_path)["all"]).notes)
