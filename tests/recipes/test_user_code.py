import dataclasses
import sys
from functools import partial
from typing import Literal

import pytest
import torch

from fullrank.errors import UserError
from fullrank.objectives import OBJECTIVES, frossl
from fullrank.objectives.signature import hyperparameters
from fullrank.recipes import Recipe, from_dict, import_code, import_function, to_dict, user_code
from fullrank.recipes.user_code import fill_defaults, find_objective, keywords


def objective(Z, *, weight: float = 2.0, log: bool = True, kind: Literal["a", "b"] = "a", slices: int | None = None):
    return {}


def test_keywords_are_the_hyperparameters_with_their_defaults():
    for function in OBJECTIVES.values():
        assert dataclasses.asdict(keywords(function)()) == hyperparameters(function) == fill_defaults(function, {}, "")
    assert repr(keywords(objective)(slices=3)) == "objective(weight=2.0, log=True, kind='a', slices=3)"
    assert fill_defaults(objective, {"weight": 4}, "")["weight"] == 4.0
    assert fill_defaults(partial(objective, weight=3.0), {}, "")["weight"] == 3.0


@pytest.mark.parametrize(
    "wrong", [{"weight": "2"}, {"weight": True}, {"weight": float("inf")}, {"log": 1}, {"kind": "c"}, {"slices": 1.5}]
)
def test_a_value_of_the_wrong_type_is_an_error(wrong):
    with pytest.raises(UserError, match=f"^objective 'mine'.*{next(iter(wrong))}|not JSON"):
        fill_defaults(objective, wrong, "objective 'mine'")


def test_a_name_or_value_that_is_missing_is_an_error():
    def custom(Z, *, weight: float, scale=2.0):
        return {}

    assert fill_defaults(custom, {"weight": 3, "scale": 1}, "") == {"weight": 3.0, "scale": 1.0}
    with pytest.raises(UserError, match="weight"):
        fill_defaults(custom, {}, "custom")
    with pytest.raises(UserError, match=r"there is no field 'invarianc'; did you mean 'invariance'\?"):
        fill_defaults(frossl, {"invarianc": 1.0}, "frossl")


def test_a_default_that_can_change_is_an_error():
    def loss(Z, *, weights=[1.0, 2.0]):  # noqa: B006
        return {}

    with pytest.raises(UserError, match="give a value that cannot change, such as a tuple"):
        keywords(loss)


@pytest.fixture
def transform(tmp_path, monkeypatch):
    """The name of a function in a user's module in the working directory."""
    (tmp_path / "my_transforms.py").write_text("def invert(x, generator):\n    return 1 - x\n\nNUMBER = 3\n")
    (tmp_path / "my_broken.py").write_text("import no_such_module_of_mine\n")
    (tmp_path / "my_error.py").write_text("1 / 0\n")
    (tmp_path / "my_loss.py").write_text("def loss(Z, *, weight=2.0, scale: int = 3):\n    return {'x': Z.sum()}\n")
    (tmp_path / "wave.py").write_text("raise SystemExit('the file of the working directory ran')\n")
    (tmp_path / "my_user_of_wave.py").write_text("import wave\n\ndef f():\n    return wave.open\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(user_code, "_imported", {})
    sys.modules.pop("wave", None)
    yield "my_transforms:invert"
    for name in [name for name in sys.modules if name.startswith("my_")]:
        del sys.modules[name]


def test_modules_of_the_working_directory_and_installed_ones_are_found(transform):
    lines = []
    for _ in range(2):
        assert import_function(transform, notify=lines.append)(0.25, None) == 0.75
    assert lines == ["imports my_transforms:invert from ./my_transforms.py"]
    assert import_function("torch.nn.functional:relu") is torch.nn.functional.relu
    assert callable(import_function("my_user_of_wave:f")())  # of Python, not of the working directory


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("math.sqrt", "expected package.module:function"),
        ("math:", "expected package.module:function"),
        ("my_transformz:invert", "No module named 'my_transformz'"),
        ("my_broken:f", "No module named 'no_such_module_of_mine'"),
        ("my_error:f", "ZeroDivisionError"),
        ("my_transforms:inver", "did you mean 'invert'?"),
        ("my_transforms:NUMBER", "has no function NUMBER"),
    ],
)
def test_a_function_that_cannot_be_imported_is_an_error(transform, name, expected):
    with pytest.raises(UserError) as caught:
        import_function(name)
    assert expected in str(caught.value)


@pytest.mark.parametrize("trust", [False, [], ["my_transforms:other"]])
@pytest.mark.parametrize("field", ["objective", "method_builder", "custom_transforms"])
def test_code_that_is_not_trusted_is_not_imported(trust, field, transform):
    recipe = Recipe(**{field: (transform,) if field == "custom_transforms" else transform})
    with pytest.raises(UserError, match=r"'my_transforms:invert' is code.*--trust"):
        import_code(recipe, trust)
    from_dict(to_dict(recipe))
    assert "my_transforms" not in sys.modules
    import_function(transform)
    assert import_code(Recipe(custom_transforms=(transform,)), trust).custom_transforms == (transform,)


def test_a_recipe_takes_the_hyperparameters_of_a_users_objective_after_its_import(transform):
    recipe = Recipe(objective="my_loss:loss", hyper={"weight": 3})
    assert (recipe.hyper, recipe.method) == ({"weight": 3}, {})
    recipe = import_code(recipe, trust=["my_loss:loss"])
    assert (recipe.hyper, recipe.method) == ({"weight": 3.0, "scale": 3}, {"shared": True})
    assert find_objective("my_loss:loss") is import_function("my_loss:loss")
    with pytest.raises(UserError, match="'wait'"):
        Recipe(objective="my_loss:loss", hyper={"wait": 3})
    with pytest.raises(UserError, match=r"write package.module:function"):
        find_objective("my_loss")


def test_trust_is_a_boolean_or_a_collection_of_names():
    with pytest.raises(UserError, match="trust is"):
        import_code(Recipe(), "my_module:my_loss")
