from dataclasses import replace

import pytest

from fullrank.errors import UserError
from fullrank.methods import ProjectorConfig
from fullrank.objectives import OBJECTIVES
from fullrank.recipes import RECIPES, Recipe, build_method, check, dry_run, with_objective

DIGITS = replace(RECIPES["digits"], data=replace(RECIPES["digits"].data, mean=(0.3,), std=(0.3,)))


@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_digits_recipe_takes_every_objective(name):
    recipe = with_objective(DIGITS, name)
    if name.startswith("directclr"):
        recipe = replace(recipe, hyper={"d0": 64})
    check(recipe)
    dry_run(build_method(recipe), recipe)
    assert (recipe.optimizer, recipe.schedule, recipe.backbone) == (DIGITS.optimizer, DIGITS.schedule, DIGITS.backbone)


def test_hyperparameters_are_those_of_the_new_objective():
    recipe = with_objective(replace(DIGITS, hyper={"invariance": 9.0}), "moco")
    assert recipe.hyper == {"temperature": 0.2}
    assert recipe.method == {"queue": 4096, "momentum": (0.99, 0.999)}


def test_an_objective_that_inverts_a_covariance_gets_at_most_64_dimensions():
    assert with_objective(Recipe(), "wmse").projector.widths == (2048, 2048, 64)
    assert with_objective(Recipe(projector=ProjectorConfig(widths=(32, 16))), "wmse").projector.widths == (32, 16)
    assert with_objective(Recipe(), "simclr").projector.widths == Recipe().projector.widths


def test_an_objective_that_takes_the_representation_gets_no_projector():
    assert with_objective(Recipe(), "directclr").projector.widths == ()
    assert with_objective(Recipe(projector=ProjectorConfig(kind="diagonal")), "directclr").projector.absent


def test_other_objectives_keep_the_kind_of_projector():
    recipe = with_objective(Recipe(projector=ProjectorConfig(kind="sub-vector", d0=22)), "simclr")
    assert (recipe.projector.kind, recipe.projector.d0) == ("sub-vector", 22)


def test_an_unknown_objective_is_an_error():
    with pytest.raises(UserError, match=r"unknown objective 'vicregg'.*did you mean 'vicreg'"):
        with_objective(Recipe(), "vicregg")
