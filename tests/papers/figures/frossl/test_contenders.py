"""The recipes of the methods of the tables."""

import pytest

from fullrank.errors import UserError
from fullrank.objectives import OBJECTIVES
from fullrank.recipes import RECIPES
from fullrank_papers.figures.frossl.contenders import CONTENDERS, own_recipe


def test_all_objectives_are_compared_but_those_that_came_after_the_table():
    later = {"lejepa", "mmcr", "emp_ssl", "moco_v3", "vibcreg", "visreg", "rdmreg", "ssl_hsic_teacher", "nnclr"}
    compared = {*OBJECTIVES} - later
    assert {*CONTENDERS} == compared | {"nologs"}


def test_published_recipes_are_taken_as_they_are():
    assert own_recipe(RECIPES["cifar10"], "barlow_twins", 1000).optimizer == RECIPES["cifar10-barlow_twins"].optimizer
    assert own_recipe(RECIPES["cifar10"], "frossl", 1000) == RECIPES["cifar10"]
    assert own_recipe(RECIPES["cifar10"], "nologs", 1000) == RECIPES["cifar10-nologs"]
    short = own_recipe(RECIPES["cifar10"], "byol", 100)
    assert (short.epochs, short.optimizer.lr) == (100, RECIPES["cifar10-byol"].optimizer.lr)


def test_of_lightlys_benchmark_a_method_has_its_recipe_there_or_an_error():
    base = RECIPES["cifar10-frossl-lightly"]
    assert own_recipe(base, "moco", 200) == RECIPES["cifar10-moco-lightly"]
    with pytest.raises(UserError, match="cifar10-vicreg-lightly"):
        own_recipe(base, "vicreg", 200)
