"""The numbers of an objective, read from its signature: the only home of a default."""

import dataclasses
import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any

from fullrank.errors import UserError, perhaps


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
        UserError: a name that `function` does not take.
    """
    defaults = {p.name: p.default for p in _keyword_only(function)}
    for name in values:
        if name not in defaults:
            raise UserError(
                f"objective '{getattr(function, '__name__', function)}' has no number '{name}'; it takes "
                f"{', '.join(defaults) or 'none'}{perhaps(name, defaults)}"
            )
    return defaults | dict(values)


def _keyword_only(function: Callable[..., Any]) -> list[inspect.Parameter]:
    return [p for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY]
