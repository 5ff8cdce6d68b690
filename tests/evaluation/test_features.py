"""Feature sets: the calibrated untrained network, augmented passes, groups, and the overlap with pretraining."""

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torchvision.transforms import v2

from fullrank.errors import UserError
from fullrank.evaluation import calibrate_batchnorm, extract_features, raw_pixels, standardize
from fullrank.evaluation.features import feature_sets, keep_decoded, passes_of, select_dimensions
from fullrank.evaluation.protocol import SgdProtocol
from fullrank.evaluation.task import Task, count_overlap
from fullrank.images import Device, Preprocess, load_images, open_images
from fullrank.models.model_images import LabelledSplits

COLOUR = Preprocess(3, 8, (0.5,) * 3, (0.5,) * 3)


def cpu(batch_size):
    return Device(accelerator="cpu", batch_size=batch_size)


def network():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        first = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.0)
        return nn.Sequential(*first, nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6, momentum=0.3), nn.Flatten())


def calibrate(images, preprocess, *, backbone=None, seed=0, **options):
    generator = torch.Generator().manual_seed(seed)
    return calibrate_batchnorm(backbone or network(), images, preprocess, generator=generator, **options)


def state(backbone):
    return [tensor.clone() for tensor in backbone.state_dict().values()]


def passes(images, preprocess, *, seed=0, **options):
    return passes_of(nn.Flatten(), images, preprocess, SgdProtocol(crop=(0.2, 1.0)), seed, **options)


@pytest.fixture
def photos(tmp_path):
    """Four images in colour, of which the second cannot be read."""
    rng = np.random.default_rng(0)
    for name in "acd":
        Image.fromarray(rng.integers(0, 255, (9, 9, 3), dtype=np.uint8)).save(tmp_path / f"{name}.png")
    (tmp_path / "b.png").write_text("no image")
    return open_images(tmp_path)["all"]


def test_calibrated_statistics_are_those_of_the_images_in_any_order(digits, preprocess):
    """One batch holds all images, so that the average over batches equals the statistics, up to Bessel's factor."""
    backbone = calibrate(digits, preprocess, device=cpu(len(digits)))
    with torch.no_grad():
        maps = backbone[0](preprocess.normalize(digits.pixels))
    torch.testing.assert_close(backbone[1].running_mean, maps.mean((0, 2, 3)), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(backbone[1].running_var, maps.var((0, 2, 3)), rtol=1e-4, atol=1e-5)
    by_class = digits.subset(digits.labels.argsort(stable=True).numpy())
    parts = [calibrate(images, preprocess, device=cpu(128))[5].running_var for images in (digits, by_class)]
    torch.testing.assert_close(*parts, rtol=0.05, atol=0)
    X = extract_features(backbone, digits, preprocess).X.view(len(digits), 6, -1)
    assert (X.var((0, 2)) - 1).abs().max() < 0.2
    raw = extract_features(network(), digits, preprocess).X.view(len(digits), 6, -1)
    assert (raw.var((0, 2)) - 1).abs().max() > 0.5  # without calibration, the variance is not 1


def test_calibration_depends_on_the_generator_and_changes_statistics_alone(digits, preprocess):
    backbone = network().train()
    backbone[1].eval()
    weights = [value.clone() for value in backbone.parameters()]
    options = {"sample": 130, "device": cpu(64)}
    first = state(calibrate(digits, preprocess, backbone=backbone, **options))
    assert backbone[1].num_batches_tracked == 2  # the incomplete last batch is left out
    assert all(map(torch.equal, backbone.parameters(), weights))
    assert (backbone[1].momentum, backbone[5].momentum) == (0.1, 0.3)
    assert [part.training for part in backbone] == [True, False, True, True, True, True, True]
    again = state(calibrate(digits, preprocess, backbone=backbone, **options))  # the earlier statistics have no effect
    assert all(map(torch.equal, first, again))
    assert not all(map(torch.equal, first, state(calibrate(digits, preprocess, seed=1, **options))))
    few = calibrate(digits.subset(range(7)), preprocess)
    assert few[1].num_batches_tracked == 1
    linear = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    assert calibrate(digits, preprocess, backbone=linear) is linear


def test_each_pass_has_other_crops_that_the_seed_repeats(halves, preprocess):
    first, second = islice(passes(halves[0], preprocess), 2)
    assert torch.equal(first, next(passes(halves[0], preprocess, device=cpu(7))))
    for other in (second, next(passes(halves[0], preprocess, seed=1))):
        assert (first != other).any(1).double().mean() > 0.95


def test_the_mean_over_passes_is_that_of_torchvision(halves):
    """A linear statistic of many crops: the mean pixel of each image."""
    plain, images = Preprocess(1, 8, (0.0,), (1.0,)), halves[0].subset(range(4))
    found = torch.stack([X.mean(1) for X in islice(passes(images, plain), 100)])
    crop = v2.Compose([v2.RandomResizedCrop(8, scale=(0.2, 1.0), antialias=True), v2.RandomHorizontalFlip()])
    with torch.random.fork_rng():
        torch.manual_seed(0)
        means = [torch.stack([crop(x).float().mean() / 255 for x in images.pixels]) for _ in range(100)]
    expected = torch.stack(means)
    error = (found.std(0) ** 2 + expected.std(0) ** 2).sqrt() / 10
    assert ((found.mean(0) - expected.mean(0)).abs() < 4 * error).all()


def test_images_that_are_decoded_in_each_pass_give_the_same_crops(preprocess):
    source = open_images("digits")["all"].subset(range(40))
    on_disk, in_memory = (next(passes(part, preprocess, seed=2)) for part in (source, load_images(source, channels=1)))
    assert (on_disk - in_memory).abs().max() * 0.38 < 1.01 / 255  # crops of files are rounded to 8 bits


def test_grey_images_become_colours_and_several_sizes_are_decoded_in_each_pass(halves, tmp_path):
    decoding = COLOUR.decoding(Device())
    assert keep_decoded(halves[0], COLOUR, decoding).pixels.shape == (300, 3, 8, 8)
    for size in (20, 30):
        Image.new("RGB", (size, size), "teal").save(tmp_path / f"{size}.png")
    images = open_images(tmp_path)["all"]
    assert keep_decoded(images, COLOUR, decoding) is images
    assert next(passes(images, COLOUR)).shape == (2, 192)


def test_a_feature_set_has_labelled_rows_groups_and_augmented_passes(photos):
    photos.labels, photos.groups = np.array([0, 0, -1, 1]), np.array([4, 5, 6, 7])
    task = Task(LabelledSplits(photos, photos, "photos", ""), Device(accelerator="cpu", max_error_fraction=0.5))
    (found,) = feature_sets([raw_pixels(COLOUR)], task, seed=0)
    X, y, X_test = found.arrays()
    assert (len(X), y.tolist(), len(X_test)) == (2, [0, 1], 2)
    assert found.target.groups.tolist() == found.groups.tolist() == [4, 7]  # of a.png and d.png
    protocol = SgdProtocol(views=2, epochs=4, standardize=False)
    first, second, third = islice(found.passes(protocol), 3)
    assert first.shape == X.shape
    assert torch.equal(first, third)
    assert not torch.equal(first, second)
    standard = next(found.passes(replace(protocol, standardize=True)))
    torch.testing.assert_close(standard, standardize(found.train.X, first)[1])


def test_raw_pixels_of_large_images_are_resized(digits):
    pixels = raw_pixels(Preprocess(1, 40, (0.3,), (0.4,)))
    assert (pixels.name, pixels.preprocess.size) == ("raw pixels (32 px)", 32)
    small = Preprocess(1, 8, (0.3,), (0.4,))
    X = extract_features(raw_pixels(small).module, digits, small).X
    assert torch.equal(X, small.normalize(digits.pixels).flatten(1))


@pytest.mark.parametrize("wrong", [slice(65), slice(64, None), slice(5, 5), slice(-3, None)])
def test_dimensions_that_do_not_exist_are_user_errors(few, preprocess, wrong):
    features = extract_features(nn.Flatten(), few[0], preprocess)
    assert torch.equal(select_dimensions(features, slice(3, 9)).X, features.X[:, 3:9])
    with pytest.raises(UserError, match="dimensions is"):
        select_dimensions(features, wrong)


def test_equal_pixels_overlap_whatever_the_names_and_formats(tmp_path, digits):
    pixels = np.random.default_rng(0).integers(0, 256, (6, 8, 8, 3), dtype=np.uint8)
    for folder in ("pretraining", "test"):
        (tmp_path / folder).mkdir()
    for number in range(4):
        Image.fromarray(pixels[number]).save(tmp_path / "pretraining" / f"{number}.png")
    for number in range(2, 6):
        Image.fromarray(pixels[number]).save(tmp_path / "test" / f"photo{number}.bmp")
    (tmp_path / "test" / "broken.png").write_bytes(b"no image")
    test, pretraining = (open_images(str(tmp_path / name))["all"] for name in ("test", "pretraining"))
    assert count_overlap(test, pretraining, channels=3)[0] == 2
    tall = digits.subset(range(4))
    wide = replace(tall, pixels=tall.pixels.reshape(4, 1, 4, 16))
    assert [count_overlap(tall, other, channels=1)[0] for other in (wide, tall)] == [0, 4]  # the shape counts
