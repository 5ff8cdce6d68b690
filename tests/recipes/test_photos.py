"""The general recipe for any collection of images."""

from dataclasses import replace

import pytest

from fullrank.errors import UserError
from fullrank.images import dataset_info, open_images
from fullrank.recipes import check, from_dict, photos_recipe, resolve, to_dict
from fullrank.recipes.assembling import check_num_images


def info(count=10_000, side=300, channels=3):
    return replace(dataset_info(open_images("digits")["all"]), count=count, channels=channels, median=(side, side))


def recipe(count=10_000, *, side=300, channels=3, gpu=False, **choices):
    return photos_recipe("folder:cats", info(count, side, channels), gpu=gpu, **choices)


@pytest.mark.parametrize(
    ("side", "gpu", "size", "backbone"),
    [(8, False, 32, "resnet18"), (48, True, 32, "resnet18"), (112, True, 64, "resnet18"), (113, False, 96, "resnet18"),
     (113, True, 224, "resnet50")],
)  # fmt: skip
def test_views_and_network_follow_the_images_and_the_machine(side, gpu, size, backbone):
    found = recipe(side=side, gpu=gpu)
    assert (found.views[0].size, found.backbone.name, bool(found.backbone.arguments)) == (size, backbone, not gpu)
    assert found.backbone.stem == ("small" if size <= 64 else "standard")
    assert (found.views[0].blur.probability > 0) == (size >= 64)


def test_batches_and_epochs_follow_the_number_of_images():
    assert [recipe(count).batch_size for count in (32, 127, 128, 1023, 1024, 10**7)] == [16, 16, 32, 128, 256, 256]
    assert [recipe(count).epochs for count in (100, 5000, 10**6)] == [800, 100, 20]
    assert recipe(100_000, gpu=True).epochs == 200


@pytest.mark.parametrize("channels", [1, 3, 5])
def test_colours_change_only_for_rgb_images(channels):
    (view,) = recipe(channels=channels).views
    assert [bool(value) for value in (view.jitter.saturation, view.jitter.hue, view.grayscale)] == [channels == 3] * 3


def test_other_values_follow_from_a_choice():
    assert resolve(recipe(), {"batch_size": 64}).optimizer.lr == recipe().optimizer.lr / 2 == 1e-3
    assert resolve(recipe(), {"optimizer": "lars", "batch_size": 128}).optimizer.lr == 0.15
    assert resolve(recipe(100), {"epochs": 3}).schedule.warmup == 0.6
    transformer = resolve(recipe(backbone="vit_small_patch16_224"), {"batch_size": 64})
    optimizer, warmup = transformer.optimizer, transformer.schedule.warmup
    assert (optimizer.clip_norm, optimizer.lr, warmup) == (3.0, 2.5e-4, 5.0)
    assert (transformer.backbone.arguments, transformer.backbone.stem) == ({}, "standard")
    assert recipe(size=64).hyper["invariance"] == 4 * 256 / 256


@pytest.mark.parametrize("gpu", [False, True])
@pytest.mark.parametrize(("count", "side"), [(32, 8), (500, 64), (10**7, 500)])
def test_every_recipe_is_valid_and_can_be_saved(count, side, gpu):
    found = recipe(count, side=side, gpu=gpu)
    check(found)
    check_num_images(found, count)
    assert from_dict(to_dict(found)) == found


def test_too_few_images_are_an_error():
    with pytest.raises(UserError, match="has 31 training images, expected at least 32"):
        recipe(31)
