"""From what JSON holds to typed values, strictly: nothing is rounded, parsed or guessed, and a field that does not exist is an error."""

import dataclasses
from typing import Any, Literal, get_args, get_origin

import cattrs

from fullrank.errors import UserError, suggest


def structure(value: Any, kind: Any, what: str) -> Any:
    """Return `value` as `kind`: a scalar, a tuple, a dataclass, or these in one another.

    Args:
        value: of dicts, lists, strings, numbers, booleans and None.
        kind: what it has to be; an integer may stand for a float.
        what: how an error calls the value.

    Raises:
        UserError: the value does not fit; the line lists every place where.

    >>> structure([1, 2], tuple[float, ...], "milestones")
    (1.0, 2.0)
    """
    try:
        return _converter.structure(value, kind)
    except cattrs.BaseValidationError as error:
        found = (line.rpartition(" @ ") for line in cattrs.transform_error(error, path=what, format_exception=_say))
        raise UserError("; ".join(f"{path}: {problem}" for problem, _, path in found)) from error
    except UserError as error:
        raise UserError(f"{what}: {error}") from error


def _scalar(value: Any, kind: type) -> Any:
    accepted = (int, float) if kind is float else kind
    if isinstance(value, accepted) and isinstance(value, bool) == (kind is bool):  # to Python, True is an int
        return kind(value)
    raise UserError(f"got {value!r}, expected {kind.__name__}")


def _literal(value: Any, kind: Any) -> Any:
    if value in get_args(kind):
        return value
    raise UserError(f"got {value!r}, expected one of {', '.join(map(repr, get_args(kind)))}")


def _say(error: BaseException, kind: Any) -> str:
    """Put one of cattrs' errors into words."""
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
