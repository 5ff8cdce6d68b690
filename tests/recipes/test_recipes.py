"""The recipes of the data sets, against the numbers that were published."""

from dataclasses import replace

import pytest
import torch

from fullrank.recipes import RECIPES, assemble, check

each = pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES.keys())


def measured(recipe):
    """The recipe, as a run completes it."""
    C = recipe.data.channels
    return replace(recipe, data=replace(recipe.data, mean=(0.5,) * C, std=(0.25,) * C))


def test_a_recipe_is_found_by_its_own_name():
    assert all(recipe.name == name for name, recipe in RECIPES.items())
    assert list(RECIPES) == ["digits", "cifar10-small", "cifar10", "cifar100", "stl10", "imagenet"]


@each
def test_a_recipe_passes_its_own_check(recipe):
    check(recipe)


@each
def test_a_recipe_trains_with_frossl_on_two_views(recipe):
    assert recipe.objective == "frossl"
    assert sum(view.count for view in recipe.views) == 2


@each
def test_warm_up_leaves_time_to_train(recipe):
    assert recipe.schedule.warmup < recipe.epochs / 5


@pytest.mark.parametrize("name", ["digits", "cifar10-small"])
def test_the_small_recipes_run(name):
    recipe = replace(measured(RECIPES[name]), batch=4)
    parts = assemble(recipe)
    size = recipe.views[0].size
    images = torch.randint(0, 256, (4, recipe.data.channels, size, size), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    embeddings = parts.method(parts.views(images, parts.views.draw(0, 0, 4)))
    assert embeddings["Z"].shape == (2, 4, recipe.projector.widths[-1])
    assert all(term.isfinite() for term in parts.method.terms(embeddings).values())


def test_cifar_is_that_of_the_paper():
    for name in ("cifar10", "cifar100"):
        recipe = RECIPES[name]
        assert (recipe.backbone.name, recipe.backbone.stem, recipe.projector.widths) == ("resnet18", "small", (2048, 2048, 1024))
        assert (recipe.optimizer.name, recipe.optimizer.lr, recipe.optimizer.weight_decay) == ("lars", 0.3, 1e-6)
        assert (recipe.schedule.name, recipe.schedule.warmup, recipe.epochs, recipe.batch) == ("cosine", 10.0, 1000, 256)
        (view,) = recipe.views
        assert (view.size, view.crop.scale, view.crop.probability) == (32, (0.08, 1.0), 1.0)
        assert (view.jitter.brightness, view.jitter.contrast, view.jitter.saturation, view.jitter.hue) == (0.8, 0.8, 0.8, 0.2)
        assert (view.jitter.probability, view.grayscale, view.blur.probability, view.flip) == (0.8, 0.2, 0.5, 0.5)


def test_stl10_is_that_of_the_paper():
    recipe = RECIPES["stl10"]
    assert (recipe.backbone.name, recipe.backbone.stem, recipe.projector.widths) == ("resnet18", "standard", (2048, 1024))
    assert (recipe.epochs, recipe.batch, recipe.views[0].size, recipe.hyper["invariance"]) == (500, 256, 96, 1.4)


def test_imagenet_is_that_of_the_paper():
    recipe = RECIPES["imagenet"]
    assert (recipe.optimizer.name, recipe.optimizer.lr, recipe.optimizer.weight_decay) == ("sgd", 1e-2, 5e-4)
    assert (recipe.schedule.name, recipe.schedule.period, recipe.schedule.warmup) == ("restarts", 15.0, 0.0)
    assert (recipe.epochs, recipe.batch, recipe.backbone.name) == (100, 224, "resnet18")
    first, second = recipe.views
    assert (first.blur.probability, first.solarize.probability) == (1.0, 0.0)
    assert (second.blur.probability, second.solarize.probability) == (0.1, 0.2)
