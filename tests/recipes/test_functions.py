import dataclasses
import inspect
import sys
from dataclasses import replace
from functools import partial
from typing import Literal

import jaxtyping
import pytest
import torch

from fullrank.errors import UserError
from fullrank.objectives import OBJECTIVES, frossl
from fullrank.recipes import (
    DataConfig,
    Recipe,
    fill_defaults,
    from_dict,
    functions,
    import_code,
    import_function,
    keywords,
    resolve_objective,
    to_dict,
)
from fullrank.recipes.assembling import build_transform


def objective(
    Z,
    *,
    weight: float = 2.0,
    count: int = 3,
    log: bool = True,
    kind: Literal["a", "b"] = "a",
    slices: int | None = None,
):
    return {}


@pytest.mark.parametrize("function", OBJECTIVES.values(), ids=OBJECTIVES.keys())
def test_fields_are_the_keyword_only_arguments_with_their_defaults(function):
    signature = inspect.signature(function).parameters.values()
    expected = {p.name: p.default for p in signature if p.kind is p.KEYWORD_ONLY}
    assert dataclasses.asdict(keywords(function)()) == expected == fill_defaults(function, {}, "objective")


def test_fields_have_the_types_of_the_signature():
    types = {field.name: field.type for field in dataclasses.fields(keywords(objective))}
    assert types == {"weight": float, "count": int, "log": bool, "kind": Literal["a", "b"], "slices": int | None}


def test_the_dataclass_is_frozen_and_has_the_name_of_the_objective():
    hyper = keywords(frossl)(invariance=3.0)
    assert repr(hyper) == "frossl(invariance=3.0, variance=1.0, log=True, center=True, normalize='columns')"
    with pytest.raises(dataclasses.FrozenInstanceError):
        hyper.invariance = 1.0
    with pytest.raises(TypeError):
        keywords(frossl)(3.0)


def test_given_values_override_defaults_and_an_integer_becomes_a_float():
    values = fill_defaults(objective, {"weight": 4, "slices": 2}, "objective")
    assert values == {"weight": 4.0, "count": 3, "log": True, "kind": "a", "slices": 2}
    assert isinstance(values["weight"], float)
    assert fill_defaults(objective, {"slices": None}, "objective")["slices"] is None


def test_given_values_are_not_modified():
    given = {"weight": 4.0}
    fill_defaults(objective, given, "objective")
    assert given == {"weight": 4.0}


def test_an_unknown_hyperparameter_lists_the_valid_ones():
    with pytest.raises(
        UserError, match=r"no hyperparameter 'invarianc'; it takes invariance, .*; did you mean 'invariance'\?$"
    ):
        fill_defaults(frossl, {"invarianc": 1.0}, "objective 'frossl'")


def test_an_objective_without_hyperparameters_takes_none():
    def spectral(Z):
        return {}

    with pytest.raises(UserError, match=r"'spectral' has no hyperparameter 'temperature'; it takes none$"):
        fill_defaults(spectral, {"temperature": 1.0}, "objective 'spectral'")


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("weight", "2", "got '2', expected float"),
        ("weight", True, "got True, expected float"),
        ("count", 2.5, "got 2.5, expected int"),
        ("count", True, "got True, expected int"),
        ("log", 1, "got 1, expected bool"),
        ("kind", "c", "got 'c', expected one of 'a', 'b'"),
        ("slices", 1.5, "got 1.5, expected int"),
    ],
)
def test_a_value_of_the_wrong_type_is_an_error(name, value, expected):
    with pytest.raises(UserError, match=f"^objective 'objective', {name}: {expected}"):
        fill_defaults(objective, {name: value}, "objective 'objective'")


def test_a_hyperparameter_without_annotation_has_the_type_of_its_default():
    def custom(Z, *, weight=2.0):
        return {}

    assert fill_defaults(custom, {"weight": 3}, "objective") == {"weight": 3.0}
    assert [field.type for field in dataclasses.fields(keywords(custom))] == [float]


def test_a_hyperparameter_without_default_must_be_given():
    def custom(Z, *, weight: float):
        return {}

    assert fill_defaults(custom, {"weight": 3}, "objective") == {"weight": 3.0}
    with pytest.raises(UserError, match=r"^objective has no value for weight; give each a default in the signature$"):
        fill_defaults(custom, {}, "objective")


def test_callable_objects_and_partials_have_hyperparameters():
    class Custom:
        def __call__(self, Z, *, weight: float = 2.0):
            return {}

    assert fill_defaults(Custom(), {"weight": 3}, "objective") == {"weight": 3.0}
    assert fill_defaults(partial(objective, weight=3.0), {}, "objective")["weight"] == 3.0


@pytest.fixture
def transform_name(tmp_path, monkeypatch):
    """A function in a user's module in the working directory."""
    (tmp_path / "my_transforms.py").write_text("def invert(x, generator):\n    return 1 - x\n\nNUMBER = 3\n")
    (tmp_path / "my_broken.py").write_text("import no_such_module_of_mine\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(functions, "_imported", {})
    yield "my_transforms:invert"
    for name in [name for name in sys.modules if name.startswith("my_")]:
        del sys.modules[name]


def test_a_module_in_the_working_directory_is_found(transform_name):
    assert import_function(transform_name)(0.25, None) == 0.75


def test_an_installed_module_is_found():
    assert import_function("torch.nn.functional:relu") is torch.nn.functional.relu


@pytest.mark.parametrize("name", ["math.sqrt", ":sqrt", "math:", ""])
def test_a_name_of_another_form_is_an_error(name):
    with pytest.raises(UserError, match=f"^'{name}' names no function; expected package.module:function$"):
        import_function(name)


def test_a_missing_module_is_an_error(transform_name):
    with pytest.raises(
        UserError, match=r"'my_transformz:invert': No module named 'my_transformz'; expected package.module:function"
    ):
        import_function("my_transformz:invert")
    with pytest.raises(UserError, match="'my_broken:f': No module named 'no_such_module_of_mine'"):
        import_function("my_broken:f")


@pytest.mark.parametrize("name", ["inver", "NUMBERS"])
def test_a_missing_function_suggests_the_nearest_name(transform_name, name):
    with pytest.raises(UserError, match=f"'my_transforms:{name}': module my_transforms has no function {name}"):
        import_function(f"my_transforms:{name}")
    with pytest.raises(UserError, match=r"did you mean 'invert'\?"):
        import_function("my_transforms:inver")


def test_a_custom_transform_of_a_recipe_changes_its_views(transform_name):
    import_function(transform_name)
    recipe = Recipe(data=DataConfig(channels=1, mean=(0.0,), std=(1.0,)))
    images = torch.randint(0, 256, (3, 1, 40, 40), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    plain, inverted = (build_transform(each) for each in (recipe, replace(recipe, custom_transforms=(transform_name,))))
    draws = plain.make_params(0, 0, 3)
    torch.testing.assert_close(inverted(images, draws)[0], 1 - plain(images, draws)[0])


def test_an_objective_is_resolved_in_the_library_or_among_what_was_imported(transform_name):
    assert resolve_objective("frossl") is frossl
    with pytest.raises(UserError, match="--trust"):
        resolve_objective(transform_name)
    assert "my_transforms" not in sys.modules
    assert import_function(transform_name) is resolve_objective(transform_name)
    with pytest.raises(
        UserError, match=r"unknown objective 'invert'; .*; for an objective of your own, write package.module:function$"
    ):
        resolve_objective("invert")
    with pytest.raises(
        UserError, match="'my_transforms:NUMBER': NUMBER of module my_transforms is a int, expected a function"
    ):
        import_function("my_transforms:NUMBER")


def test_the_first_import_says_what_is_imported_from_which_file(transform_name):
    lines = []
    for _ in range(2):
        import_function(transform_name, notify=lines.append)
    assert lines == ["imports my_transforms:invert from ./my_transforms.py"]


def test_a_file_in_the_working_directory_replaces_no_other_module(transform_name, tmp_path):
    (tmp_path / "wave.py").write_text("raise SystemExit('the file of the working directory ran')\n")
    sys.modules.pop("wave", None)
    (tmp_path / "my_user_of_wave.py").write_text("import wave\n\ndef f():\n    return wave.open\n")
    assert callable(import_function("my_user_of_wave:f")())


def test_an_exception_of_the_module_is_one_line(transform_name, tmp_path):
    (tmp_path / "my_error.py").write_text("1 / 0\n")
    before = list(sys.path)
    with pytest.raises(UserError, match=r"'my_error:f' cannot be imported .ZeroDivisionError"):
        import_function("my_error:f")
    assert sys.path == before


def test_a_recipe_takes_the_hyperparameters_of_a_users_objective_after_its_import(transform_name, tmp_path):
    (tmp_path / "my_loss.py").write_text(
        "def loss(Z, *, weight=2.0, scale: int = 3):\n    return {'sum': weight * Z.sum()}\n"
    )
    recipe = Recipe(objective="my_loss:loss", hyper={"weight": 3})
    assert (recipe.hyper, recipe.method) == ({"weight": 3}, {})
    recipe = import_code(recipe, trust=["my_loss:loss"])
    assert (recipe.hyper, recipe.method) == ({"weight": 3.0, "scale": 3}, {"shared": True})
    with pytest.raises(UserError, match="objective 'my_loss:loss' has no hyperparameter 'wait'; it takes weight"):
        Recipe(objective="my_loss:loss", hyper={"wait": 3})


@pytest.mark.parametrize("trust", [False, [], ["my_transforms:other"]])
@pytest.mark.parametrize("field", ["objective", "method_builder", "custom_transforms"])
def test_code_that_is_not_trusted_is_not_imported(trust, field, transform_name):
    recipe = Recipe(**{field: (transform_name,) if field == "custom_transforms" else transform_name})
    with pytest.raises(UserError, match=r"'my_transforms:invert' is code.*--trust"):
        import_code(recipe, trust)
    assert "my_transforms" not in sys.modules
    from_dict(to_dict(recipe))
    assert "my_transforms" not in sys.modules
    import_function(transform_name)
    assert import_code(replace(Recipe(), custom_transforms=(transform_name,)), trust).custom_transforms == (
        transform_name,
    )


def test_a_default_that_can_change_is_one_line():
    def loss(Z, *, weights=[1.0, 2.0]):  # noqa: B006
        return {}

    with pytest.raises(UserError, match=r"'loss' has a list as the default of weights.*give a tuple"):
        keywords(loss)


@pytest.mark.parametrize("trust", ["my_transforms:invert", "*", 3, None])
def test_trust_is_a_boolean_or_a_list_of_names(trust, transform_name):
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        with pytest.raises(UserError, match="trust is"):
            import_code(Recipe(objective=transform_name), trust)
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)
    assert "my_transforms" not in sys.modules
