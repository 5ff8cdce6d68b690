"""The recipe of a call of `pretrain`: a name, a source, and fields by keyword."""

import json
from dataclasses import replace

import numpy as np
import pytest

from fullrank.errors import UserError
from fullrank.images import as_images
from fullrank.recipes import RECIPES, Recipe, method_recipe, to_file, with_objective
from fullrank.recipes.choices import with_choices
from fullrank.recipes.from_keywords import recipe_from_keywords
from fullrank.training import OptimizerConfig


def build(recipe, data=None, **changes):
    return recipe_from_keywords(recipe, RECIPES, data, changes)


def test_a_name_alone_is_the_recipe():
    assert build("digits") == RECIPES["digits"]
    assert build(RECIPES["digits"]) == RECIPES["digits"]


def test_fields_follow_from_the_choices_as_on_the_command_line():
    derived = build("digits", epochs=10, batch_size=64)
    assert derived == with_choices(RECIPES["digits"], epochs=10, batch_size=64)
    assert derived.optimizer.lr != RECIPES["digits"].optimizer.lr
    assert build("digits", batch_size=64, **{"optimizer.lr": 0.5}).optimizer.lr == 0.5  # what is given wins


def test_parts_and_dotted_names_are_fields():
    changed = build(
        "digits", optimizer=OptimizerConfig(lr=0.2), seed=4, **{"views.0.size": 16, "projector.widths": [64, 32]}
    )
    assert changed.optimizer == OptimizerConfig(lr=0.2)
    assert (changed.seed, changed.views[0].size, changed.projector.widths) == (4, 16, (64, 32))


def test_a_plain_value_means_the_name_of_a_part():
    changed = build("digits", backbone="test_resnet", optimizer="adamw", objective="vicreg")
    assert (changed.backbone.name, changed.backbone.arguments, changed.optimizer.name) == ("test_resnet", {}, "adamw")
    assert changed.objective == "vicreg"
    assert "covariance" in changed.hyper


def test_another_objective_takes_its_published_recipe_and_says_so():
    lines = []
    found = recipe_from_keywords("cifar10", RECIPES, None, {"objective": "barlow_twins", "epochs": 20}, lines.append)
    assert found == with_choices(RECIPES["cifar10-barlow_twins"], epochs=20)
    assert build(RECIPES["cifar10"], objective="byol") == RECIPES["cifar10-byol"]
    assert build("cifar10-small", objective="frossl") == RECIPES["cifar10-small"]
    recipe_from_keywords("cifar10", RECIPES, None, {"objective": "tico"}, lines.append)
    assert len(lines) == 2
    assert "cifar10-barlow_twins" in lines[0]
    assert "those of cifar10" in lines[1]


def test_a_changed_recipe_keeps_its_changes_with_another_objective():
    mine = with_choices(RECIPES["cifar10"], batch_size=512)
    found, sentence = method_recipe(mine, "barlow_twins")
    assert found == with_objective(mine, "barlow_twins") == build(mine, objective="barlow_twins")
    assert "those of cifar10" in sentence
    assert method_recipe(mine, "frossl") == (mine, "")


@pytest.mark.parametrize(
    "shorten", [lambda recipe: replace(recipe, epochs=20), lambda recipe: with_choices(recipe, epochs=20)]
)
def test_the_published_recipe_of_another_objective_keeps_the_epochs_the_data_and_the_seed(shorten):
    data = replace(RECIPES["cifar10"].data, subset=5000)
    found, _ = method_recipe(replace(shorten(RECIPES["cifar10"]), data=data, seed=3), "corinfomax")
    assert found == replace(with_choices(RECIPES["cifar10-corinfomax"], epochs=20), data=data, seed=3)


def test_a_folder_and_images_get_the_general_recipe(photos):
    by_name, by_data = build(photos, epochs=3), build("photos", str(photos), epochs=3)
    assert (by_name.name, by_name.data.source, by_name.epochs, by_name.schedule.warmup) == (
        "photos",
        str(photos),
        3,
        by_data.schedule.warmup,
    )
    assert by_name == by_data == build(None, str(photos), epochs=3)
    images = as_images(np.zeros((64, 1, 8, 8), np.uint8))
    assert build(None, images).data.channels == 1


def test_a_recipe_file_is_a_recipe(tmp_path):
    file = tmp_path / "recipe.json"
    file.write_text(json.dumps(to_file(RECIPES["digits"])))
    assert build(file) == build(str(file)) == RECIPES["digits"]
    assert build(file, epochs=10) == build("digits", epochs=10)


def test_the_stem_follows_from_the_largest_view_not_from_the_one_that_changes():
    """The recipe has two views of 224 px."""
    assert build("imagenet", **{"views.1.size": 48}).backbone.stem == "standard"
    assert build("imagenet", **{"views.0.size": 48, "views.1.size": 48}).backbone.stem == "small"


@pytest.mark.parametrize(
    ("recipe", "changes", "words"),
    [
        ("digit", {}, "did you mean 'digits'"),
        ("no/such/folder", {}, "neither a recipe nor a path"),
        (3, {}, r"recipe is 3 \(int\)"),
        (None, {}, "no recipe"),
        ("digits", {"epoch": 3}, "did you mean 'epochs'"),
        ("digits", {"epochs": "2"}, "epochs.*'2'"),
        ("digits", {"epochs": None}, "epochs"),
        ("digits", {"epochs": -1}, "epochs"),
        ("digits", {"optimizer": 3}, "optimizer"),
        ("digits", {"optimizer.rate": 3}, "rate"),
        ("digits", {"views.7.size": 3}, "views.7.size"),
        ("digits", {"seed.x": 3}, "seed.x"),
        ("digits", {"objective": 3}, "objective is 3"),
        ("digits", {"objective": "vicregg"}, "did you mean 'vicreg'"),
        ("digits", {"backbone": "resnet81"}, "resnet81"),
    ],
)
def test_a_wrong_call_is_an_error_of_one_line(recipe, changes, words):
    with pytest.raises(UserError, match=words) as error:
        build(recipe, **changes)
    assert "\n" not in str(error.value)


def test_two_sources_are_an_error(photos):
    with pytest.raises(UserError, match="leave one"):
        build(str(photos), "digits")
    assert build("digits", "digits") == RECIPES["digits"] == Recipe(**vars(RECIPES["digits"]))


def test_another_objective_has_no_constant_predictor():
    simsiam = RECIPES["cifar10-simsiam"]
    found, sentence = method_recipe(simsiam, "tico")
    assert found.optimizer == replace(simsiam.optimizer, constant_predictor=False)
    assert "optimizer, schedule, projector, views" in sentence
    assert with_objective(simsiam, "simsiam").optimizer.constant_predictor


def test_a_change_that_moves_frossls_balance_is_said():
    said = []
    recipe_from_keywords("cifar10", RECIPES, None, {"batch_size": 64}, said.append)
    assert ["--hyper.invariance 0.25 keeps" in line for line in said] == [True]
    recipe_from_keywords("cifar10", RECIPES, None, {"batch_size": 64, "hyper.invariance": 0.3}, said.append)
    recipe_from_keywords(RECIPES["cifar10"], RECIPES, None, {"seed": 3}, said.append)
    assert len(said) == 1
