import copy
import json
from dataclasses import is_dataclass, replace
from typing import Annotated, get_args, get_origin

import jaxtyping
import numpy as np
import pytest

from fullrank.errors import UserError
from fullrank.methods import BackboneConfig, ProjectorConfig
from fullrank.objectives import OBJECTIVES
from fullrank.objectives.signature import hyperparameters
from fullrank.recipes import RECIPES, DataConfig, Recipe, decides_weights, differences, from_dict, read_recipe, to_dict
from fullrank.structure import field_types
from fullrank.training import OptimizerConfig
from fullrank.views import CropConfig, ViewConfig

SOME = [name for name in RECIPES if name.startswith(("digits", "cifar10-", "imagenet-"))]
each = pytest.mark.parametrize("recipe", [RECIPES[name] for name in SOME], ids=SOME)


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
    assert Recipe(objective="vicreg", hyper={"covariance": 4.0}).hyper == {
        "invariance": 25.0,
        "variance": 25.0,
        "covariance": 4.0,
    }


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        (("epoch",), 3, r"recipe: there is no field 'epoch'; did you mean 'epochs'\?"),
        (("optimizer", "learning_rate"), 3, "recipe.optimizer: there is no field 'learning_rate'"),
        (("views", 0, "crop", "size"), 3, r"recipe.views\[0\].crop: there is no field 'size'"),
        (("epochs",), 1.5, "recipe.epochs: got 1.5, expected int from 1 to 1000000"),
        (("machine", "precision"), "8", "recipe.machine.precision: got '8', expected one of 'auto'"),
        (("objective",), "frosl", r"recipe: unknown objective 'frosl'.*did you mean 'frossl'\?"),
        (("hyper", "invarianc"), 1.0, "recipe: objective 'frossl' has no hyperparameter 'invarianc'"),
        (("views", 0, "size"), 0, r"recipe.views\[0\].size: got 0, expected int from 1 to 4096"),
        (("views",), 3, "recipe.views: got 3, expected a list"),
        (("views",), [], "recipe.views: got .*, expected values with at least one view"),
        (
            ("projector", "widths"),
            [65536, 65536],
            "recipe.projector.widths: got .*, expected values of at most 100 layers and 1e9 weights",
        ),
        (("projector", "widths"), [1] * 101, "recipe.projector.widths: got .*, expected values of at most 100 layers"),
        (
            ("projector", "kind"),
            "subvector",
            "recipe.projector.kind: got 'subvector', expected one of 'mlp', 'diagonal', 'orthogonal'",
        ),
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
    ("text", "expected"),
    [("{", "cannot be read"), ("[]", "contains a list, expected an object"), ("", "cannot be read")],
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
    prints = {name: recipe.fingerprint for name, recipe in RECIPES.items()}
    same = [
        name
        for name in prints
        if prints[name] == prints.get(name.replace("cifar100", "cifar10")) and "cifar100" in name
    ]
    assert "cifar100" in same  # only the images differ
    assert len(set(prints.values())) == len(prints) - len(same)
    a = RECIPES["digits"]
    assert from_dict(to_dict(a)).fingerprint == a.fingerprint == copy.deepcopy(a).fingerprint
    assert replace(a, seed=1).fingerprint != a.fingerprint


def test_the_fingerprint_does_not_depend_on_the_order_of_the_fields():
    values = to_dict(RECIPES["digits"])
    reordered = {name: values[name] for name in reversed(values)} | {"hyper": dict(reversed(values["hyper"].items()))}
    assert from_dict(reordered).fingerprint == RECIPES["digits"].fingerprint


def test_an_integer_in_place_of_a_float_does_not_change_the_fingerprint():
    """A recipe made in Python may hold lr=1; its file gives back 1.0, and its fingerprint must be that of the
    checkpoint."""
    exact, given = OptimizerConfig(lr=1.0), OptimizerConfig(lr=1.0)
    object.__setattr__(given, "lr", 1)
    recipe = replace(RECIPES["digits"], optimizer=given)
    assert isinstance(recipe.optimizer.lr, float)
    assert recipe.fingerprint == from_dict(to_dict(recipe)).fingerprint == replace(recipe, optimizer=exact).fingerprint
    assert Recipe(hyper={"invariance": 2}).fingerprint == Recipe(hyper={"invariance": 2.0}).fingerprint


def test_values_that_json_cannot_represent_are_an_error():
    with pytest.raises(UserError, match=r"backbone.arguments.*JSON"):
        BackboneConfig(arguments={"act_layer": BackboneConfig})
    with pytest.raises(UserError, match=r"hyper.*JSON"):
        Recipe(objective="my_module:loss", hyper={"layer": BackboneConfig})


def test_recipes_are_frozen():
    with pytest.raises(AttributeError):
        RECIPES["digits"].epochs = 3
    with pytest.raises(AttributeError):
        DataConfig().channels = 3


def numbers(kind, prefix=""):
    """Yield the dotted name of every number of a recipe, with its annotation."""
    for name, annotation in field_types(kind).items():
        base = get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation
        items = get_args(base) if get_origin(base) is tuple else (annotation,)
        for item in items:
            inner = get_args(item)[0] if get_origin(item) is Annotated else item
            if is_dataclass(inner):
                yield from numbers(inner, f"{prefix}{name}.")
            elif inner in (int, float):
                yield prefix + name, item


NUMBERS = dict(numbers(Recipe))


@pytest.mark.parametrize("name", NUMBERS)
def test_every_number_has_bounds(name):
    assert get_origin(NUMBERS[name]) is Annotated
    path = name.replace("views.", "views.0.").split(".")
    values = to_dict(RECIPES["digits"])
    parent = values
    for key in path[:-1]:
        parent = parent[int(key) if key.isdecimal() else key]
    old = parent[path[-1]]
    for wrong in (-2, 1e300, float("nan"), float("inf"), 10**400, "1", None, True, {}):
        parent[path[-1]] = [wrong] * max(len(old), 1) if isinstance(old, list) else wrong
        with pytest.raises(UserError, match=f"{path[-1]}.*expected") as caught:
            from_dict(values)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"epochs": "2"}, "epochs: got '2', expected int from 1 to .*; change --epochs"),
        ({"batch_size": None}, "batch_size: got None"),
        ({"batch_size": 1}, "batch_size: got 1, expected int from 2"),
        ({"seed": 2**64}, "seed: got 18446744073709551616"),
        ({"data": {"source": "digits"}}, "data: got .*, expected a DataConfig"),
        ({"views": ViewConfig()}, "views: got .*, expected a list"),
        ({"views": ("x",)}, r"views\[0\]: got 'x', expected a ViewConfig; change --views"),
        ({"custom_transforms": "my_module:f"}, "custom_transforms: got 'my_module:f', expected a list"),
        ({"hyper": 3}, "hyper: got 3, expected an object"),
        ({"hyper": {"invariance": float("nan")}}, "hyper"),
        ({"objective": 3}, "objective: got 3, expected str"),
        *(
            ({"name": name}, "name: got ")
            for name in ("", "..", "../../x", "/abs", "a/b", "a\\b", "a\0b", "a\nb", "\x1b[2J", "x" * 300, ".git")
        ),
        ({"data": DataConfig(source="a\0b")}, "data.source: got 'a.x00b', expected str without NUL"),
    ],
)
def test_a_recipe_made_in_python_is_checked_like_a_file(change, expected, as_users_call):
    with pytest.raises(UserError, match=f"^{expected}") as caught:
        Recipe(**change)
    assert "\n" not in str(caught.value)
    assert "\0" not in str(caught.value)


def test_a_nested_part_is_checked_when_the_recipe_is_built(as_users_call):
    with pytest.raises(UserError, match=r"^optimizer.lr: got 'x', expected float from 0 .*; change --optimizer.lr$"):
        Recipe(optimizer=unchecked(OptimizerConfig(), lr="x"))


@pytest.fixture
def as_users_call():
    """Without the type checker of the tests, which would refuse a wrong type before the recipe does."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


def unchecked(config, **values):
    for name, value in values.items():
        object.__setattr__(config, name, value)
    return config


def test_numbers_and_lists_of_other_types_are_converted(as_users_call):
    recipe = Recipe(
        epochs=np.int64(3),
        optimizer=OptimizerConfig(),
        views=[ViewConfig()],
        data=unchecked(DataConfig(), mean=[0, 1, 0]),
    )
    assert (type(recipe.epochs), recipe.views, recipe.data.mean) == (int, (ViewConfig(),), (0.0, 1.0, 0.0))
    assert isinstance(recipe.data.mean[0], float)


FREE = {
    "name": "other",
    "checkpoints": 3,
    "log_every": 7,
    "data": {"source": "elsewhere", "storage": "disk", "workers": 2, "max_error_fraction": 0.5},
    "spectrum": {"every": 3, "samples": 100},
    "probe": {"epochs": [3.0, 10.0]},
    "machine": {"devices": 2, "micro_batch": 8, "accelerator": "cpu", "compile": True},
}


def test_fields_that_do_not_decide_the_weights_do_not_change_the_fingerprint():
    values, recipe = to_dict(RECIPES["digits"]), RECIPES["digits"]
    moved = from_dict(
        {
            name: values[name] | FREE[name] if isinstance(FREE.get(name), dict) else FREE.get(name, values[name])
            for name in values
        }
    )
    assert moved.fingerprint == recipe.fingerprint
    assert not any(decides_weights(line.split()[0]) for line in differences(recipe, moved))
    others = [
        replace(recipe, batch_size=32),
        replace(recipe, views=recipe.views * 2),
        replace(recipe, data=replace(recipe.data, size=9)),
        replace(recipe, data=replace(recipe.data, subset=500)),
        replace(recipe, data=replace(recipe.data, validation=0.1)),
        replace(recipe, machine=replace(recipe.machine, precision="64-true")),
        replace(recipe, hyper={"invariance": 3.0}),
        replace(recipe, custom_transforms=("my_module:invert",)),
        replace(recipe, objective="vicreg", hyper={}),
    ]
    assert len({recipe.fingerprint, *(other.fingerprint for other in others)}) == len(others) + 1


def test_two_default_views_are_not_one():
    assert Recipe(views=(ViewConfig(),)).fingerprint != Recipe(views=(ViewConfig(), ViewConfig())).fingerprint
