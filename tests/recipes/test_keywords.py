import dataclasses
import inspect
from functools import partial
from typing import Literal

import pytest

from fullrank.errors import UserError
from fullrank.objectives import OBJECTIVES, frossl
from fullrank.recipes import complete, keywords


def objective(Z, *, weight: float = 2.0, count: int = 3, log: bool = True, kind: Literal["a", "b"] = "a", slices: int | None = None):
    return {}


@pytest.mark.parametrize("function", OBJECTIVES.values(), ids=OBJECTIVES.keys())
def test_fields_are_the_keyword_only_arguments_with_their_defaults(function):
    signature = inspect.signature(function).parameters.values()
    expected = {p.name: p.default for p in signature if p.kind is p.KEYWORD_ONLY}
    assert dataclasses.asdict(keywords(function)()) == expected == complete(function, {}, "objective")


def test_fields_have_the_types_of_the_signature():
    types = {field.name: field.type for field in dataclasses.fields(keywords(objective))}
    assert types == {"weight": float, "count": int, "log": bool, "kind": Literal["a", "b"], "slices": int | None}


def test_the_dataclass_is_frozen_and_named_like_the_objective():
    numbers = keywords(frossl)(invariance=3.0)
    assert repr(numbers) == "frossl(invariance=3.0, log=True, center=True, normalize='columns')"
    with pytest.raises(dataclasses.FrozenInstanceError):
        numbers.invariance = 1.0
    with pytest.raises(TypeError):
        keywords(frossl)(3.0)


def test_given_values_override_defaults_and_an_integer_becomes_the_float_that_is_asked():
    values = complete(objective, {"weight": 4, "slices": 2}, "objective")
    assert values == {"weight": 4.0, "count": 3, "log": True, "kind": "a", "slices": 2}
    assert isinstance(values["weight"], float)
    assert complete(objective, {"slices": None}, "objective")["slices"] is None


def test_the_values_that_were_given_are_left_alone():
    given = {"weight": 4.0}
    complete(objective, given, "objective")
    assert given == {"weight": 4.0}


def test_an_unknown_number_is_named_with_those_that_there_are():
    with pytest.raises(
        UserError, match=r"^objective 'frossl' has no number 'invarianc'; it takes invariance, log, .*; did you mean 'invariance'\?$"
    ):
        complete(frossl, {"invarianc": 1.0}, "objective 'frossl'")


def test_an_objective_without_numbers_says_so():
    def spectral(Z):
        return {}

    with pytest.raises(UserError, match=r"'spectral' has no number 'temperature'; it takes none$"):
        complete(spectral, {"temperature": 1.0}, "objective 'spectral'")


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
def test_a_number_of_another_type_is_refused(name, value, expected):
    with pytest.raises(UserError, match=f"^objective 'objective', {name}: {expected}$"):
        complete(objective, {name: value}, "objective 'objective'")


def test_a_number_without_annotation_has_the_type_of_its_default():
    def mine(Z, *, weight=2.0):
        return {}

    assert complete(mine, {"weight": 3}, "objective") == {"weight": 3.0}
    assert [field.type for field in dataclasses.fields(keywords(mine))] == [float]


def test_a_number_without_default_has_to_be_given():
    def mine(Z, *, weight: float):
        return {}

    assert complete(mine, {"weight": 3}, "objective") == {"weight": 3.0}
    with pytest.raises(UserError, match=r"^objective has no value for weight; give each a default in the signature$"):
        complete(mine, {}, "objective")


def test_an_object_that_is_called_has_numbers_too():
    class Mine:
        def __call__(self, Z, *, weight: float = 2.0):
            return {}

    assert complete(Mine(), {"weight": 3}, "objective") == {"weight": 3.0}
    assert complete(partial(objective, weight=3.0), {}, "objective")["weight"] == 3.0
