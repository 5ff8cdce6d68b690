"""The recipes of the data sets, against the numbers that were published."""

from dataclasses import replace

import pytest
import torch

from fullrank.methods import build_backbone, build_projector, feature_dim
from fullrank.methods.backbones import last_block
from fullrank.methods.config import BackboneConfig
from fullrank.recipes import ORIGINS, RECIPES, assemble, build_method, check
from fullrank.recipes.catalog import ENTRIES, FAMILIES
from fullrank.recipes.choices import WAITS

each = pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES.keys())

OWN = ("digits", "cifar10-small", "cifar10-projectors")


def with_statistics(recipe):
    """Fill in statistics of the data, as a run does."""
    C = recipe.data.channels
    return replace(recipe, data=replace(recipe.data, mean=(0.5,) * C, std=(0.25,) * C))


def test_the_key_of_a_recipe_is_its_name():
    assert all(recipe.name == name for name, recipe in RECIPES.items())


def test_a_recipe_is_built_once():
    assert RECIPES["cifar10-byol"] is RECIPES["cifar10-byol"]
    assert dict(RECIPES).keys() == RECIPES.keys() == ORIGINS.keys()


def test_the_name_is_data_set_objective_and_variant():
    for name, entry in ENTRIES.items():
        family, recipe = entry.family, RECIPES[name]
        assert (name == family or name.startswith(f"{family}-")) if family else name in OWN
        if family and name not in (family, f"{family}-nologs"):
            assert name.removeprefix(f"{family}-").split("-")[0] == recipe.objective
        assert (recipe.name, recipe.objective) == (name, entry.objective)
        if family:
            assert (recipe.data.source, RECIPES[family].objective) == (RECIPES[family].data.source, "frossl")


def test_every_recipe_says_whose_it_is():
    assert {name for name, origin in ORIGINS.items() if "fullrank" in origin} == set(OWN)
    assert {entry.family for entry in ENTRIES.values()} == FAMILIES.keys()


def test_the_methods_with_published_values_are_on_every_data_set():
    methods = {
        "simclr",
        "swav",
        "moco",
        "simsiam",
        "byol",
        "dino",
        "vicreg",
        "barlow_twins",
        "wmse",
        "corinfomax",
        "ivne",
    }
    missing = {f"{family}-{method}" for family in filter(None, FAMILIES) for method in methods} - RECIPES.keys()
    assert not missing


@each
def test_every_recipe_is_valid_and_its_parts_can_be_built(recipe):
    check(recipe)
    with torch.device("meta"):
        method = build_method(recipe)
    assert method.objective is not None


@each
def test_warm_up_is_at_most_a_fifth_of_the_run(recipe):
    assert recipe.schedule.warmup <= recipe.epochs / 5
    assert all(recipe.method.get(name, 0) <= recipe.epochs / 5 for name in WAITS)


@pytest.mark.parametrize("name", [name for name in RECIPES if name.startswith("cifar10-")])
def test_the_methods_of_cifar_have_a_loss_and_a_gradient(name):
    """With a network of a few layers and small views, on random images."""
    recipe = with_statistics(RECIPES[name])
    views = tuple(replace(view, size=max(view.size // 4, 4), count=min(view.count, 8)) for view in recipe.views)
    N = recipe.hyper.get("slice_size", 16)
    parts = assemble(replace(recipe, views=views, batch_size=N, backbone=BackboneConfig(name="test_resnet")))
    images = torch.randint(0, 256, (N, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    terms = parts.method.terms(parts.method(parts.views(images, parts.views.make_params(0, 0, N))))
    sum(terms.values()).backward()
    weight = next(parts.method.backbone.parameters())
    assert all(term.isfinite() for term in terms.values())
    assert weight.grad.isfinite().all()
    assert weight.grad.any()


@pytest.mark.parametrize("name", ["digits", "cifar10-small", "cifar10-projectors"])
def test_the_small_recipes_run(name):
    recipe = replace(with_statistics(RECIPES[name]), batch_size=4)
    parts = assemble(recipe)
    size = recipe.views[0].size
    images = torch.randint(
        0, 256, (4, recipe.data.channels, size, size), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    embeddings = parts.method(parts.views(images, parts.views.make_params(0, 0, 4)))
    assert embeddings["Z"].shape == (2, 4, recipe.projector.widths[-1])
    assert all(term.isfinite() for term in parts.method.terms(embeddings).values())


def test_cifar_equals_the_paper():
    for name in ("cifar10", "cifar100"):
        recipe = RECIPES[name]
        assert (recipe.backbone.name, recipe.backbone.stem, recipe.projector.widths) == (
            "resnet18",
            "small",
            (2048, 2048, 1024),
        )
        assert (recipe.optimizer.name, recipe.optimizer.lr, recipe.optimizer.weight_decay) == ("lars", 0.3, 1e-6)
        assert (recipe.schedule.name, recipe.schedule.warmup, recipe.epochs, recipe.batch_size) == (
            "cosine",
            10.0,
            1000,
            256,
        )
        (view,) = recipe.views
        assert (view.size, view.crop.scale, view.crop.probability) == (32, (0.08, 1.0), 1.0)
        assert (view.jitter.brightness, view.jitter.contrast, view.jitter.saturation, view.jitter.hue) == (
            0.8,
            0.8,
            0.8,
            0.2,
        )
        assert (view.jitter.probability, view.grayscale, view.blur.probability, view.flip) == (0.8, 0.2, 0.5, 0.5)


def test_stl10_equals_the_paper():
    recipe, cifar = RECIPES["stl10"], RECIPES["cifar10"]
    assert (recipe.backbone.name, recipe.backbone.stem, recipe.epochs, recipe.batch_size) == (
        "resnet18",
        "standard",
        500,
        256,
    )
    assert (recipe.optimizer, recipe.schedule, recipe.projector, recipe.hyper) == (
        cifar.optimizer,
        cifar.schedule,
        cifar.projector,
        cifar.hyper,
    )
    assert recipe.hyper["invariance"] == recipe.hyper["variance"] == 1.0
    assert recipe.views == (replace(cifar.views[0], size=96),)


def test_imagenet_equals_the_paper():
    recipe, barlow = RECIPES["imagenet"], RECIPES["imagenet-barlow_twins-frossl"]
    assert (recipe.optimizer.name, recipe.optimizer.lr, recipe.optimizer.weight_decay) == ("sgd", 1e-2, 5e-4)
    assert (recipe.schedule.name, recipe.schedule.period, recipe.schedule.warmup) == ("restarts", 15.0, 0.0)
    assert (recipe.epochs, recipe.batch_size, recipe.backbone.name) == (100, 224, "resnet18")
    (view,) = recipe.views  # of Chen et al. 2020: both views have one distribution
    assert (view.jitter.brightness, view.jitter.hue, view.blur.probability, view.solarize.probability) == (
        0.8,
        0.2,
        0.5,
        0.0,
    )
    assert barlow.hyper["redundancy"] == 5e-3
    assert replace(barlow, name=recipe.name, objective=recipe.objective, hyper=recipe.hyper) == recipe


def test_imagenet_directclr_equals_the_appendix_and_code_of_the_paper():
    simclr, direct = RECIPES["imagenet-simclr"], RECIPES["imagenet-directclr"]
    for recipe in (simclr, direct):
        assert (recipe.backbone.name, recipe.backbone.arguments) == ("resnet50", {"zero_init_last": True})
        assert (recipe.epochs, recipe.batch_size) == (100, 4096)
        optimizer, schedule = recipe.optimizer, recipe.schedule
        assert (optimizer.name, optimizer.lr, optimizer.weight_decay, optimizer.momentum) == ("lars", 4.8, 1e-6, 0.9)
        assert (optimizer.trust_coefficient, optimizer.trust_clip) == (0.001, False)
        assert (schedule.name, schedule.warmup, schedule.min_lr_ratio) == ("cosine", 10.0, 0.001)
        assert recipe.hyper["temperature"] == 0.1
        for view, blur, solarize in zip(recipe.views, (1.0, 0.1), (0.0, 0.2), strict=True):
            assert (view.size, view.crop.scale, view.flip, view.grayscale) == (224, (0.08, 1.0), 0.5, 0.2)
            assert (view.jitter.probability, view.blur.probability, view.solarize.probability) == (0.8, blur, solarize)
            assert (view.jitter.brightness, view.jitter.contrast, view.jitter.saturation, view.jitter.hue) == (
                0.4,
                0.4,
                0.2,
                0.1,
            )
            assert view.blur.sigma == (0.1, 2.0)
    assert direct.hyper["d0"] == 360
    assert direct.projector.absent
    assert (
        replace(simclr, name=direct.name, objective="directclr", hyper=direct.hyper, projector=direct.projector)
        == direct
    )


def test_the_simclr_projector_has_two_layers_without_bias_and_with_batchnorm_after_both():
    projector = build_projector(RECIPES["imagenet-simclr"].projector, 2048)
    shapes = [(type(layer).__name__, *layer.weight.shape) for layer in projector if hasattr(layer, "weight")]
    assert shapes == [("Linear", 2048, 2048), ("BatchNorm1d", 2048), ("Linear", 128, 2048), ("BatchNorm1d", 128)]
    assert all(layer.bias is None for layer in projector if isinstance(layer, torch.nn.Linear))


def test_the_last_block_of_cifar10_projectors_has_an_identity_shortcut():
    recipe = RECIPES["cifar10-projectors"]
    network = build_backbone(recipe.backbone)
    assert last_block(network, "resnet18").downsample is None
    assert feature_dim(network) == 128
    assert recipe.projector.d0 == round(360 / 2048 * 128) == 22
