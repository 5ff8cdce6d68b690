"""The numbers of an objective, read from its signature: the only home of a default."""

import dataclasses
import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any

from fullrank.errors import UserError, perhaps
from fullrank.recipes.structure import structure


def keywords(function: Callable[..., Any]) -> type:
    """Return a frozen dataclass with one field for each keyword-only argument of `function`, with its type and default.

    >>> from fullrank.objectives import vicreg
    >>> keywords(vicreg)(covariance=4.0)
    vicreg(invariance=25.0, variance=25.0, covariance=4.0)
    """
    hints = typing.get_type_hints(function)
    fields = [(p.name, hints[p.name], dataclasses.field(default=p.default)) for p in _keyword_only(function)]
    name = getattr(function, "__name__", "hyper")
    return dataclasses.make_dataclass(name, fields, frozen=True, kw_only=True)


def complete(function: Callable[..., Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return all keyword-only arguments of `function`: its defaults, overridden by `values`.

    Raises:
        UserError: a name that `function` does not take, or a value of another type.

    >>> from fullrank.objectives import vicreg
    >>> complete(vicreg, {"covariance": 4})
    {'invariance': 25.0, 'variance': 25.0, 'covariance': 4.0}
    """
    objective = f"objective '{getattr(function, '__name__', function)}'"
    hints = typing.get_type_hints(function)
    numbers = {p.name: p.default for p in _keyword_only(function)}
    for name, value in values.items():
        if name not in numbers:
            raise UserError(f"{objective} has no number '{name}'; it takes {', '.join(numbers) or 'none'}{perhaps(name, numbers)}")
        numbers[name] = structure(value, hints[name], f"{objective}, {name}")
    return numbers


def _keyword_only(function: Callable[..., Any]) -> list[inspect.Parameter]:
    return [p for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY]
