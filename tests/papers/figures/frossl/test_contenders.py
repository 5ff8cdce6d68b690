"""The recipes of the compared methods: equal in everything but what a method brings."""

import pytest

from fullrank.objectives import OBJECTIVES
from fullrank.recipes import RECIPES, build_method, check, differences, dry_run
from fullrank_papers.figures.frossl.contenders import CONTENDERS, common_recipe, own_recipe
from fullrank_papers.figures.frossl.sizes import SMALL, TINY

OWN = ("objective", "hyper", "method")


def test_all_objectives_are_compared_but_those_that_came_after_the_table():
    later = {"lejepa", "mmcr", "emp_ssl", "moco_v3", "vibcreg", "visreg", "rdmreg", "ssl_hsic_teacher", "nnclr"}
    compared = {*OBJECTIVES} - later
    assert {contender.objective for contender in CONTENDERS.values()} == compared
    assert len(CONTENDERS) == len(compared) + 1  # and FroSSL without logarithms


@pytest.mark.parametrize("name", CONTENDERS)
def test_common_recipes_differ_only_in_what_the_method_brings(name):
    recipe = common_recipe(SMALL, name)
    changed = {line.split(" ")[0] for line in differences(SMALL, recipe)}
    allowed = {f for f in changed if f.split(".")[0] in OWN}
    if name in ("wmse", "corinfomax"):
        allowed.add("projector.widths")
        assert recipe.projector.widths == (256, 64)
    if name.startswith("directclr"):
        allowed.add("projector.widths")
        assert recipe.projector.widths == ()
    assert changed <= allowed


@pytest.mark.parametrize("base", [SMALL, TINY], ids=lambda recipe: recipe.name)
def test_frossl_keeps_the_balance_of_the_paper(base):
    # invariance · D/2N = 2 at N = 256, D = 1024 with weight 1
    N, D = base.batch_size, base.projector.dimensions(0)
    assert base.hyper["invariance"] * D / (2 * N) == 2


def test_published_recipes_are_taken_as_they_are():
    assert own_recipe(RECIPES["cifar10"], "barlow_twins", 1000).optimizer == RECIPES["cifar10-barlow_twins"].optimizer
    assert own_recipe(RECIPES["cifar10"], "frossl", 1000) == RECIPES["cifar10"]
    assert own_recipe(RECIPES["cifar10"], "nologs", 1000) == RECIPES["cifar10-nologs"]
    short = own_recipe(RECIPES["cifar10"], "byol", 100)
    assert (short.epochs, short.optimizer.lr) == (100, RECIPES["cifar10-byol"].optimizer.lr)


def test_directclr_keeps_its_share_of_the_dimensions():
    fallback, published = (
        own_recipe(RECIPES["cifar10"], "directclr", 1000),
        own_recipe(RECIPES["imagenet"], "directclr", 100),
    )
    assert (fallback.name, fallback.hyper["d0"]) == ("cifar10", 90)  # of 512
    assert (published.name, published.hyper["d0"]) == ("imagenet-directclr", 360)  # of 2048


@pytest.mark.parametrize("name", ["swav", "wmse", "dino", "directclr", "corinfomax"])
def test_small_recipes_have_a_loss(name):
    recipe = common_recipe(SMALL, name)
    check(recipe)
    assert dry_run(build_method(recipe), recipe) == ""
