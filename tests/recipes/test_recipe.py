import copy
import json
from dataclasses import replace

import pytest

from fullrank.errors import UserError
from fullrank.methods import BackboneConfig, ProjectorConfig
from fullrank.objectives import OBJECTIVES
from fullrank.objectives.signature import hyperparameters
from fullrank.recipes import RECIPES, DataConfig, Recipe, differences, from_dict, read_recipe, to_dict
from fullrank.training import OptimizerConfig
from fullrank.views import CropConfig, ViewConfig

each = pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES.keys())


@each
def test_json_round_trip(recipe):
    text = json.dumps(to_dict(recipe))
    back = from_dict(json.loads(text))
    assert back == recipe
    assert json.dumps(to_dict(back)) == text


@each
def test_file_round_trip(recipe, tmp_path):
    (tmp_path / "recipe.json").write_text(json.dumps(to_dict(recipe)))
    assert read_recipe(tmp_path / "recipe.json") == recipe


@each
def test_the_json_contains_every_hyperparameter(recipe):
    assert set(to_dict(recipe)["hyper"]) == set(hyperparameters(OBJECTIVES[recipe.objective]))


def test_a_file_without_a_kind_of_projector_has_an_mlp():
    values = to_dict(RECIPES["digits"])
    values["projector"] = {"widths": [512, 512], "batchnorm": True}
    del values["backbone"]["last_residual"]
    assert from_dict(values) == RECIPES["digits"]
    assert RECIPES["digits"].projector == ProjectorConfig(kind="mlp", widths=(512, 512))


def test_an_unknown_objective_suggests_a_known_one():
    with pytest.raises(UserError, match=r"unknown objective 'vicregg'; .*; did you mean 'vicreg'\?"):
        Recipe(objective="vicregg")


def test_an_unknown_hyperparameter_is_an_error():
    with pytest.raises(UserError, match="objective 'simclr' has no hyperparameter 'covariance'"):
        Recipe(objective="simclr", hyper={"covariance": 1.0})


def test_defaults_of_the_objective_are_filled_in():
    assert Recipe(objective="vicreg", hyper={"covariance": 4.0}).hyper == {"invariance": 25.0, "variance": 25.0, "covariance": 4.0}


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        (("epoch",), 3, r"recipe: there is no field 'epoch'; did you mean 'epochs'\?"),
        (("optimizer", "learning_rate"), 3, "recipe.optimizer: there is no field 'learning_rate'"),
        (("views", 0, "crop", "size"), 3, r"recipe.views\[0\].crop: there is no field 'size'"),
        (("epochs",), 1.5, "recipe.epochs: got 1.5, expected int"),
        (("machine", "precision"), "8", "recipe.machine.precision: got '8', expected one of 'auto'"),
        (("objective",), "frosl", r"recipe: unknown objective 'frosl'.*did you mean 'frossl'\?"),
        (("hyper", "invarianc"), 1.0, "recipe: objective 'frossl' has no hyperparameter 'invarianc'"),
        (("views", 0, "size"), 0, r"recipe.views\[0\]: view.size is 0, but has to be at least 1"),
        (("views",), 3, "recipe.views: expected a list"),
        (("projector", "kind"), "subvector", "recipe.projector.kind: got 'subvector', expected one of 'mlp', 'diagonal', 'orthogonal'"),
    ],
)
def test_the_error_of_a_wrong_field_names_its_path(path, value, expected):
    values = to_dict(RECIPES["digits"])
    *parents, last = path
    parent = values
    for name in parents:
        parent = parent[name]
    parent[last] = value
    with pytest.raises(UserError, match=f"^{expected}"):
        from_dict(values)


def test_a_missing_file_is_an_error(tmp_path):
    with pytest.raises(UserError, match=f"no run at {tmp_path}: it has no recipe.json; give the folder"):
        read_recipe(tmp_path / "recipe.json")


@pytest.mark.parametrize(
    ("text", "expected"), [("{", "cannot be read"), ("[]", "contains a list, expected an object"), ("", "cannot be read")]
)
def test_a_damaged_file_is_an_error(tmp_path, text, expected):
    (tmp_path / "recipe.json").write_text(text)
    with pytest.raises(UserError, match=expected) as caught:
        read_recipe(tmp_path / "recipe.json")
    assert str(tmp_path / "recipe.json") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_differences_are_lines_with_the_names_of_flags():
    a = Recipe(optimizer=OptimizerConfig(lr=0.25), backbone=BackboneConfig(arguments={"layers": [1, 1, 1, 1]}))
    b = replace(
        a,
        optimizer=replace(a.optimizer, lr=0.5),
        views=(replace(a.views[0], crop=CropConfig(probability=0.25)), ViewConfig(count=1, size=4)),
        hyper={"invariance": 2.0},
        backbone=replace(a.backbone, arguments={}),
    )
    assert differences(a, a) == []
    found = differences(a, b)
    assert "optimizer.lr 0.25 → 0.5" in found
    assert "views.0.crop.probability 1.0 → 0.25" in found
    assert "views.1.size None → 4" in found
    assert "hyper.invariance 1.0 → 2.0" in found
    assert "backbone.arguments.layers [1, 1, 1, 1] → None" in found
    assert len(differences(b, a)) == len(found)


def test_equal_recipes_have_equal_fingerprints_and_others_different_ones():
    prints = {recipe.fingerprint for recipe in RECIPES.values()}
    assert len(prints) == len(RECIPES)
    a = RECIPES["digits"]
    assert from_dict(to_dict(a)).fingerprint == a.fingerprint == copy.deepcopy(a).fingerprint
    assert replace(a, seed=1).fingerprint != a.fingerprint


def test_the_fingerprint_does_not_depend_on_the_order_of_the_fields():
    values = to_dict(RECIPES["digits"])
    reordered = {name: values[name] for name in reversed(values)} | {"hyper": dict(reversed(values["hyper"].items()))}
    assert from_dict(reordered).fingerprint == RECIPES["digits"].fingerprint


def test_an_integer_in_place_of_a_float_does_not_change_the_fingerprint():
    """A recipe made in Python may hold lr=1; its file gives back 1.0, and its fingerprint must be that of the checkpoint."""
    exact, given = OptimizerConfig(lr=1.0), OptimizerConfig(lr=1.0)
    object.__setattr__(given, "lr", 1)
    recipe = replace(RECIPES["digits"], optimizer=given)
    assert to_dict(recipe)["optimizer"]["lr"] == 1
    assert recipe.fingerprint == from_dict(to_dict(recipe)).fingerprint == replace(recipe, optimizer=exact).fingerprint
    assert Recipe(hyper={"invariance": 2}).fingerprint == Recipe(hyper={"invariance": 2.0}).fingerprint


def test_values_that_json_cannot_represent_are_an_error():
    with pytest.raises(UserError, match=r"backbone.arguments .* cannot be saved"):
        to_dict(Recipe(backbone=BackboneConfig(arguments={"act_layer": BackboneConfig})))


def test_recipes_are_frozen():
    with pytest.raises(AttributeError):
        RECIPES["digits"].epochs = 3
    with pytest.raises(AttributeError):
        DataConfig().channels = 3
