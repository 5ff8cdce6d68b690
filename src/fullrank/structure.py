"""Conversion of JSON values to typed values, and the check of dataclasses, by the types and requirements in the
annotations.

Nothing is rounded, parsed or guessed, and an unknown field is an error.
"""

import contextlib
import dataclasses
import numbers
import re
import types
import typing
from collections.abc import Callable, Mapping
from functools import cache
from reprlib import Repr
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from fullrank.config import from_json
from fullrank.errors import UserError, suggest


@dataclasses.dataclass(frozen=True)
class Requirement:
    """What a value must satisfy besides its type: `Annotated[int, between(1, 10)]`."""

    expected: str
    """The end of the sentence "got 11, expected int …"."""
    satisfied_by: Callable[[Any], bool]


def between(low: int | float, high: int | float) -> Requirement:
    """Return the requirement that a finite number is in [low, high].

    >>> structure(11, Annotated[int, between(1, 10)], "count")
    Traceback (most recent call last):
    fullrank.errors.UserError: count: got 11, expected int from 1 to 10
    """
    return Requirement(f"from {low} to {high}", lambda value: low <= value <= high)


Share = Annotated[float, between(0, 1)]
"""A probability or a fraction."""
Count = Annotated[int, between(0, 10**15)]
"""A number of steps, images or dimensions, which a float can represent."""
Text = Annotated[str, Requirement("without control characters", lambda text: text.isprintable() or not text)]
"""A line that is safe to print."""
PathText = Annotated[str, Requirement("without NUL characters", lambda text: "\0" not in text)]
"""A path or a URI, which may contain any character that a file system allows."""
FINITE = Requirement("of at most 1e12 in absolute value", lambda value: abs(value) <= 1e12)
"""The requirement of numbers that have no other bounds."""
ASCENDING = Requirement("with the smaller one first", lambda pair: pair[0] <= pair[1])
"""The requirement of a pair that is a range."""


def is_json(value: Any, depth: int = 6) -> bool:
    """Return whether JSON can represent the value, nested at most `depth` times, with finite numbers.

    >>> is_json({"channels": [32, 64], "stem": None}), is_json(float("nan")), is_json({"layer": int})
    (True, False, False)
    """
    match value:
        case dict():
            return depth > 0 and all(isinstance(name, str) and is_json(item, depth - 1) for name, item in value.items())
        case list() | tuple():
            return depth > 0 and all(is_json(item, depth - 1) for item in value)
        case bool() | str() | None:
            return True
        case int() | float():
            return FINITE.satisfied_by(value)
    return False


JsonObject = Annotated[dict[str, Any], Requirement("of JSON values with finite numbers", is_json)]
"""An object whose fields another module defines."""


def structure(value: Any, kind: Any, what: str) -> Any:
    """Return `value` as an instance of `kind`: a scalar, a tuple, a dataclass, or a nesting of these.

    Args:
        value: dicts, lists, strings, numbers, booleans and None.
        kind: the expected type, with `Requirement`s in its annotations; a float may be given as an integer.
        what: the name of the value in errors.

    Raises:
        UserError: the value has another type, or violates a requirement; the message lists every path at which it
            differs.

    >>> structure([1, 2], tuple[float, ...], "milestones")
    (1.0, 2.0)
    """
    converter = _Converter(json=True)
    try:
        result = converter.convert(value, kind, what)
    except RecursionError:
        raise UserError(f"{what}: the value is nested too deeply") from None
    if converter.problems:
        raise UserError("; ".join(converter.problems))
    return result


def validate(instance: Any, prefix: str = "", *, remedy: str = "") -> None:
    """Check the fields of a frozen dataclass by their annotations, and convert integers to floats and lists to tuples
    where they belong.

    Args:
        instance: the dataclass, called from its `__post_init__`.
        prefix: the beginning of a field's name in errors.
        remedy: the end of an error, with the name of the first wrong field in place of `{}`.

    Raises:
        UserError: a field has another type, or violates a requirement; the message names every wrong field.
    """
    converter = _Converter(json=False)
    for name, kind in field_types(type(instance)).items():
        value = getattr(instance, name)
        converted = converter.convert(value, kind, prefix + name)
        if converted is not value:
            object.__setattr__(instance, name, converted)
    if problems := converter.problems:
        raise UserError("; ".join(problems) + remedy.format(_flag(problems[0].partition(":")[0])))


@cache
def field_types(kind: type) -> dict[str, Any]:
    """Return the name and the type of each field of a dataclass, with its requirements.

    >>> @dataclasses.dataclass
    ... class Point:
    ...     x: Share
    >>> field_types(Point)["x"] == Share
    True
    """
    hints = typing.get_type_hints(kind, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind) if field.init}


class _Converter:
    """Converts values and collects what is wrong; `json` says whether objects stand for dataclasses."""

    def __init__(self, *, json: bool) -> None:
        self.json = json
        self.problems: list[str] = []

    def convert(self, value: Any, kind: Any, path: str, requirements: tuple[Requirement, ...] = ()) -> Any:
        """Return the converted value, or any value after adding to `problems`."""
        origin, arguments = get_origin(kind), get_args(kind)
        if origin is Annotated:
            own = tuple(each for each in kind.__metadata__ if isinstance(each, Requirement))
            return self.convert(value, kind.__origin__, path, (*own, *requirements))
        before = len(self.problems)
        if kind is Any:
            converted = value
        elif origin in (Union, types.UnionType):
            converted = self._union(value, arguments, path, requirements)
        elif origin is tuple:
            converted = self._tuple(value, arguments, path)
        elif origin is dict:
            converted = self._dict(value, arguments[1], path)
        elif dataclasses.is_dataclass(kind):
            converted = self._dataclass(value, typing.cast(type, kind), path)
        else:
            converted = self._scalar(value, kind, path, requirements)
        if (
            len(self.problems) == before
            and value is not None
            and not all(each.satisfied_by(converted) for each in requirements)
        ):
            self._expected(path, value, kind, requirements)
        return converted

    def _expected(self, path: str, value: Any, kind: Any, requirements: tuple[Requirement, ...] = ()) -> None:
        wanted = " ".join([_name(kind), *(each.expected for each in requirements)])
        self.problems.append(f"{path}: got {_shortened.repr(value)}, expected {wanted}")

    def _union(self, value: Any, kinds: tuple[Any, ...], path: str, requirements: tuple[Requirement, ...]) -> Any:
        if value is None and types.NoneType in kinds:
            return None
        kinds = tuple(kind for kind in kinds if kind is not types.NoneType)
        if len(kinds) == 1:
            return self.convert(value, kinds[0], path, requirements)
        for kind in kinds:
            attempt = _Converter(json=self.json)
            converted = attempt.convert(value, kind, path)
            if not attempt.problems:
                return converted
        self._expected(path, value, Union[kinds])  # noqa: UP007  the number of kinds varies
        return value

    def _tuple(self, value: Any, kinds: tuple[Any, ...], path: str) -> Any:
        if not isinstance(value, list | tuple):
            self.problems.append(f"{path}: got {_shortened.repr(value)}, expected a list")
            return value
        if len(kinds) == 2 and kinds[1] is ...:
            kinds = (kinds[0],) * len(value)
        if len(value) != len(kinds):
            self.problems.append(f"{path}: got {_shortened.repr(value)}, expected {len(kinds)} values")
            return value
        items = tuple(
            self.convert(item, kind, f"{path}[{i}]") for i, (item, kind) in enumerate(zip(value, kinds, strict=True))
        )
        return value if isinstance(value, tuple) and all(a is b for a, b in zip(items, value, strict=True)) else items

    def _dict(self, value: Any, kind: Any, path: str) -> Any:
        if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
            self.problems.append(f"{path}: got {_shortened.repr(value)}, expected an object")
            return value
        return (
            value if kind is Any else {name: self.convert(item, kind, f"{path}.{name}") for name, item in value.items()}
        )

    def _dataclass(self, value: Any, kind: type, path: str) -> Any:
        if hasattr(kind, "__pydantic_validator__") and isinstance(value, kind | Mapping):  # it checks itself
            try:
                return value if isinstance(value, kind) else from_json(kind, value, path)
            except UserError as error:
                self.problems.append(str(error))
                return value
        types_ = field_types(kind)
        if isinstance(value, kind):
            given = {name: getattr(value, name) for name in types_}
            before = len(self.problems)
            fields = {name: self.convert(given[name], types_[name], f"{path}.{name}") for name in types_}
            wrong, same = len(self.problems) > before, all(fields[name] is given[name] for name in types_)
            return value if wrong or same else self._build(kind, fields, path, value)
        if not (self.json and isinstance(value, Mapping)):
            wanted = "an object" if self.json else f"a {kind.__name__}"
            self.problems.append(f"{path}: got {_shortened.repr(value)}, expected {wanted}")
            return value
        if unknown := sorted(str(name) for name in value if name not in types_):
            names = [f"there is no field '{name}'{suggest(name, list(types_))}" for name in unknown]
            self.problems.append(f"{path}: {'; '.join(names)}")
        before = len(self.problems)
        fields = {name: self.convert(value[name], types_[name], f"{path}.{name}") for name in types_ if name in value}
        for field in dataclasses.fields(kind):
            if (
                field.name in types_
                and field.name not in value
                and field.default is field.default_factory is dataclasses.MISSING
            ):
                self.problems.append(f"{path}.{field.name}: required field missing")
        return value if len(self.problems) > before or unknown else self._build(kind, fields, path, value)

    def _build(self, kind: type, fields: dict[str, Any], path: str, value: Any) -> Any:
        try:
            return kind(**fields)
        except UserError as error:
            self.problems.append(f"{path}: {error}")
            return value

    def _scalar(self, value: Any, kind: Any, path: str, requirements: tuple[Requirement, ...]) -> Any:
        """Convert a number, a string, a boolean, one of several literals, or None."""
        if get_origin(kind) is Literal:
            if any(value is choice or (type(value) is type(choice) and value == choice) for choice in get_args(kind)):
                return value
        elif kind is int and isinstance(value, numbers.Integral) and not isinstance(value, bool):
            return value if type(value) is int else int(value)
        elif kind is float and isinstance(value, numbers.Real) and not isinstance(value, bool):
            with contextlib.suppress(OverflowError):
                return value if type(value) is float else float(value)
        elif kind is types.NoneType and value is None:
            return None
        elif (
            kind not in (int, float) and isinstance(kind, type) and isinstance(value, kind)
        ):  # a bool, a string, or a type of the user's
            return value
        self._expected(path, value, kind, requirements)
        return value


def _flag(path: str) -> str:
    """Return the name of the flag for the path of a field.

    >>> _flag("views[0].blur.sigma[1]"), _flag("epochs")
    ('views.0.blur.sigma', 'epochs')
    """
    return re.sub(r"\[(\d+)\]", r".\1", re.sub(r"\[\d+\]$", "", path))


def _name(kind: Any) -> str:
    """Return the name of a type for an error.

    >>> _name(Literal["a", "b"]), _name(int | None), _name(Share)
    ("one of 'a', 'b'", 'int or None', 'float')
    """
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _name(arguments[0])
    if origin is Literal:
        return f"one of {', '.join(map(repr, arguments))}"
    if origin in (Union, types.UnionType):
        return " or ".join(map(_name, arguments))
    if origin in (tuple, dict):
        return "values" if origin is tuple else "an object"
    return "None" if kind is types.NoneType else getattr(kind, "__name__", str(kind))


_shortened = Repr()
_shortened.maxstring = _shortened.maxother = 60
_shortened.maxlevel = 3
