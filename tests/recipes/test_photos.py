from dataclasses import replace

import pytest

from fullrank.errors import UserError
from fullrank.images import DatasetInfo
from fullrank.methods import BackboneConfig
from fullrank.recipes import check, check_num_images, explain_photos_recipe, from_dict, photos_recipe, to_dict


def dataset_info(count=10_000, *, side=256, channels=3, height=None):
    median = (side, height or side)
    return DatasetInfo(count, channels, median, median, median, True, 0, {"RGB": 64})


def recipe(*arguments, gpu=False, choices=(), **numbers):
    return photos_recipe("folder:cats", dataset_info(*arguments, **numbers), gpu=gpu, **dict(choices))


@pytest.mark.parametrize(
    ("side", "gpu", "size", "backbone", "stem"),
    [
        (8, False, 32, "resnet18", "small"),
        (48, False, 32, "resnet18", "small"),
        (49, False, 64, "resnet18", "small"),
        (112, True, 64, "resnet18", "small"),
        (113, False, 96, "resnet18", "standard"),
        (2000, False, 96, "resnet18", "standard"),
        (113, True, 224, "resnet50", "standard"),
        (2000, True, 224, "resnet50", "standard"),
    ],
)
def test_size_and_backbone_depend_on_the_images_and_the_machine(side, gpu, size, backbone, stem):
    found = recipe(side=side, gpu=gpu)
    assert (found.views[0].size, found.backbone.name, found.backbone.stem) == (size, backbone, stem)


@pytest.mark.parametrize(
    ("gpu", "batch", "weight"), [(False, 256, 4.0), (False, 64, 1.0), (True, 256, 1.0), (True, 1024, 4.0)]
)
def test_the_invariance_weight_keeps_frossls_balance(gpu, batch, weight):
    found = recipe(gpu=gpu, choices={"batch_size": batch})
    assert found.hyper["invariance"] == weight == 4 * batch / found.projector.widths[-1]


def test_a_vision_transformer_has_the_optimizer_of_dino_and_a_longer_warmup():
    vit = recipe(10_000, gpu=True, choices={"backbone": "vit_small_patch16_224", "epochs": 100})
    assert (vit.optimizer.name, vit.optimizer.lr, vit.optimizer.weight_decay, vit.optimizer.clip_norm) == (
        "adamw",
        5e-4,
        0.04,
        3.0,
    )
    assert (vit.views[0].size, vit.schedule.warmup) == (224, 10.0)
    small = recipe(10_000, gpu=True, choices={"backbone": "vit_small_patch16_224", "batch_size": 64})
    assert small.optimizer.lr == 2.5e-4
    assert recipe(10_000, choices={"backbone": "vit_small_patch16_224", "optimizer": "sgd"}).optimizer.name == "sgd"
    assert recipe(10_000, choices={"epochs": 100}).schedule.warmup == 5.0


def test_the_shorter_side_determines_the_size():
    assert recipe(side=1000, height=40).views[0].size == 32


@pytest.mark.parametrize(
    ("count", "batch"),
    [(32, 16), (63, 16), (64, 16), (127, 16), (128, 32), (255, 32), (256, 64), (1023, 128), (1024, 256), (10**7, 256)],
)
def test_an_epoch_has_four_batches_if_possible(count, batch):
    assert recipe(count).batch_size == batch


@pytest.mark.parametrize(
    ("count", "gpu", "epochs"),
    [
        (100, False, 800),
        (1000, False, 500),
        (5000, False, 100),
        (10**6, False, 20),
        (25_000, True, 800),
        (100_000, True, 200),
        (10**7, True, 20),
    ],
)
def test_epochs_follow_from_a_budget_of_images(count, gpu, epochs):
    assert recipe(count, gpu=gpu).epochs == epochs


@pytest.mark.parametrize("gpu", [False, True])
def test_a_cpu_gets_a_small_network(gpu):
    found = recipe(gpu=gpu)
    assert bool(found.backbone.arguments) is not gpu
    assert found.projector.widths == ((2048, 2048, 1024) if gpu else (512, 256))


@pytest.mark.parametrize(("side", "blurred"), [(32, False), (64, True), (256, True)])
def test_views_of_64_pixels_or_more_are_blurred(side, blurred):
    assert (recipe(side=side).views[0].blur.probability > 0) is blurred


@pytest.mark.parametrize("channels", [1, 3, 5])
def test_colours_change_only_for_rgb_images(channels):
    found = recipe(channels=channels)
    (view,) = found.views
    assert found.data.channels == channels
    assert [bool(value) for value in (view.jitter.saturation, view.jitter.hue, view.grayscale)] == [channels == 3] * 3
    assert view.jitter.brightness > 0


def test_the_learning_rate_is_proportional_to_the_square_root_of_the_batch():
    assert recipe(64).optimizer.lr == pytest.approx(recipe(10_000).optimizer.lr / 4)


@pytest.mark.parametrize("gpu", [False, True])
@pytest.mark.parametrize("count", [32, 500, 10**7])
@pytest.mark.parametrize("side", [8, 64, 500])
def test_every_recipe_is_valid_and_can_be_saved(count, side, gpu):
    found = recipe(count, side=side, gpu=gpu)
    check(found)
    check_num_images(found, count)
    assert from_dict(to_dict(found)) == found
    assert found.schedule.warmup <= found.epochs / 5


def test_each_choice_names_its_flag():
    info = dataset_info(1000, side=300, height=200, channels=1)
    found = photos_recipe("folder:cats", info, gpu=False)
    text = "\n".join(explain_photos_recipe(found, info))
    assert "1,000 images, 1 channel, median 300×200 px" in text
    for flag in (
        "--views.0.size",
        "--backbone.name",
        "--backbone.stem",
        "--batch_size",
        "--epochs",
        "--optimizer.lr",
        "--schedule.warmup",
    ):
        assert flag in text
    assert f"batch size {found.batch_size}" in text
    assert f"{found.epochs} epochs" in text
    assert "narrow and shallow for a CPU" in text
    assert " epochs (--epochs)" not in "\n".join(explain_photos_recipe(found, info, hours=2.0)), (
        "--hours chooses them later"
    )
    five = dataset_info(channels=5)
    assert "5 channels" in explain_photos_recipe(photos_recipe("x", five, gpu=True), five)[0]


def test_the_explanation_is_of_the_recipe_that_runs():
    info = dataset_info()
    changed = replace(recipe(), epochs=3, batch_size=48, backbone=BackboneConfig(name="convnext_atto"))
    text = "\n".join(explain_photos_recipe(changed, info))
    for value in ("batch size 48", "3 epochs", "convnext_atto"):
        assert value in text
    assert "resnet18" not in text
    assert "narrow" not in text


@pytest.mark.parametrize("gpu", [False, True])
@pytest.mark.parametrize("epochs", [1, 3, 10, 40, 1000])
def test_the_warm_up_follows_the_chosen_epochs(epochs, gpu):
    found = recipe(100, gpu=gpu, choices={"epochs": epochs})  # 800 epochs without the choice, with a warm-up of 40
    assert found.epochs == epochs
    assert found.schedule.warmup == min(max(0.05 * epochs, 1), epochs / 5)


def test_the_learning_rate_follows_the_chosen_batch_size():
    assert (
        recipe(choices={"batch_size": 64}).optimizer.lr == recipe(choices={"batch_size": 1024}).optimizer.lr / 4 == 1e-3
    )


@pytest.mark.parametrize(("name", "lr"), [("lars", 0.15), ("sgd", 0.025)])
def test_the_learning_rate_follows_the_chosen_optimizer(name, lr):
    found = recipe(choices={"optimizer": name, "batch_size": 128})
    assert (found.optimizer.name, found.optimizer.lr) == (name, lr)


@pytest.mark.parametrize(
    ("size", "stem", "blurred"), [(48, "small", False), (64, "small", True), (96, "standard", True)]
)
def test_stem_and_blur_follow_the_chosen_size(size, stem, blurred):
    found = recipe(side=30 if size > 64 else 300, choices={"size": size})
    assert (found.views[0].size, found.backbone.stem, found.views[0].blur.probability > 0) == (size, stem, blurred)
    assert recipe(gpu=True, choices={"size": 160}).backbone.name == "resnet18"


@pytest.mark.parametrize("name", ["resnet50", "resnet18", "vit_tiny_patch16_224", "convnext_atto", "resnet18d"])
def test_a_chosen_backbone_is_that_network_with_its_own_arguments(name):
    found = recipe(side=40, choices={"backbone": name})
    assert (found.backbone.name, found.backbone.arguments) == (name, {})
    assert (found.backbone.stem == "small") is (name in ("resnet50", "resnet18"))


def test_too_few_images_are_an_error():
    with pytest.raises(UserError, match="folder:cats has 31 training images, expected at least 32"):
        recipe(31)
