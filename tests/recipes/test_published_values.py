"""The fields of the recipes against a transcription of the published configurations."""

import pytest
from timm.models.resnet import BasicBlock

from fullrank.methods import build_backbone
from fullrank.methods.backbones import last_block
from fullrank.recipes import PUBLISHED, RECIPES
from fullrank.recipes.scores import final_score

# A group of views: count, size, smallest crop, brightness jitter, blur, solarization.
SYMMETRIC = [(2, 32, 0.08, 0.8, 0.5, 0)]
WEAK = [(2, 32, 0.08, 0.4, 0.5, 0)]
ASYMMETRIC = [(1, 32, 0.08, 0.4, 0, 0), (1, 32, 0.08, 0.4, 0, 0.2)]
MULTICROP = [(1, 32, 0.2, 0.6, 0, 0), (1, 32, 0.2, 0.6, 0, 0.2), (6, 18, 0.08, 0.8, 0.1, 0.1)]

CIFAR = {  # method: optimizer, learning rate, weight decay, whether of all parameters; widths; views; numbers
    "simclr": (("lars", 0.4, 1e-4, False), (2048, 256), SYMMETRIC, {"temperature": 0.2}),
    "swav": (
        ("lars", 0.6, 1e-6, False),
        (2048, 128),
        SYMMETRIC,
        {
            "temperature": 0.1,
            "epsilon": 0.05,
            "iterations": 3,
            "prototypes": 3000,
            "queue": 3840,
            "queue_start": 50,
            "freeze": 2,
        },
    ),
    "swav-multicrop": (
        ("lars", 0.6, 1e-6, False),
        (2048, 128),
        MULTICROP,
        {"full": 2, "prototypes": 3000, "queue": 3840},
    ),
    "moco": (
        ("sgd", 0.3, 1e-4, True),
        (2048, 256),
        WEAK,
        {"temperature": 0.2, "queue": 32768, "momentum": (0.99, 0.999)},
    ),
    "simsiam": (("sgd", 0.5, 1e-5, True), (2048, 2048, 2048), WEAK, {"predictor": 512, "momentum": None}),
    "byol": (("lars", 1.0, 1e-5, False), (4096, 256), ASYMMETRIC, {"predictor": 4096, "momentum": (0.99, 1.0)}),
    "dino": (
        ("lars", 0.3, 1e-6, False),
        (2048, 2048, 256),
        ASYMMETRIC,
        {
            **{"student_temperature": 0.1, "teacher_temperature": 0.07, "temperature_warmup": 0},
            **{"prototypes": 4096, "momentum": (0.9995, 1.0), "freeze": 1},
        },
    ),
    "vicreg": (
        ("lars", 0.3, 1e-4, False),
        (2048, 2048, 2048),
        [(2, 32, 0.2, 0.4, 0, 0.1)],
        {
            "invariance": 25,
            "variance": 50,
            "covariance": 1,
        },  # solo-learn adds the hinges of both views, ours takes their mean
    ),
    "barlow_twins": (("lars", 0.3, 1e-4, False), (2048, 2048, 2048), ASYMMETRIC, {"redundancy": 0.0051, "scale": 0.1}),
    "wmse": (("adam", 2e-3, 1e-6, True), (1024, 64), [(2, 32, 0.2, 0.8, 0, 0)], {"slice_size": 128, "epsilon": 0}),
    "ivne": (("lars", 0.3, 1e-4, False), (2048, 2048, 1024), SYMMETRIC, {"entropy": 1, "alignment": 4.16}),
    "frossl-fork": (("lars", 0.3, 1e-4, False), (2048, 2048, 1024), SYMMETRIC, {"invariance": 1}),
    "simclr-fork": (("lars", 0.3, 1e-4, False), (2048, 128), SYMMETRIC, {"temperature": 0.3}),
}


def check_values(name, optimizer, widths, views, numbers):
    recipe = RECIPES[name]
    found = recipe.optimizer
    assert (found.name, pytest.approx(found.lr), found.weight_decay, found.decay_all) == optimizer
    assert recipe.projector.widths == widths
    assert [
        (
            view.count,
            view.size,
            view.crop.scale[0],
            view.jitter.brightness,
            view.blur.probability,
            view.solarize.probability,
        )
        for view in recipe.views
    ] == views
    assert {**recipe.method, **recipe.hyper} | numbers == {**recipe.method, **recipe.hyper}


@pytest.mark.parametrize("method", CIFAR)
@pytest.mark.parametrize("data_set", ["cifar10", "cifar100"])
def test_cifar(data_set, method):
    check_values(f"{data_set}-{method}", *CIFAR[method])
    recipe = RECIPES[f"{data_set}-{method}"]
    assert (recipe.epochs, recipe.batch_size, recipe.schedule.name, recipe.schedule.warmup) == (1000, 256, "cosine", 10)
    assert (recipe.backbone.name, recipe.backbone.stem) == ("resnet18", "small")
    assert recipe.backbone == RECIPES[data_set].backbone
    assert (recipe.optimizer.momentum, recipe.optimizer.trust_coefficient, recipe.optimizer.trust_clip) == (
        0.9,
        0.02,
        True,
    )


def test_corinfomax_has_other_values_on_each_cifar():
    check_values(
        "cifar10-corinfomax",
        ("lars", 0.3, 1e-4, False),
        (2048, 2048, 64),
        ASYMMETRIC,
        {"invariance": 250, "forgetting": 0.01},
    )
    check_values(
        "cifar100-corinfomax",
        ("lars", 0.3, 1e-4, False),
        (4096, 4096, 128),
        ASYMMETRIC,
        {"invariance": 1000, "forgetting": 0.01},
    )


def test_the_heads_of_cifar():
    """BatchNorm in the hidden layers except for SimCLR, MoCo and DINO; after the last layer for SimSiam, without scale
    and shift."""
    heads = {name: RECIPES[f"cifar10-{name}"].projector for name in CIFAR}
    assert {name for name, head in heads.items() if not head.batchnorm} == {"simclr", "simclr-fork", "moco", "dino"}
    assert {name for name, head in heads.items() if head.output_batchnorm} == {"simsiam"}
    assert not heads["simsiam"].output_affine
    assert {name for name, head in heads.items() if head.activation == "gelu"} == {"dino"}
    assert {name for name in CIFAR if RECIPES[f"cifar10-{name}"].optimizer.constant_predictor} == {"simsiam"}


def test_without_logarithms_the_gradient_at_the_optimum_is_that_with_logarithms():
    for name in ("cifar10", "cifar100", "stl10"):
        recipe = RECIPES[f"{name}-nologs"]
        D, N = recipe.projector.widths[-1], recipe.batch_size
        optimum = D**2 / min(D, N - 1)  # the smallest ‖ZᵀZ‖_F² of D columns of unit norm
        assert recipe.hyper["log"] is False
        assert recipe.hyper["variance"] == pytest.approx(1 / optimum)  # d log x = dx/x


@pytest.mark.parametrize("name", ["cifar10", "stl10-byol", "imagenet100-swav", "imagenet-moco"])
def test_residual_blocks_start_as_those_of_torchvision(name):
    block = last_block(build_backbone(RECIPES[name].backbone), name)
    scale = (block.bn2 if isinstance(block, BasicBlock) else block.bn3).weight
    assert (scale == 1).all()  # timm's default is 0


LARGE = {  # recipe: optimizer; widths; views; numbers; batch, epochs
    "stl10-frossl-fork": (
        ("lars", 0.1, 1e-4, False),
        (2048, 2048, 1024),
        [(2, 96, 0.08, 0.4, 0.5, 0)],
        {"invariance": 1.4},
        256,
        500,
    ),
    "stl10-simclr-fork": (
        ("lars", 0.3, 1e-4, False),
        (2048, 512),
        [(2, 96, 0.08, 0.8, 0, 0)],
        {"temperature": 0.5},
        256,
        500,
    ),
    "stl10-byol": (
        *(("lars", 1.0, 1e-5, False), (4096, 256), [(1, 96, 0.08, 0.4, 0, 0), (1, 96, 0.08, 0.4, 0, 0.2)]),
        *({"predictor": 4096}, 256, 500),
    ),
    "stl10-wmse-fork": (
        ("lars", 0.1, 1e-4, True),
        (1024, 128),
        [(2, 96, 0.08, 0.8, 0, 0)],
        {"slice_size": 256},
        256,
        500,
    ),
    "tiny-imagenet": (
        *(("lars", 0.6, 1e-4, False), (2048, 2048, 1024), [(1, 64, 0.08, 0.4, 1, 0), (1, 64, 0.08, 0.4, 0.1, 0.2)]),
        *({"invariance": 1}, 512, 800),
    ),
    "tiny-imagenet-simclr": (
        *(("lars", 0.6, 1e-4, False), (4096, 512), [(1, 64, 0.08, 0.4, 1, 0), (1, 64, 0.08, 0.4, 0.1, 0.2)]),
        *({"temperature": 0.5}, 512, 800),
    ),
    "imagenet100": (
        ("lars", 0.6, 1e-4, False),
        (2048, 2048, 1024),
        [(2, 224, 0.08, 0.8, 0.5, 0)],
        {"invariance": 1},
        512,
        400,
    ),
    "imagenet100-simclr": (
        ("lars", 0.3, 1e-4, False),
        (4096, 512),
        [(2, 224, 0.08, 0.8, 0.5, 0)],
        {"temperature": 0.2},
        256,
        400,
    ),
    "imagenet100-moco": (
        ("sgd", 0.3, 1e-4, True),
        (2048, 256),
        [(2, 224, 0.08, 0.4, 0.5, 0)],
        {"queue": 65536},
        256,
        400,
    ),
    "imagenet100-byol": (
        *(("lars", 0.5, 1e-6, False), (4096, 256), [(1, 224, 0.08, 0.4, 1, 0), (1, 224, 0.08, 0.4, 0.1, 0.2)]),
        *({"predictor": 8192}, 256, 400),
    ),
    "imagenet100-dino": (
        *(("lars", 0.3, 1e-6, False), (2048, 2048, 256), [(1, 224, 0.08, 0.4, 1, 0), (1, 224, 0.08, 0.4, 0.1, 0.2)]),
        *({"temperature_warmup": 50, "first_temperature": 0.04, "teacher_temperature": 0.07}, 256, 400),
    ),
    "imagenet100-vicreg": (
        ("lars", 0.3, 1e-4, False),
        (2048, 2048, 2048),
        [(2, 224, 0.2, 0.4, 0.5, 0.1)],
        {"variance": 50},
        256,
        400,
    ),
    "imagenet100-corinfomax": (
        *(("lars", 1.0, 1e-4, False), (4096, 4096, 256), [(2, 224, 0.08, 0.8, 0.5, 0)]),
        *({"invariance": 500}, 512, 400),
    ),
    "imagenet-barlow_twins": (
        *(("lars", 0.8, 1.5e-6, False), (4096, 4096, 4096), [(1, 224, 0.08, 0.4, 1, 0), (1, 224, 0.08, 0.4, 0.1, 0.2)]),
        *({"redundancy": 0.0051, "scale": 0.048}, 256, 100),
    ),
    "imagenet-byol": (  # 0.45 for 256 images, and a batch of 2 × 64 × 16
        *(("lars", 3.6, 1e-6, False), (4096, 256), [(1, 224, 0.08, 0.4, 1, 0), (1, 224, 0.08, 0.4, 0.1, 0.2)]),
        *({"predictor": 4096, "momentum": (0.99, 1.0)}, 2048, 100),
    ),
    "imagenet-moco": (
        ("sgd", 0.15, 3e-5, True),
        (2048, 256),
        [(2, 224, 0.08, 0.4, 0.5, 0)],
        {"queue": 65536},
        128,
        100,
    ),
    "imagenet-frossl-fork": (
        *(("lars", 0.6, 1e-4, False), (2048, 2048, 1024), [(2, 224, 0.2, 0.4, 0.5, 0.1)]),
        *({"invariance": 2}, 512, 100),
    ),
}


@pytest.mark.parametrize("name", LARGE)
def test_larger_images(name):
    *values, batch_size, epochs = LARGE[name]
    check_values(name, *values)
    recipe = RECIPES[name]
    assert (recipe.batch_size, recipe.epochs) == (batch_size, epochs)
    resnet50 = name in ("imagenet-barlow_twins", "imagenet-byol", "imagenet-moco")
    assert (recipe.backbone.name, recipe.backbone.stem) == ("resnet50" if resnet50 else "resnet18", "standard")


def test_the_published_accuracies_are_of_recipes_and_are_shares():
    assert PUBLISHED.keys() <= RECIPES.keys()
    assert all(0.1 < score.accuracy < 1 and score.source for scores in PUBLISHED.values() for score in scores)
    assert all(score.epochs == RECIPES[name].epochs for name in PUBLISHED if (score := final_score(name)))


@pytest.mark.parametrize(
    ("name", "epochs", "protocol", "accuracy"),
    [
        ("cifar10", 1000, "linear probe", 0.928),
        ("cifar10-nologs", 1000, "linear probe", 0.889),
        ("cifar10-simclr", 1000, "online classifier", 0.9074),
        ("cifar10-simclr", 1000, "linear probe", 0.918),
        ("cifar10-vicreg", 1000, "online classifier", 0.921),
        ("cifar100-corinfomax", 1000, "linear probe", 0.697),
        ("stl10", 3, "online classifier", 0.448),
        ("stl10-dino", 100, "online classifier", 0.461),
        ("stl10-wmse", 500, "linear probe", 0.724),
        ("imagenet100-byol", 400, "linear probe", 0.8032),
        ("imagenet-moco", 100, "linear probe", 0.6684),
        ("imagenet-directclr", 100, "linear probe", 0.627),
        ("imagenet-barlow_twins-frossl", 100, "linear probe", 0.525),
        ("imagenet-dino-vit", 100, "linear probe", 0.738),
    ],
)
def test_a_published_accuracy(name, epochs, protocol, accuracy):
    assert (epochs, protocol, accuracy) in [(score.epochs, score.protocol, score.accuracy) for score in PUBLISHED[name]]


def test_the_borrowed_accuracies_of_table_2_are_those_of_solo_learn_or_of_other_recipes():
    for name, scores in PUBLISHED.items():
        for score in scores:
            if score.source.endswith("Table 2, from solo-learn's README"):
                (original,) = [other.accuracy for other in scores if other.source == "solo-learn's README"]
                assert score.accuracy == pytest.approx(original, abs=5.1e-4), name
    others = {name for name, scores in PUBLISHED.items() if not all(score.same_recipe for score in scores)}
    assert others == {"cifar10-simclr", "cifar10-wmse", "cifar100-wmse"}
    assert [final_score(name).accuracy for name in sorted(others)] == [0.9074, 0.8867, 0.6133]
