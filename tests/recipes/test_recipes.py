"""The recipes of the data sets: their fields against a transcription of what was published, and their parts."""

from dataclasses import replace

import pytest
import torch
from timm.models.resnet import BasicBlock

from fullrank.methods import BackboneConfig, build_projector
from fullrank.methods.backbones import build_backbone, feature_dim, last_block
from fullrank.objectives import lejepa, mmcr
from fullrank.recipes import PUBLISHED, RECIPES, assemble, build_method, check
from fullrank.recipes.catalog import ENTRIES, FAMILIES, SCORES, final_score, list_recipes
from fullrank.recipes.rules import WAITS

OWN = ("digits", "cifar10-small", "cifar10-projectors")
SOME = [name for name in RECIPES if name.startswith(("cifar10", "digits")) or name.endswith(("-vit", "clr", "patches"))]
# A group of views: count, size, smallest crop, brightness jitter, blur, solarization.
SYMMETRIC = [(2, 32, 0.08, 0.8, 0.5, 0)]
WEAK = [(2, 32, 0.08, 0.4, 0.5, 0)]
ASYMMETRIC = [(1, 32, 0.08, 0.4, 0, 0), (1, 32, 0.08, 0.4, 0, 0.2)]
MULTICROP = [(1, 32, 0.2, 0.6, 0, 0), (1, 32, 0.2, 0.6, 0, 0.2), (6, 18, 0.08, 0.8, 0.1, 0.1)]
LARGE_ASYMMETRIC = [(1, 224, 0.08, 0.4, 1, 0), (1, 224, 0.08, 0.4, 0.1, 0.2)]
# fmt: off
PUBLICATIONS = {  # optimizer, learning rate, weight decay, whether of all parameters; widths; views; numbers
    "cifar10": (("lars", 0.3, 1e-6, False), (2048, 2048, 1024), SYMMETRIC, {"invariance": 1.0, "variance": 1.0}),
    "cifar10-simclr": (("lars", 0.4, 1e-4, False), (2048, 256), SYMMETRIC, {"temperature": 0.2}),
    "cifar10-swav-multicrop": (("lars", 0.6, 1e-6, False), (2048, 128), MULTICROP, {"full": 2, "prototypes": 3000}),
    "cifar10-moco": (("sgd", 0.3, 1e-4, True), (2048, 256), WEAK, {"queue": 32768, "momentum": (0.99, 0.999)}),
    "cifar10-nnclr": (("lars", 0.4, 1e-5, False), (2048, 2048, 256), ASYMMETRIC, {"predictor": 4096, "queue": 65536}),
    "cifar10-simsiam": (("sgd", 0.5, 1e-5, True), (2048, 2048, 2048), WEAK, {"predictor": 512, "momentum": None}),
    "cifar10-byol": (("lars", 1.0, 1e-5, False), (4096, 256), ASYMMETRIC, {"predictor": 4096, "momentum": (0.99, 1.0)}),
    "cifar10-dino": (("lars", 0.3, 1e-6, False), (2048, 2048, 256), ASYMMETRIC,
                     {"student_temperature": 0.1, "teacher_temperature": 0.07, "prototypes": 4096, "freeze": 1}),
    # solo-learn adds the hinges of both views, ours takes their mean
    "cifar10-vicreg": (("lars", 0.3, 1e-4, False), (2048, 2048, 2048), [(2, 32, 0.2, 0.4, 0, 0.1)],
                       {"invariance": 25, "variance": 50, "covariance": 1}),
    "cifar10-vibcreg": (("lars", 0.3, 1e-4, False), (2048, 2048, 2048), [(2, 32, 0.2, 0.4, 0, 0.1)],
                        {"invariance": 25, "variance": 50, "covariance": 200}),
    "cifar10-barlow_twins": (("lars", 0.3, 1e-4, False), (2048, 2048, 2048), ASYMMETRIC, {"scale": 0.1}),
    "cifar10-wmse": (("adam", 2e-3, 1e-6, True), (1024, 64), [(2, 32, 0.2, 0.8, 0, 0)], {"slice_size": 128}),
    "cifar10-corinfomax": (("lars", 0.3, 1e-4, False), (2048, 2048, 64), ASYMMETRIC, {"invariance": 250}),
    # a rate of the whole batch, and the blur of ImageNet
    "cifar10-corinfomax-authors": (("sgd", 0.5, 1e-4, True), (2048, 2048, 64),
                                   [(1, 32, 0.08, 0.4, 1, 0), (1, 32, 0.08, 0.4, 0.1, 0.2)], {"epsilon": 1e-8}),
    "cifar10-spectral_contrastive": (("sgd", 0.06, 5e-4, True), (2048, 1000), [(2, 32, 0.2, 0.4, 0, 0)], {}),
    "cifar10-lejepa": (("lars", 0.3, 1e-4, False), (2048, 2048, 128), [(2, 32, 0.2, 0.4, 0, 0)], {"slices": 256}),
    # one rate for any batch
    "cifar10-emp_ssl": (("lars", 0.3, 1e-4, False), (4096, 4096, 1024), [(20, 32, 0.25, 0.4, 0.1, 0.1)],
                        {"invariance": 200, "epsilon": 0.2}),
    "cifar10-mmcr": (("adam", 1e-3, 1e-6, True), (512, 128), [(40, 32, 0.08, 0.4, 0, 0)], {"nuclear_norm": 32}),
    "cifar10-frossl-lightly": (("sgd", 0.24, 5e-4, True), (2048, 2048), [(2, 32, 0.08, 0.4, 0, 0)],
                               {"invariance": 1.0, "center": False}),
    "cifar10-nnclr-lightly": (("sgd", 0.24, 5e-4, True), (2048, 256), [(2, 32, 0.08, 0.4, 0, 0)],
                              {"temperature": 0.5, "predictor": 4096, "queue": 4096}),
    "stl10-wmse-fork": (("lars", 0.1, 1e-4, True), (1024, 128), [(2, 96, 0.08, 0.8, 0, 0)], {"slice_size": 256}),
    "imagenet": (("sgd", 1e-2, 5e-4, True), (2048, 2048, 1024), [(2, 224, 0.08, 0.8, 0.5, 0)], {"invariance": 1}),
    # 0.45 for 256 images, and a batch of 2 × 64 × 16
    "imagenet-byol": (("lars", 3.6, 1e-6, False), (4096, 256), LARGE_ASYMMETRIC, {"predictor": 4096}),
    "imagenet100-ivne-authors": (("sgd", 0.1, 1e-4, False), (2048, 2048, 256),
                                 [(1, 224, 0.14, 0.4, 1, 0), (1, 224, 0.14, 0.4, 0.1, 0.2),
                                  *[(1, 96, 0.05, 0.4, 1, 0), (1, 96, 0.05, 0.4, 0.1, 0.2)] * 2], {"full": 2}),
    "imagenet-ssl_hsic_teacher": (("lars", 6.4, 1e-6, False), (4096, 256), LARGE_ASYMMETRIC, {"predictor": 4096}),
    "imagenet-mmcr": (("lars", 6.4, 1e-6, False), (8192, 8192, 512),
                      [(4, 224, 0.08, 0.4, 1, 0), (4, 224, 0.08, 0.4, 0.1, 0.2)], {"nuclear_norm": 1024}),
    "imagenet-visreg": (("adamw", 9e-4, 0.05, False), (2048, 2048, 256),
                        [(4, 224, 0.3, 0.4, 0.5, 0.1), (6, 96, 0.05, 0.4, 0.5, 0.1)], {"full": 4, "trade_off": 0.9}),
    "imagenet-simclr": (("lars", 4.8, 1e-6, False), (2048, 128), LARGE_ASYMMETRIC, {"temperature": 0.1}),
    "imagenet-corinfomax": (("sgd", 0.2, 1e-4, True), (8192, 8192, 512), LARGE_ASYMMETRIC, {"forgetting": 0.1}),
    "imagenet-simsiam": (("sgd", 0.1, 1e-4, True), (2048,) * 3, [(2, 224, 0.2, 0.4, 0.5, 0)], {"predictor": 512}),
    "imagenet-vicreg": (("lars", 0.6, 1e-6, False), (8192,) * 3, LARGE_ASYMMETRIC, {"variance": 25}),
    "imagenet-directclr": (("lars", 4.8, 1e-6, False), (), LARGE_ASYMMETRIC, {"temperature": 0.1, "d0": 360}),
    "imagenet-frossl-vit": (("adamw", 6e-4, 0.1, False), (2048, 2048, 1024), LARGE_ASYMMETRIC, {"invariance": 4}),
}
# fmt: on


@pytest.mark.parametrize("name", PUBLICATIONS)
def test_a_recipe_has_the_numbers_of_its_publication(name):
    optimizer, widths, views, numbers = PUBLICATIONS[name]
    recipe, found = RECIPES[name], RECIPES[name].optimizer
    assert (found.name, pytest.approx(found.lr), found.weight_decay, found.decay_all) == optimizer
    assert recipe.projector.widths == widths
    assert [
        (v.count, v.size, v.crop.scale[0], v.jitter.brightness, v.blur.probability, v.solarize.probability)
        for v in recipe.views
    ] == views
    values = recipe.method | recipe.hyper
    assert values | numbers == values


def test_the_heads_of_cifar():
    """BatchNorm in the hidden layers except for SimCLR, MoCo and DINO; after the last one for SimSiam and MoCo v3
    without scale and shift, and for NNCLR."""
    heads = {name: recipe.projector for name, recipe in RECIPES.items() if name.startswith("cifar10-")}
    heads = {name: head for name, head in heads.items() if not name.endswith(("-lightly", "-authors", "_contrastive"))}
    plain = {name.split("-")[1] for name, head in heads.items() if not head.batchnorm}
    assert plain == {"simclr", "moco", "dino"}
    last = {name: head for name, head in heads.items() if head.output_batchnorm}
    assert [*last] == ["cifar10-moco_v3", "cifar10-nnclr", "cifar10-simsiam"]
    assert [name for name, head in last.items() if head.output_affine] == ["cifar10-nnclr"]
    assert {name: head.output_iternorm for name, head in heads.items() if head.output_iternorm} == {
        "cifar10-vibcreg": 64
    }
    projector = build_projector(RECIPES["imagenet-simclr"].projector, 2048)  # two layers without bias
    shapes = [(type(layer).__name__, *layer.weight.shape) for layer in projector if hasattr(layer, "weight")]
    assert shapes == [("Linear", 2048, 2048), ("BatchNorm1d", 2048), ("Linear", 128, 2048), ("BatchNorm1d", 128)]
    assert all(layer.bias is None for layer in projector if isinstance(layer, torch.nn.Linear))


def test_the_losses_of_mmcr_and_lejepa_are_those_of_the_codes():
    rng = torch.Generator().manual_seed(0)
    recipe, Z = RECIPES["cifar10-mmcr"], torch.randn(3, 32, 128, generator=rng, dtype=torch.float64)
    nuclear_norm = torch.linalg.svdvals(torch.nn.functional.normalize(Z, dim=-1).mean(0)).sum()
    torch.testing.assert_close(mmcr(Z, **recipe.hyper)["nuclear_norm"], -nuclear_norm)
    recipe, Z = RECIPES["cifar10-lejepa"], 2 * torch.randn(2, 256, 128, generator=rng, dtype=torch.float64)
    terms = {name: 4 / (1 - recipe.hyper["trade_off"]) * term for name, term in lejepa(Z, **recipe.hyper).items()}
    statistics = lejepa(Z, trade_off=1.0, slices=4096)["normality"] / 256
    torch.testing.assert_close(terms["invariance"], (Z[0] - Z[1]).square().mean())
    torch.testing.assert_close(terms["normality"], 10 * statistics, rtol=0.02, atol=0)


def test_without_logarithms_the_gradient_at_the_optimum_is_that_with_logarithms():
    for name in ("cifar10", "cifar100", "stl10"):
        recipe = RECIPES[f"{name}-nologs"]
        D, N = recipe.projector.widths[-1], recipe.batch_size
        optimum = D**2 / min(D, N - 1)  # the smallest ‖ZᵀZ‖_F² of D columns of unit norm
        assert recipe.hyper["log"] is False
        assert recipe.hyper["variance"] == pytest.approx(1 / optimum)  # d log x = dx/x


def test_networks_start_and_end_as_published():
    for name in ("cifar10", "imagenet-moco"):
        block = last_block(build_backbone(RECIPES[name].backbone), name)
        scale = (block.bn2 if isinstance(block, BasicBlock) else block.bn3).weight
        assert (scale == 1).all()  # of torchvision; timm's default is 0
    network = build_backbone(RECIPES["cifar10-projectors"].backbone)
    assert last_block(network, "resnet18").downsample is None
    assert (feature_dim(network), RECIPES["cifar10-projectors"].projector.d0) == (128, round(360 / 2048 * 128))


def test_the_name_is_data_set_objective_and_variant():
    for name, entry in ENTRIES.items():
        family, recipe = entry.family, entry.recipe
        assert recipe.name == name
        assert (name == family or name.startswith(f"{family}-")) if family else name in OWN
        if family and name not in (family, f"{family}-nologs"):
            assert name.removeprefix(f"{family}-").split("-")[0] == recipe.objective
        if family:
            assert (recipe.data.source, RECIPES[family].objective) == (RECIPES[family].data.source, "frossl")
    assert {name for name, entry in ENTRIES.items() if "fullrank" in entry.origin} == set(OWN)
    methods = {method for _, method, score in SCORES if score.source.startswith("solo-learn's README")}
    methods = methods - {"moco_v3", "nnclr", "vibcreg"} | {"corinfomax", "ivne"}  # those of FroSSL's paper
    assert not {f"{family}-{method}" for family in filter(None, FAMILIES) for method in methods} - RECIPES.keys()
    assert sum(line.startswith(tuple(f"{name} " for name in RECIPES)) for line in list_recipes()) == len(RECIPES)


def test_waits_are_at_most_a_fifth_of_the_run():
    for recipe in RECIPES.values():
        waits = [recipe.schedule.warmup, *(recipe.method.get(name, 0) for name in WAITS)]
        assert max(waits) <= recipe.epochs / 5


@pytest.mark.parametrize("name", SOME)
def test_the_parts_of_a_recipe_can_be_built(name):
    check(RECIPES[name])
    with torch.device("meta"):
        assert build_method(RECIPES[name]).objective is not None


@pytest.mark.parametrize("name", [name for name in RECIPES if name.startswith("cifar10-") and "fork" not in name])
def test_the_methods_of_cifar_have_a_loss_and_a_gradient(name):
    """With a network of a few layers and small views, on random images."""
    recipe = RECIPES[name]
    views = tuple(replace(view, size=max(view.size // 4, 4), count=min(view.count, 8)) for view in recipe.views)
    N, data = recipe.hyper.get("slice_size", 16), replace(recipe.data, mean=(0.5,) * 3, std=(0.25,) * 3)
    network = BackboneConfig(name="test_resnet")
    parts = assemble(replace(recipe, data=data, views=views, batch_size=N, backbone=network))
    images = torch.randint(0, 256, (N, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    terms = parts.method.terms(parts.method(parts.views(images, parts.views.make_params(0, 0, N))))
    sum(terms.values()).backward()
    weight = next(parts.method.backbone.parameters())
    assert all(term.isfinite() for term in terms.values())
    assert weight.grad.isfinite().all()
    assert weight.grad.any()


def test_the_published_accuracies_are_of_recipes_and_are_shares():
    assert PUBLISHED.keys() <= RECIPES.keys()
    assert all(0.1 < score.accuracy < 1 and score.source for scores in PUBLISHED.values() for score in scores)
    assert all(score.epochs == RECIPES[name].epochs for name in PUBLISHED if (score := final_score(name)))


def test_the_borrowed_accuracies_of_table_2_are_those_of_solo_learn_or_of_other_recipes():
    for name, scores in PUBLISHED.items():
        for score in scores:
            if score.source.endswith("Table 2, from solo-learn's README"):
                (original,) = [other.accuracy for other in scores if other.source == "solo-learn's README"]
                assert score.accuracy == pytest.approx(original, abs=5.1e-4), name
    others = {name for name, scores in PUBLISHED.items() if not all(score.same_recipe for score in scores)}
    assert others == {"cifar10-simclr", "cifar10-wmse", "cifar100-wmse"}
