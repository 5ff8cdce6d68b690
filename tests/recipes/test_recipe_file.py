import json
from dataclasses import replace

import pytest

from fullrank.errors import UserError
from fullrank.methods import BackboneConfig
from fullrank.recipes import RECIPES, Recipe, from_file, read_recipe, to_dict, to_file
from fullrank.recipes.recipe_file import FORMAT
from fullrank.views import ViewConfig


@pytest.mark.parametrize(
    "recipe",
    [
        RECIPES[name]
        for name in (
            "digits",
            "cifar10",
            "cifar10-nologs",
            "cifar10-swav-multicrop",
            "cifar10-simsiam",
            "imagenet-directclr",
        )
    ],
    ids=lambda recipe: recipe.name,
)
def test_round_trip(recipe, tmp_path):
    path = tmp_path / "recipe.json"
    path.write_text(json.dumps(to_file(recipe)))
    assert read_recipe(path) == recipe
    assert read_recipe(path).fingerprint == recipe.fingerprint


def test_a_file_without_a_format_is_read():
    assert from_file(to_dict(RECIPES["digits"])) == RECIPES["digits"]


def of_next_format(recipe, at_default=()):
    """The file of a later version, whose views have a zoom, and whose objective has a margin."""
    values = json.loads(json.dumps(to_file(recipe)))
    values["views"][0]["zoom"] = 2.0
    values["hyper"]["margin"] = 0.0
    return values | {"format": FORMAT + 1, "defaults": [*values["defaults"], *at_default]}


def test_unknown_fields_of_a_later_format_are_ignored_if_they_have_their_default(capsys):
    recipe = replace(RECIPES["digits"], epochs=7)
    assert from_file(of_next_format(recipe, ["views.0.zoom", "hyper.margin"]), source="later.json") == recipe
    assert (
        "later.json is of a newer fullrank; ignored, because they have their defaults: views.0.zoom, hyper.margin"
        in capsys.readouterr().err
    )


def test_a_default_stands_for_all_fields_below():
    values = of_next_format(RECIPES["digits"], ["views.0.zoom", "hyper.margin", "probe"])
    values["probe"]["warmup"] = {"epochs": 3}
    assert from_file(values, source="below.json") == RECIPES["digits"]


def test_unknown_fields_of_a_later_format_that_matter_are_named():
    with pytest.raises(
        UserError,
        match=rf"^a.json is of format {FORMAT + 1}, of a newer fullrank, and sets views.0.zoom, which .*upgrade",
    ):
        from_file(of_next_format(RECIPES["digits"], ["hyper.margin"]), source="a.json")


def test_an_unknown_field_of_this_format_is_a_mistake():
    with pytest.raises(UserError, match="there is no field 'epoch'; did you mean 'epochs'"):
        from_file(to_file(Recipe()) | {"epoch": 3})


@pytest.mark.parametrize("value", [-1, 1.5, "1", None, [], 10**30])
def test_a_format_that_is_no_number_is_an_error(value):
    with pytest.raises(UserError, match="format"):
        from_file({"format": value})


@pytest.mark.parametrize("value", [3, "x", [3], {}, None])
def test_wrong_defaults_are_an_error(value):
    with pytest.raises(UserError, match="defaults"):
        from_file({"defaults": value})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[" * 100_000, "nested too deeply"),
        ('{"a":' * 100_000, "nested too deeply"),
        ("1" * 5000, "cannot be read"),
        ('"\\ud800"', "contains a str"),
    ],
)
def test_hostile_json_is_one_line(text, expected, tmp_path):
    (tmp_path / "recipe.json").write_text(text)
    with pytest.raises(UserError, match=expected) as caught:
        read_recipe(tmp_path / "recipe.json")
    assert len(str(caught.value)) < 500


def test_only_a_regular_file_is_read(tmp_path):
    (tmp_path / "recipe.json").symlink_to("/dev/zero")
    with pytest.raises(UserError, match="device"):
        read_recipe(tmp_path / "recipe.json")
    (tmp_path / "large.json").write_text(" " * (17 * 2**20))
    with pytest.raises(UserError, match="more than 16 MiB"):
        read_recipe(tmp_path / "large.json")


def test_the_fingerprint_does_not_change_with_a_field_that_a_later_version_adds():
    """A field at its default is not part of the hash, in views and arguments too."""
    recipe = Recipe(
        views=(ViewConfig(size=48), ViewConfig()), backbone=BackboneConfig(arguments={"layers": [1, 1, 1, 1]})
    )
    values = to_file(recipe)
    del values["views"][0]["noise"], values["data"]["size"], values["hyper"]["log"], values["backbone"]["last_residual"]
    assert from_file(values).fingerprint == recipe.fingerprint
