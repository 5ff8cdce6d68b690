"""Further groups of views, by the names of fields."""

from typing import Any

import pytest

from fullrank.errors import UserError
from fullrank.recipes import RECIPES, Recipe
from fullrank.recipes.from_keywords import recipe_from_keywords
from fullrank.recipes.view_groups import with_view_groups
from fullrank.views.config import ViewConfig


def test_a_further_group_is_a_copy_of_the_last_one_with_one_view():
    recipe = RECIPES["cifar10-byol"]  # two groups
    first, second, third, fourth = with_view_groups(
        recipe, ["views.2.size", "epochs", "views.3.flip", "views.0.size"]
    ).views
    assert (first, second) == recipe.views
    assert third == fourth == second
    assert with_view_groups(recipe, ["views.1.size", "views.0.count"]) == recipe


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["views.2.size"], "add views.1 first"),
        (["views.1.size", "views.3.size"], "add views.2 first"),
        (["views.999999999.size"], "add views.1 first"),
        ([f"views.{number}.size" for number in range(200)], "at most 100"),
    ],
)
def test_a_group_that_is_left_out_is_an_error(names, words):
    with pytest.raises(UserError, match=words) as error:
        with_view_groups(Recipe(), names)
    assert "\n" not in str(error.value)


def test_keywords_add_groups_and_set_one_view_alone():
    def build(recipe: str = "digits", /, **changes: Any):
        return recipe_from_keywords(recipe, RECIPES, None, changes)

    small = build(**{"views.1.size": 6, "views.1.count": 4}).views
    assert [(view.count, view.size) for view in small] == [(2, 8), (4, 6)]
    first, second = build("cifar10", **{"views.0.count": 1, "views.1.solarize.probability": 0.2}).views
    assert (first.count, second.count, first.solarize.probability, second.solarize.probability) == (1, 1, 0.0, 0.2)
    assert build(views=(ViewConfig(size=8), ViewConfig(size=4))).views[1].size == 4
    assert build("cifar10", **{"views.1.size": 96}).backbone.stem == "standard"  # the largest view decides
    with pytest.raises(UserError, match=r"views\.1\.sizes|sizes"):
        build(**{"views.1.sizes": 6})
