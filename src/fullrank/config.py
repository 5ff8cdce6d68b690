"""Frozen dataclasses whose values are checked by their types: all configuration, results and rows of a log."""

import json
from collections.abc import Callable
from dataclasses import field
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, dataclass_transform

import pydantic
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from fullrank.errors import UserError, suggest

T = TypeVar("T")
# Nothing is rounded, parsed or guessed, and an unknown field is an error.
CHECKS = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

# A probability or a fraction.
Share = Annotated[float, Field(ge=0, le=1)]
# A number of steps, images or dimensions.
Count = Annotated[int, Field(ge=0, le=10**15)]
if TYPE_CHECKING:
    JsonObject = dict[str, Any]
else:
    JsonObject = dict[str, pydantic.JsonValue]
"""An object whose fields another module defines."""


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def config(cls: type[T]) -> type[T]:
    """Make a class a frozen dataclass with keyword arguments, which checks its fields by their annotations.

    Raises:
        UserError: at construction: a field has another type or is out of bounds; the message names every wrong field.

    >>> @config
    ... class Cutout:
    ...     probability: Share = 0.5
    >>> Cutout(probability=2)
    Traceback (most recent call last):
    fullrank.errors.UserError: probability: got 2, expected less than or equal to 1
    """
    checked: Any = pydantic.dataclasses.dataclass(frozen=True, kw_only=True, config=CHECKS)(cls)
    check: Callable[..., None] = checked.__init__

    def __init__(self: Any, **values: Any) -> None:
        values = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
        try:
            check(self, **values)
        except ValidationError as error:
            raise UserError(_explain(error, getattr(checked, "__dataclass_fields__", {}))) from None

    checked.__init__ = __init__
    return checked


def from_json(kind: Any, value: Any, what: str) -> Any:
    """Return JSON as an instance of a type: a dataclass of `config`, or a nesting of tuples, dicts and dataclasses.

    Args:
        kind: the type.
        value: the text of a JSON file, or dicts, lists, strings, numbers, booleans and None.
        what: the name of the value in errors, such as the path of the file.

    Raises:
        UserError: the value has another type, or is out of bounds; the message names every wrong field.

    >>> from_json(tuple[int, ...], [1, 2.5], "milestones")
    Traceback (most recent call last):
    fullrank.errors.UserError: milestones.1: got 2.5, expected a valid integer
    """
    try:
        return TypeAdapter(kind).validate_json(value if isinstance(value, str) else json.dumps(value), strict=True)
    except ValidationError as error:
        raise UserError(_explain(error, getattr(kind, "__dataclass_fields__", {}), what)) from None
    except (TypeError, ValueError, RecursionError) as error:
        raise UserError(f"{what}: not JSON ({error})") from None


def _explain(error: ValidationError, fields: dict[str, Any], what: str = "") -> str:
    return "; ".join(_explain_one(one, fields, what) for one in error.errors(include_url=False))


def _explain_one(error: ErrorDetails, fields: dict[str, Any], what: str) -> str:
    path = ".".join([*([what] if what else []), *map(str, error["loc"])])
    match error["type"]:
        case "unexpected_keyword_argument":
            name = str(error["loc"][-1])
            head = f"{path.removesuffix(name).removesuffix('.')}: ".removeprefix(": ")
            return f"{head}there is no field '{name}'{suggest(name, list(fields))}"
        case "value_error":  # of a __post_init__ or a validator
            return f"{path}: {error.get('ctx', {}).get('error')}".removeprefix(": ")
    message = error["msg"].removeprefix("Input should be ")
    return f"{path}: got {error['input']!r:.60}, expected {message[:1].lower()}{message[1:]}"
