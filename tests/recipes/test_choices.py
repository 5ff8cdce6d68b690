"""What follows from a choice of epochs, batch size, view size, backbone or optimizer."""

from dataclasses import replace

import pytest

from fullrank.errors import UserError
from fullrank.recipes import RECIPES, check, with_choices
from fullrank.recipes.choices import OPTIMIZERS, explain_choices

each = pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES.keys())
SOME = (
    "digits",
    "cifar10-small",
    "cifar10",
    "cifar10-moco",
    "cifar10-wmse",
    "stl10-wmse-fork",
    "imagenet",
    "imagenet-simclr",
)
some = pytest.mark.parametrize("recipe", [RECIPES[name] for name in SOME], ids=SOME)


@each
def test_choosing_nothing_or_the_recipe_s_own_values_changes_nothing(recipe):
    assert with_choices(recipe) == recipe
    size = max(view.size for view in recipe.views)
    same = {"epochs": recipe.epochs, "batch_size": recipe.batch_size, "size": size, "optimizer": recipe.optimizer.name}
    assert with_choices(recipe, **same) == recipe


@some
@pytest.mark.parametrize("epochs", [1, 7, 5000])
def test_the_warm_up_is_at_most_a_fifth_of_the_epochs(recipe, epochs):
    found = with_choices(recipe, epochs=epochs)
    assert found.epochs == epochs
    assert found.schedule.warmup == min(recipe.schedule.warmup, epochs / 5)
    check(found)


def test_the_waits_of_swav_and_dino_follow_the_epochs():
    swav, dino = (
        with_choices(RECIPES["cifar10-swav"], epochs=20).method,
        with_choices(RECIPES["imagenet100-dino"], epochs=100).method,
    )
    assert (swav["queue_start"], swav["freeze"], swav["queue"]) == (4.0, 2.0, 3840)
    assert (dino["temperature_warmup"], dino["freeze"]) == (20.0, 1.0)
    (line,) = explain_choices(RECIPES["cifar10-swav"], found := with_choices(RECIPES["cifar10-swav"], epochs=20), found)
    assert "method.queue_start 50.0 → 4.0" in line
    assert "method.freeze" not in line


@pytest.mark.parametrize(
    ("name", "factor"),
    [
        *(
            ("cifar10", 1 / 4),
            ("stl10-byol", 1 / 4),
            ("imagenet", 1 / 4),
            ("cifar10-moco", 1 / 4),
            ("digits", 1 / 2),
            ("cifar10-wmse", 1 / 2),
        ),
        *(("imagenet-simclr", 1), ("imagenet-directclr", 1), ("imagenet-byol", 1 / 4)),
    ],
)
def test_the_learning_rate_follows_the_batch_by_the_rule_of_its_optimizer(name, factor):
    recipe = RECIPES[name]
    found = with_choices(recipe, batch_size=recipe.batch_size // 4)
    assert found.batch_size == recipe.batch_size // 4
    assert found.optimizer.lr == pytest.approx(recipe.optimizer.lr * factor)


@some
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_another_optimizer_has_a_learning_rate_of_its_own(recipe, optimizer):
    found = with_choices(recipe, optimizer=optimizer, batch_size=256).optimizer
    assert found.name == optimizer
    if optimizer != recipe.optimizer.name:
        assert (found.lr, found.weight_decay, found.decay_all) == (
            OPTIMIZERS[optimizer].lr,
            OPTIMIZERS[optimizer].weight_decay,
            False,
        )


def test_an_unknown_optimizer_is_an_error():
    with pytest.raises(UserError, match=r"unknown optimizer 'adamm'.*did you mean 'adam'"):
        with_choices(RECIPES["digits"], optimizer="adamm")


@pytest.mark.parametrize(
    ("name", "size", "stem"),
    [
        ("stl10", 48, "small"),
        ("stl10", 128, "standard"),
        ("cifar10", 96, "standard"),
        ("cifar10", 64, "small"),
        ("digits", 16, "small"),
    ],
)
def test_the_stem_follows_the_size_of_the_views(name, size, stem):
    assert with_choices(RECIPES[name], size=size).backbone.stem == stem


def test_a_stem_other_than_the_rule_s_is_kept_while_the_size_needs_the_same_stem():
    recipe = replace(RECIPES["stl10"], backbone=replace(RECIPES["stl10"].backbone, stem="small"))
    assert with_choices(recipe, size=128).backbone.stem == "small"


@some
@pytest.mark.parametrize("backbone", ["resnet18", "resnet50", "convnext_atto", "vit_tiny_patch16_224"])
def test_a_backbone_has_its_own_arguments(recipe, backbone):
    found = with_choices(recipe, backbone=backbone).backbone
    assert (found.name, found.arguments) == (backbone, {})
    assert (found.stem == "small") is (backbone.startswith("resnet") and recipe.views[0].size <= 64)


def test_the_explanation_names_what_follows_and_leaves_out_what_a_flag_sets():
    recipe = RECIPES["cifar10"]
    derived = with_choices(recipe, epochs=40, batch_size=64)
    (line,) = explain_choices(recipe, derived, derived)
    assert "optimizer.lr 0.3 → 0.075" in line
    assert "schedule.warmup 10.0 → 8.0" in line
    final = replace(derived, optimizer=replace(derived.optimizer, lr=1.0))
    (line,) = explain_choices(recipe, derived, final)
    assert "optimizer.lr" not in line
    assert explain_choices(recipe, recipe, recipe) == []
