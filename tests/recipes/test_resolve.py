"""One way from words to a recipe: a given field wins, and what follows from it is computed once."""

import json
from dataclasses import replace

import numpy as np
import pytest

from fullrank.errors import UserError
from fullrank.images import as_images
from fullrank.methods import BackboneConfig
from fullrank.recipes import RECIPES, DataConfig, check, resolve, to_dict, with_fields, with_objective
from fullrank.recipes.rules import Start
from fullrank.training import OptimizerConfig
from fullrank.views import ViewConfig

DIGITS = RECIPES["digits"]


def test_without_overrides_a_recipe_is_itself(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(to_dict(DIGITS)))
    assert DIGITS == resolve("digits", {}) == resolve(DIGITS, {}) == resolve(path, {}) == resolve(str(path), {})


def test_fields_are_given_by_name_part_or_word():
    fields = {"log-every": 7, "views.0.size": 12, "optimizer": OptimizerConfig(lr=0.5), "backbone": "resnet50"}
    recipe = resolve("digits", fields)
    assert (recipe.log_every, recipe.views[0].size, recipe.optimizer) == (7, 12, OptimizerConfig(lr=0.5))
    assert recipe.backbone == BackboneConfig(name="resnet50", stem="small")
    views = (ViewConfig(size=8, count=4),)
    recipe = resolve("digits", {"projector": [64, 32], "views": views, "data.label_column": "x"})
    assert (recipe.projector.widths, recipe.views) == ((64, 32), views)
    assert recipe.data.reading.label_column == "x"


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({"epoch": 3}, "there is no field 'epoch'; did you mean 'epochs'?"),
        ({"optimizer.rate": 3}, "there is no field 'optimizer.rate'"),
        ({"hyper.covariance": 3}, "there is no field 'hyper.covariance'"),
        ({"views.x.size": 3}, "there is no field 'views.x.size'"),
        ({"views.2.size": 3}, "add it first"),
        ({"epochs": "many"}, "epochs: got 'many'"),
        ({"optimizer": "sgdd"}, "optimizer.name: got 'sgdd'"),
        ({"backbone": "resnet51"}, "unknown backbone 'resnet51'"),
        ({"objective": "frosl"}, "did you mean 'frossl'?"),
        ({"objective": 3}, "expected its name"),
    ],
)
def test_a_wrong_field_or_value_is_an_error(overrides, expected):
    with pytest.raises(UserError) as caught:
        resolve("digits", overrides)
    assert expected in str(caught.value)


@pytest.mark.parametrize("source", ["digitz", None, "", "no/such/folder", "../no-such-folder"])
def test_words_that_are_no_recipe_are_an_error(source):
    with pytest.raises(UserError, match="expected a recipe"):
        resolve(source, {})


def test_a_run_is_no_source(tmp_path):
    (tmp_path / "recipe.json").write_text("{}")
    with pytest.raises(UserError, match="--resume"):
        resolve(tmp_path, {})


FOLLOWS = [
    ("cifar10", {"batch_size": 512}, {"optimizer.lr": 0.6, "hyper.invariance": 2.0}),
    ("digits", {"batch_size": 32}, {"optimizer.lr": 2.5e-3, "hyper.invariance": 0.25}),
    ("imagenet-simclr", {"batch_size": 1024}, {"optimizer.lr": 4.8}),
    ("cifar10", {"epochs": 20}, {"schedule.warmup": 4.0}),
    ("cifar10-swav", {"epochs": 20}, {"schedule.warmup": 4.0, "method.queue_start": 4.0, "method.freeze": 2.0}),
    ("digits", {"epochs": 500}, {"schedule.warmup": 2.0}),
    ("cifar10", {"views.0.size": 96}, {"backbone.stem": "standard", "backbone.arguments": {"zero_init_last": False}}),
    ("stl10", {"views.0.size": 64}, {"backbone.stem": "small"}),
    ("digits", {"backbone.name": "resnet50"}, {"backbone.stem": "small", "backbone.arguments": {}}),
    ("cifar10", {"backbone.name": "vit_tiny_patch16_224"}, {"backbone.stem": "standard", "backbone.arguments": {}}),
    (
        "cifar10-moco",
        {"optimizer.name": "adamw", "batch_size": 64},
        {"optimizer.lr": 1e-3, "optimizer.weight_decay": 1e-4, "optimizer.decay_all": False},
    ),
    ("cifar10", {"projector.widths": [64, 512]}, {"hyper.invariance": 2.0}),
    ("digits", {"views.0.count": 5}, {"hyper.invariance": 10**-0.5}),
    ("cifar10", {"hyper.log": False}, {"hyper.variance": 255 / 1024**2}),
    ("imagenet-directclr", {"backbone.name": "resnet18"}, {"hyper.d0": 90, "backbone.arguments": {}}),
    ("cifar10-wmse", {"batch_size": 64}, {"projector.widths": [1024, 32], "optimizer.lr": 1e-3}),
]


@pytest.mark.parametrize(("name", "given", "follows"), FOLLOWS)
def test_what_follows_from_a_field_is_computed_and_said(name, given, follows):
    lines = []
    recipe = resolve(name, given, notify=lines.append)
    assert recipe == with_fields(with_fields(RECIPES[name], given), follows)
    said = {field: value for field, value in follows.items() if field != "backbone.arguments"}
    assert any("follows" in line for line in lines) == (with_fields(RECIPES[name], said) != RECIPES[name])


@pytest.mark.parametrize(("name", "given", "follows"), FOLLOWS)
def test_a_given_field_wins_over_what_follows(name, given, follows):
    own = {field: {"optimizer.lr": 7.0, "schedule.warmup": 3.0}.get(field, value) for field, value in follows.items()}
    assert resolve(name, given | own) == with_fields(RECIPES[name], given | own)


def test_further_groups_of_views_are_copies_with_one_view():
    first = DIGITS.views[0]
    recipe = resolve("digits", {"views.2.count": 6, "views.1.size": 6})
    assert recipe.views == (first, replace(first, count=1, size=6), replace(first, count=6))


def test_another_objective_takes_its_published_recipe_with_the_fields_of_the_run():
    lines = []
    recipe = resolve("cifar10", {"objective": "byol", "epochs": 20, "method.predictor": 64}, notify=lines.append)
    assert recipe == resolve("cifar10-byol", {"epochs": 20, "method.predictor": 64})
    assert "cifar10-byol" in lines[0]
    own = replace(RECIPES["cifar10"], seed=7, data=DataConfig(source="elsewhere"))
    assert resolve(own, {"objective": "vicreg"}) == replace(RECIPES["cifar10-vicreg"], seed=7, data=own.data)
    assert resolve(resolve("cifar10", {"epochs": 20}), {"objective": "byol"}) == resolve("cifar10-byol", {"epochs": 20})


def test_an_objective_without_a_published_recipe_keeps_the_rest():
    lines = []
    assert resolve("digits", {"objective": "wmse"}, notify=lines.append) == with_objective(DIGITS, "wmse")
    assert "no published recipe" in lines[0]
    weighted = replace(DIGITS, hyper={"invariance": 3.0})
    assert with_objective(weighted, "frossl").hyper == weighted.hyper
    assert with_objective(RECIPES["imagenet-directclr"], "tico").projector.widths == (2048, 2048, 1024)
    own = replace(RECIPES["cifar10"], batch_size=512)  # its own values count
    assert resolve(own, {"objective": "byol"}) == with_objective(own, "byol")


def test_d0_is_the_share_of_the_paper_unless_it_is_given():
    of = {"objective": "directclr"}
    assert resolve("digits", of).hyper["d0"] == 22  # of 128 features
    assert resolve("digits", of | {"backbone.name": "resnet50"}).hyper["d0"] == 360
    assert resolve("digits", of, start=START).hyper["d0"] == 360
    assert resolve("digits", of | {"hyper.d0": 7}, start=START).hyper["d0"] == 7
    recipe = resolve("digits", of | {"hyper.d0": 7})
    assert resolve(recipe, {"epochs": 3}).hyper["d0"] == 7


@pytest.mark.parametrize("objective", ["vicreg", "wmse", "corinfomax", "directclr", "byol", "simsiam"])
def test_with_objective_fits_the_projector_and_the_hyperparameters(objective):
    recipe = with_objective(RECIPES["cifar10-simsiam"], objective)
    assert not recipe.optimizer.constant_predictor or objective == "simsiam"
    check(recipe)
    if objective in ("wmse", "corinfomax"):
        assert recipe.projector.widths[-1] == 64
    assert recipe.projector.absent == (objective == "directclr")


def test_images_get_the_general_recipe(photos):
    lines = []
    recipe = resolve(str(photos), {"epochs": 7, "views.0.size": 64, "seed": 3}, notify=lines.append)
    assert (recipe.name, recipe.data.source, recipe.data.channels) == ("photos", str(photos), 3)
    assert (recipe.epochs, recipe.schedule.warmup, recipe.views[0].size, recipe.seed) == (7, 1.4, 64, 3)
    assert [view.size for view in resolve(str(photos), {"views.1.size": 24}).views] == [32, 24]
    assert recipe.views[0].blur.probability == 0.5  # as photos_recipe says for this size
    assert recipe.batch_size == 16
    assert any("48 training images" in line for line in lines)
    assert any("narrow and shallow" in line and "--views.0.size 64" in line for line in lines)
    assert any("--epochs 7" in line for line in lines)
    one, other = (resolve(name, {"data.source": str(photos)}) for name in ("photos", None))
    assert one == resolve(photos, {}) == other
    grey = resolve(photos, {"data.channels": 1})
    assert (grey.data.channels, grey.views[0].grayscale) == (1, 0.0)
    assert resolve(photos, {"objective": "vicreg"}).objective == "vicreg"


def test_images_in_memory_get_the_general_recipe():
    images = as_images(np.zeros((50, 3, 40, 40), dtype=np.uint8))
    assert resolve(images, {"epochs": 3}).views[0].size == 32


RESNET = BackboneConfig(name="resnet50")
START = Start(model="timm:resnet50", hash="abc", backbone=RESNET, channels=3, size=224, mean=(), std=())


def test_a_model_to_start_with_gives_network_and_channels(photos):
    recipe = resolve("digits", {}, start=START)
    assert (recipe.init, recipe.init_hash, recipe.backbone) == ("timm:resnet50", "abc", START.backbone)
    assert (recipe.data.channels, recipe.optimizer, recipe.schedule) == (3, DIGITS.optimizer, DIGITS.schedule)
    assert resolve("digits", {"optimizer.lr": 0.3, "data.channels": 1}, start=START).data.channels == 1
    assert resolve(photos, {}, start=START).views[0].size == 224


def test_a_start_with_untrained_weights_leaves_the_statistics_of_the_images():
    start = replace(START, model="timm-untrained:resnet50", mean=(0.5,) * 3, std=(0.2,) * 3)
    recipe = resolve("digits", {}, start=start)
    assert (recipe.init, recipe.backbone, recipe.data.channels) == (start.model, RESNET, 3)
    assert (recipe.data.mean, recipe.data.std) == ((), ())


def test_the_weights_of_frossl_keep_their_balance_also_without_logarithms():
    recipe = resolve("cifar10-nologs", {"projector.widths": (512, 64), "batch_size": 128})
    assert recipe.hyper["variance"] == pytest.approx(64 / 64**2)
    assert recipe.hyper["invariance"] == pytest.approx(4 * 128 / 64)
    assert resolve("cifar10-vicreg", {"batch_size": 64}).hyper == RECIPES["cifar10-vicreg"].hyper


def test_a_balanced_weight_is_the_number_for_the_batch_the_projector_and_the_views(tmp_path):
    words = {"hyper.invariance": "balanced", "hyper.variance": "balanced", "hyper.log": False, "views.0.count": 3}
    recipe = resolve("cifar10-frossl-fork", words | {"batch_size": 64, "projector.widths": [32, 16]})
    assert recipe.hyper["invariance"] == pytest.approx(4 * 64 / 16 / 3**0.5)
    assert recipe.hyper["variance"] == 16 / 16**2
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"batch_size": 64, "hyper": {"invariance": "balanced"}}))
    assert resolve(path, {}).hyper["invariance"] == 0.25
    assert resolve(path, {"batch_size": 128}).hyper["invariance"] == 0.5
    with pytest.raises(UserError, match=r"balanced.*number"):
        resolve("cifar10-vicreg", {"hyper.invariance": "balanced"})
