"""Strict conversion of JSON values to typed values: nothing is rounded, parsed or guessed, and an unknown field is an error."""

import dataclasses
from typing import Any, Literal, get_args, get_origin

import cattrs

from fullrank.errors import UserError, suggest


def structure(value: Any, kind: Any, what: str) -> Any:
    """Return `value` as an instance of `kind`: a scalar, a tuple, a dataclass, or a nesting of these.

    Args:
        value: dicts, lists, strings, numbers, booleans and None.
        kind: the expected type; a float may be given as an integer.
        what: the name of the value in errors.

    Raises:
        UserError: the value has another type; the message lists every path at which it differs.

    >>> structure([1, 2], tuple[float, ...], "milestones")
    (1.0, 2.0)
    """
    try:
        return _converter.structure(value, kind)
    except cattrs.BaseValidationError as error:
        problems = (line.rpartition(" @ ") for line in cattrs.transform_error(error, path=what, format_exception=_format_error))
        raise UserError("; ".join(f"{path}: {problem}" for problem, _, path in problems)) from error
    except UserError as error:
        raise UserError(f"{what}: {error}") from error


def _scalar(value: Any, kind: type) -> Any:
    accepted = (int, float) if kind is float else kind
    if isinstance(value, accepted) and isinstance(value, bool) == (kind is bool):  # in Python, True is an int
        return kind(value)
    raise UserError(f"got {value!r}, expected {kind.__name__}")


def _literal(value: Any, kind: Any) -> Any:
    if value in get_args(kind):
        return value
    raise UserError(f"got {value!r}, expected one of {', '.join(map(repr, get_args(kind)))}")


def _format_error(error: BaseException, kind: Any) -> str:
    """Return the message of an error of cattrs."""
    match error:
        case UserError():
            return str(error)
        case cattrs.ForbiddenExtraKeysError():
            names = [field.name for field in dataclasses.fields(error.cl)]
            return "; ".join(f"there is no field '{name}'{suggest(name, names)}" for name in sorted(error.extra_fields))
        case AttributeError() | TypeError():
            return f"expected {'a list' if get_origin(kind) is tuple else 'an object'}"
    return cattrs.v.format_exception(error, kind)


_converter = cattrs.Converter(forbid_extra_keys=True)
for _kind in (bool, int, float, str):
    _converter.register_structure_hook(_kind, _scalar)
_converter.register_structure_hook_func(lambda kind: get_origin(kind) is Literal, _literal)
