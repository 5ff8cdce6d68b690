"""The numbers of an objective or of a method, read from a signature: the only home of a default."""

import dataclasses
import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any

from fullrank.errors import UserError, suggest
from fullrank.structure import structure


def keywords(function: Callable[..., Any]) -> type:
    """Return a frozen dataclass with one field for each keyword-only argument of `function`, with its type and default.

    >>> from fullrank.objectives import vicreg
    >>> keywords(vicreg)(covariance=4.0)
    vicreg(invariance=25.0, variance=25.0, covariance=4.0)
    """
    fields = [(name, kind, dataclasses.field(default=default)) for name, (kind, default) in _numbers(function).items()]
    name = getattr(function, "__name__", "hyper")
    # Its docstring, whose "Args" are the help of the flags.
    return dataclasses.make_dataclass(name, fields, frozen=True, kw_only=True, namespace={"__doc__": inspect.getdoc(function)})


def complete(function: Callable[..., Any], values: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Return all keyword-only arguments of `function`: its defaults, overridden by `values`.

    Args:
        function: an objective, or the builder of a method.
        values: by name.
        what: how an error calls the function.

    Raises:
        UserError: a name that `function` does not take, a value of another type, or a number of the function's that has no default.

    >>> from fullrank.objectives import vicreg
    >>> complete(vicreg, {"covariance": 4}, "objective 'vicreg'")
    {'invariance': 25.0, 'variance': 25.0, 'covariance': 4.0}
    """
    numbers = _numbers(function)
    for name in values:
        if name not in numbers:
            raise UserError(f"{what} has no number '{name}'; it takes {', '.join(numbers) or 'none'}{suggest(name, numbers)}")
    given = {name: structure(value, numbers[name][0], f"{what}, {name}") for name, value in values.items()}
    if missing := [name for name, (_, default) in numbers.items() if default is inspect.Parameter.empty and name not in given]:
        raise UserError(f"{what} has no value for {', '.join(missing)}; give each a default in the signature")
    return {name: default for name, (_, default) in numbers.items()} | given


def _numbers(function: Callable[..., Any]) -> dict[str, tuple[Any, Any]]:
    """Return the type and default of each number; a type that is not annotated is that of the default."""
    hints = typing.get_type_hints(function if inspect.isroutine(function) else type(function).__call__)
    keyword_only = (p for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY)
    return {p.name: (hints.get(p.name, type(p.default)), p.default) for p in keyword_only}
