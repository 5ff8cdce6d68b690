"""The recipes of vision transformers, against their publications, and the networks that they build."""

from dataclasses import replace

import pytest
import torch
from timm.layers import DropPath
from torch import nn

from fullrank.methods import at_size, build_backbone, feature_dim
from fullrank.methods.config import BackboneConfig
from fullrank.models.outside_weights import convert_by_timm
from fullrank.recipes import RECIPES, build_method
from fullrank.recipes.assembling import build_transform
from fullrank.recipes.choices import balanced_invariance
from fullrank.recipes.recipe import view_sizes
from fullrank.recipes.vision_transformers import ENTRIES
from fullrank.training.memory import has_batchnorm
from fullrank.training.optimizers import build_optimizer, split_parameters

NAMES = [entry.name for entry in ENTRIES]
each = pytest.mark.parametrize("name", NAMES)
TINY = {"embed_dim": 48, "depth": 2, "num_heads": 3}


def small(name):
    """The recipe with a network of two narrow layers, views of half the size, and few prototypes."""
    recipe = RECIPES[name]
    views = tuple(replace(view, size=view.size // 2) for view in recipe.views)
    backbone = replace(recipe.backbone, arguments={**recipe.backbone.arguments, **TINY})
    method = recipe.method | ({"prototypes": 32} if "prototypes" in recipe.method else {})
    return replace(
        recipe,
        views=views,
        backbone=backbone,
        method=method,
        data=replace(recipe.data, mean=(0.5,) * 3, std=(0.2,) * 3),
    )


@each
def test_the_backbone_has_no_batchnorm_and_a_pooled_class_token(name):
    recipe = RECIPES[name]
    with torch.device("meta"):
        network = build_backbone(at_size(recipe.backbone, view_sizes(recipe)))
        for size in view_sizes(recipe):
            assert network(torch.zeros(2, 3, size, size)).shape == (2, feature_dim(network))
    assert network.global_pool == "token"
    assert not has_batchnorm(network)


@each
def test_a_step_of_the_loss_has_a_gradient_for_all_that_is_trained(name):
    recipe = small(name)
    method, transform = build_method(recipe), build_transform(recipe)
    images = torch.randint(0, 256, (4, 3, 128, 128), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    embeddings = method(transform(images, transform.make_params(0, 0, 4)))
    sum(method.terms(embeddings).values()).backward()
    trained = [parameter for parameter in method.backbone.parameters() if parameter.requires_grad]
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in trained)
    frozen = {key for key, parameter in method.backbone.named_parameters() if not parameter.requires_grad}
    assert frozen == ({"patch_embed.proj.weight", "patch_embed.proj.bias"} if name == "imagenet-frossl-vit" else set())
    grouped = {
        id(parameter)
        for group in build_optimizer(recipe.optimizer, method).param_groups
        for parameter in group["params"]
    }
    assert grouped == {id(parameter) for part in split_parameters(method) for parameter in part}


def test_the_smaller_views_have_the_position_embeddings_that_timm_resamples():
    recipe = RECIPES["imagenet-dino-vit"]
    backbone = replace(recipe.backbone, arguments=TINY)
    network = build_backbone(at_size(backbone, [96, 48])).eval()
    with torch.no_grad():
        nn.init.normal_(network.pos_embed)
    other = build_backbone(at_size(backbone, [48])).eval()
    other.load_state_dict(convert_by_timm(other, network.state_dict()))
    x = torch.rand(2, 3, 48, 48)
    with torch.inference_mode():
        torch.testing.assert_close(network(x), other(x))


def test_dino_equals_the_code_of_its_authors():
    recipe = RECIPES["imagenet-dino-vit"]
    optimizer = recipe.optimizer
    assert (optimizer.name, optimizer.lr, optimizer.weight_decay, optimizer.last_weight_decay) == (
        "adamw",
        5e-4 * 512 / 256,
        0.04,
        0.4,
    )
    assert (optimizer.clip_norm, optimizer.decay_all) == (3.0, False)
    assert (recipe.epochs, recipe.batch_size, recipe.schedule.warmup) == (100, 8 * 64, 10.0)
    assert recipe.schedule.min_lr_ratio * optimizer.lr == pytest.approx(1e-6)
    assert [
        (view.count, view.size, view.crop.scale, view.blur.probability, view.solarize.probability)
        for view in recipe.views
    ] == [(1, 224, (0.4, 1.0), 1.0, 0.0), (1, 224, (0.4, 1.0), 0.1, 0.2), (8, 96, (0.05, 0.4), 0.5, 0.0)]
    assert recipe.hyper == {"student_temperature": 0.1, "teacher_temperature": 0.04}
    assert {
        "prototypes": 65536,
        "freeze": 1.0,
        "momentum": (0.996, 1.0),
        "temperature_warmup": 0.0,
    }.items() <= recipe.method.items()
    method = build_method(small("imagenet-dino-vit"))
    rates = [module.drop_prob for module in method.backbone.modules() if isinstance(module, DropPath)]
    assert max(rates) == pytest.approx(0.1)
    assert all(module.drop_prob == 0 for module in method.teacher.modules() if isinstance(module, DropPath))


def test_frossl_has_the_optimizer_of_moco_v3_and_a_balanced_loss():
    recipe = RECIPES["imagenet-frossl-vit"]
    assert (recipe.optimizer.name, recipe.optimizer.lr, recipe.optimizer.weight_decay) == (
        "adamw",
        1.5e-4 * 1024 / 256,
        0.1,
    )
    assert (recipe.epochs, recipe.batch_size, recipe.schedule.warmup, recipe.optimizer.frozen) == (
        300,
        1024,
        40.0,
        ("patch_embed",),
    )
    assert recipe.hyper["invariance"] == balanced_invariance(recipe)


def test_the_tiny_transformer_equals_solo_learns_file():
    recipe = RECIPES["imagenet100-dino-vit"]
    assert recipe.backbone == BackboneConfig(name="vit_tiny_patch16_224")
    assert (recipe.optimizer.lr, recipe.optimizer.weight_decay, recipe.optimizer.decay_all) == (
        5e-3 * 256 / 256,
        1e-4,
        True,
    )
    assert (recipe.epochs, recipe.batch_size, recipe.method["prototypes"], recipe.method["momentum"]) == (
        400,
        256,
        65536,
        (0.9995, 1.0),
    )
