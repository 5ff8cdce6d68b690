from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from fullrank.errors import UserError
from fullrank.structure import structure


@dataclass(frozen=True, kw_only=True)
class Inner:
    rate: float = 1.0
    kind: Literal["a", "b"] = "a"

    def __post_init__(self):
        if self.rate < 0:
            raise UserError(f"rate is {self.rate}, but has to be positive")


@dataclass(frozen=True, kw_only=True)
class Outer:
    inner: Inner = field(default_factory=Inner)
    several: tuple[Inner, ...] = ()
    widths: tuple[int, ...] = (1,)
    name: str | None = None
    anything: dict[str, Any] = field(default_factory=dict)


def test_builds_nested_dataclasses():
    values = {
        "inner": {"rate": 2},
        "several": [{"kind": "b"}],
        "widths": [3, 4],
        "name": "x",
        "anything": {"k": [1, {"l": None}]},
    }
    expected = Outer(
        inner=Inner(rate=2.0), several=(Inner(kind="b"),), widths=(3, 4), name="x", anything={"k": [1, {"l": None}]}
    )
    assert structure(values, Outer, "it") == expected
    assert isinstance(structure(values, Outer, "it").inner.rate, float)


def test_missing_fields_take_their_defaults():
    assert structure({}, Outer, "it") == Outer()


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"inner": {"rate": "1.0"}}, "it.inner.rate: got '1.0', expected float"),
        ({"inner": {"rate": None}}, "it.inner.rate: got None, expected float"),
        ({"inner": {"rate": -1.0}}, "it.inner: rate is -1.0, but has to be positive"),
        ({"inner": {"kind": "c"}}, "it.inner.kind: got 'c', expected one of 'a', 'b'"),
        ({"inner": 3}, "it.inner: got 3, expected an object"),
        ({"inner": [1]}, "it.inner: got [1], expected an object"),
        ({"several": [{}, {"rate": "x"}]}, "it.several[1].rate: got 'x', expected float"),
        ({"several": 3}, "it.several: got 3, expected a list"),
        ({"widths": [1, 2.5]}, "it.widths[1]: got 2.5, expected int"),
        ({"widths": [True]}, "it.widths[0]: got True, expected int"),
        ({"name": 3}, "it.name: got 3, expected str"),
        ({"innner": {}}, "it: there is no field 'innner'; did you mean 'inner'?"),
        ({"inner": {"rat": 1.0}}, "it.inner: there is no field 'rat'; did you mean 'rate'?"),
        ({"zebra": 1, "xylophone": 2}, "it: there is no field 'xylophone'; there is no field 'zebra'"),
        ({"widths": [0.5], "name": 1}, "it.widths[0]: got 0.5, expected int; it.name: got 1, expected str"),
    ],
)
def test_the_error_names_the_path_of_each_problem(values, expected):
    with pytest.raises(UserError) as caught:
        structure(values, Outer, "it")
    assert str(caught.value) == expected


def test_the_error_of_a_scalar_names_it():
    with pytest.raises(UserError, match=r"^weight: got 'x', expected float$"):
        structure("x", float, "weight")
