from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torchvision.transforms import v2

from fullrank.evaluation.augmented import Augmentation, augmented_features, keep_decoded
from fullrank.images import DecodeErrors, Images, Preprocess, load_images, open_images

CROP = Augmentation((0.2, 1.0), flip=0.5)


@pytest.fixture
def source() -> Images:
    return open_images("digits")["all"].subset(range(40))


def test_each_pass_has_other_crops_that_the_seed_repeats(halves, preprocess):
    def features(number, seed=0, **options):
        return augmented_features(nn.Flatten(), halves[0], preprocess, CROP, number, seed=seed, **options)

    first = features(0)
    assert torch.equal(first, features(0, batch_size=7))
    assert torch.equal(first[:, 3:9], features(0, dimensions=slice(3, 9)))
    changed = [(first != other).any(1).double().mean() for other in (features(1), features(0, seed=1))]
    assert min(changed) > 0.95


def test_without_crop_and_flip_the_features_are_those_of_the_images(halves, preprocess):
    whole = Augmentation((1.0, 1.0), flip=0.0)  # a square of the whole area is the only box that fits
    square = replace(halves[0], pixels=halves[0].pixels.repeat(1, 1, 2, 2))
    found = augmented_features(nn.Flatten(), square, replace(preprocess, size=16), whole, 0, seed=0)
    inside = (found - preprocess.normalize(square.pixels).flatten(1)).abs().amax(1) < 1e-5
    assert inside.double().mean() > 0.2  # for another ratio, torchvision's fallback is the largest centred box
    flipped = augmented_features(
        nn.Flatten(), square, replace(preprocess, size=16), Augmentation((1.0, 1.0), flip=1.0), 0, seed=0
    )
    torch.testing.assert_close(flipped[inside].view(-1, 16, 16), found[inside].view(-1, 16, 16).flip(2))


def test_the_mean_over_passes_is_that_of_torchvision(halves):
    """A linear statistic of many crops: the mean pixel of each image."""
    preprocess, images = (
        Preprocess(1, 8, (0.0,), (1.0,)),
        replace(halves[0], pixels=halves[0].pixels[:4], labels=halves[0].labels[:4], groups=halves[0].groups[:4]),
    )
    found = torch.stack(
        [augmented_features(nn.Flatten(), images, preprocess, CROP, k, seed=0).mean(1) for k in range(100)]
    )
    torch.manual_seed(0)
    crop = v2.Compose([v2.RandomResizedCrop(8, scale=CROP.crop, antialias=True), v2.RandomHorizontalFlip()])
    expected = torch.stack([torch.stack([crop(x).float().mean() / 255 for x in images.pixels]) for _ in range(100)])
    error = (found.std(0) ** 2 + expected.std(0) ** 2).sqrt() / 10
    assert ((found.mean(0) - expected.mean(0)).abs() < 4 * error).all()


def test_images_that_are_decoded_in_each_pass_give_the_same_crops(source, preprocess):
    decoded = load_images(source, channels=1)
    on_disk, in_memory = (
        augmented_features(nn.Flatten(), images, preprocess, CROP, 3, seed=2) for images in (source, decoded)
    )
    assert (on_disk - in_memory).abs().max() * 0.38 < 1.01 / 255  # crops of files are rounded to 8 bits


def test_unreadable_images_are_left_out_in_order(tmp_path):
    rng = np.random.default_rng(0)
    for name in "acd":
        Image.fromarray(rng.integers(0, 255, (9, 9, 3), dtype=np.uint8)).save(tmp_path / f"{name}.png")
    (tmp_path / "b.png").write_text("no image")
    images = open_images(tmp_path)["all"]
    errors = DecodeErrors(max_error_fraction=0.5)
    colour = Preprocess(3, 8, (0.5,) * 3, (0.5,) * 3)
    X = augmented_features(nn.Flatten(), images, colour, CROP, 0, seed=0, decode_errors=errors)
    kept = keep_decoded(images, colour, decode_errors=DecodeErrors(max_error_fraction=0.5))
    assert (len(X), len(kept), list(errors.reasons)) == (len(images) - 1, len(images) - 1, ["b.png"])


def test_grey_images_become_colours_for_a_network_of_three_channels(halves):
    colour = Preprocess(3, 12, (0.5,) * 3, (0.5,) * 3)
    kept = keep_decoded(halves[0], colour)
    assert kept.pixels.shape == (300, 3, 8, 8)
    assert augmented_features(nn.Flatten(), kept, colour, CROP, 0, seed=0).shape == (300, 3 * 144)


def test_images_of_several_sizes_are_decoded_in_each_pass(tmp_path):
    for size in (20, 30):
        Image.new("RGB", (size, size), "teal").save(tmp_path / f"{size}.png")
    images = open_images(tmp_path)["all"]
    colour = Preprocess(3, 8, (0.5,) * 3, (0.5,) * 3)
    assert keep_decoded(images, colour) is images
    assert augmented_features(nn.Flatten(), images, colour, CROP, 0, seed=0).shape == (2, 192)
