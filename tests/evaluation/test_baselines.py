from dataclasses import replace

import torch
from torch import nn

from fullrank.evaluation import calibrate_batchnorm, extract_features, raw_pixels, state_hash
from fullrank.images import Preprocess, open_images


def network(*, affine=True):
    torch.manual_seed(0)
    norms = nn.BatchNorm2d(4, affine=affine), nn.BatchNorm2d(6, momentum=0.3)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), norms[0], nn.ReLU(), nn.Dropout(), nn.Conv2d(4, 6, 3), norms[1], nn.Flatten()
    )


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def test_raw_pixels_are_the_normalised_pixels(digits, preprocess):
    features = raw_pixels(digits, preprocess)
    assert torch.equal(features.X, preprocess.normalize(digits.pixels).flatten(1))
    assert torch.equal(features.labels, digits.labels)


def test_raw_pixels_of_large_images_are_resized(digits):
    large, small = Preprocess(1, 40, (0.3,), (0.4,)), Preprocess(1, 32, (0.3,), (0.4,))
    features = raw_pixels(open_images("digits")["all"].subset(range(5)), large)
    assert torch.equal(
        features.X, extract_features(nn.Flatten(), open_images("digits")["all"].subset(range(5)), small).X
    )


def test_calibrated_statistics_equal_those_of_the_data(digits, preprocess):
    """One batch holds all images, so that the average over batches equals the statistics, up to Bessel's factor."""
    backbone = network()
    conv, norm, *_ = backbone
    calibrate_batchnorm(backbone, digits, preprocess, batch_size=len(digits), generator=seeded())
    with torch.no_grad():
        maps = conv(preprocess.normalize(digits.pixels))
    torch.testing.assert_close(norm.running_mean, maps.mean((0, 2, 3)), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(norm.running_var, maps.var((0, 2, 3)), rtol=1e-4, atol=1e-5)


def test_calibrated_features_are_normalised_in_eval_mode(digits, preprocess):
    backbone = calibrate_batchnorm(network(), digits, preprocess, generator=seeded())
    maps = extract_features(backbone, digits, preprocess).X.view(len(digits), 6, -1)
    assert maps.mean((0, 2)).abs().max() < 0.1
    assert (maps.var((0, 2)) - 1).abs().max() < 0.2
    raw = extract_features(network(), digits, preprocess).X.view(len(digits), 6, -1)
    assert (raw.var((0, 2)) - 1).abs().max() > 0.5  # without calibration, the variance is not 1


def test_images_sorted_by_class_give_the_statistics_of_all_images(digits, preprocess):
    rows = digits.labels.argsort(stable=True)
    ordered = replace(digits, pixels=digits.pixels[rows], labels=digits.labels[rows])
    a, b = (
        calibrate_batchnorm(network(), images, preprocess, batch_size=128, generator=seeded())
        for images in (digits, ordered)
    )
    torch.testing.assert_close(a[5].running_var, b[5].running_var, rtol=0.05, atol=0)


def test_weights_modes_and_momenta_do_not_change(digits, preprocess):
    backbone = network().train()
    backbone[1].eval()
    weights = {name: value.clone() for name, value in backbone.named_parameters()}
    calibrate_batchnorm(backbone, digits, preprocess, generator=seeded())
    assert all(torch.equal(value, weights[name]) for name, value in backbone.named_parameters())
    assert (backbone[1].momentum, backbone[5].momentum) == (0.1, 0.3)
    assert [part.training for part in backbone] == [True, False, True, True, True, True, True]


def test_calibration_is_a_function_of_the_generator(digits, preprocess):
    a, b, c = (
        calibrate_batchnorm(network(), digits, preprocess, sample=200, batch_size=50, generator=seeded(s))
        for s in (0, 0, 1)
    )
    assert state_hash(a) == state_hash(b) != state_hash(c)


def test_previous_statistics_have_no_effect(digits, preprocess):
    backbone = network()
    for _ in range(2):
        calibrate_batchnorm(backbone, digits, preprocess, generator=seeded())
    assert state_hash(backbone) == state_hash(calibrate_batchnorm(network(), digits, preprocess, generator=seeded()))


def test_fewer_images_than_a_batch_are_one_batch(digits, preprocess):
    few = replace(
        digits, pixels=digits.pixels[:7], labels=digits.labels[:7], names=digits.names[:7], groups=digits.groups[:7]
    )
    backbone = calibrate_batchnorm(network(), few, preprocess, generator=seeded())
    assert backbone[1].num_batches_tracked == 1


def test_an_incomplete_last_batch_is_left_out(digits, preprocess):
    backbone = calibrate_batchnorm(network(), digits, preprocess, sample=130, batch_size=64, generator=seeded())
    assert backbone[1].num_batches_tracked == 2


def test_a_network_without_batchnorm_does_not_change(digits, preprocess):
    backbone = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    before = state_hash(backbone)
    assert calibrate_batchnorm(backbone, digits, preprocess, generator=seeded()) is backbone
    assert state_hash(backbone) == before


def test_calibration_works_on_a_source(digits, preprocess):
    a = calibrate_batchnorm(network(), open_images("digits")["all"], preprocess, generator=seeded())
    b = calibrate_batchnorm(network(), digits, preprocess, generator=seeded())
    assert state_hash(a) == state_hash(b)
