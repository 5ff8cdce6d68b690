"""Import the functions that a recipe names, and read their hyperparameters and defaults from the signature."""

import dataclasses
import importlib
import inspect
import os
import sys
import typing
from collections.abc import Callable, Mapping
from typing import Any

from fullrank.errors import UserError, pick, suggest
from fullrank.methods import Builder, method_builder
from fullrank.objectives import OBJECTIVES, Objective
from fullrank.objectives.signature import GENERATOR
from fullrank.structure import structure


def resolve_objective(name: str) -> Objective:
    """Return the library's objective of that name, or import a user's function `package.module:function`.

    Raises:
        UserError: there is no such objective or function.

    >>> resolve_objective("frossl").__name__
    'frossl'
    """
    if ":" in name:
        return import_function(name)
    try:
        return pick(name, OBJECTIVES, "objective")
    except UserError as error:
        raise UserError(f"{error}; for an objective of your own, write package.module:function") from None


def resolve_builder(name: str, objective_name: str, objective: Objective) -> Builder:
    """Return the builder of a method: `package.module:builder`, or the library's for the objective if `name` is empty.

    Raises:
        UserError: there is no function of that name, or the library has no builder for the objective.

    >>> from fullrank.objectives import byol
    >>> resolve_builder("", "byol", byol).__name__
    'build_byol'
    """
    return import_function(name) if name else method_builder(objective_name, objective)


def import_function(name: str) -> Callable[..., Any]:
    """Import `package.module:function`. Modules in the working directory are found, as with `python -m`.

    Raises:
        UserError: the name has another form, the module does not exist, or it has no such function.

    >>> import_function("math:sqrt")(9.0)
    3.0
    """
    module_name, colon, function_name = name.partition(":")
    if not (colon and module_name and function_name):
        raise UserError(f"'{name}' names no function; expected package.module:function")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise UserError(f"'{name}': {error}; expected package.module:function, importable from the working directory") from error
    function = getattr(module, function_name, None)
    if function is None:
        raise UserError(f"'{name}': module {module_name} has no function {function_name}{suggest(function_name, dir(module))}")
    if not callable(function):
        raise UserError(f"'{name}': {function_name} of module {module_name} is a {type(function).__name__}, expected a function")
    return function


def keywords(function: Callable[..., Any]) -> type:
    """Return a frozen dataclass with one field for each keyword-only argument of `function`, with its type and default.

    >>> from fullrank.objectives import vicreg
    >>> keywords(vicreg)(covariance=4.0)
    vicreg(invariance=25.0, variance=25.0, covariance=4.0)
    """
    fields = [(name, kind, dataclasses.field(default=default)) for name, (kind, default) in _keyword_arguments(function).items()]
    name = getattr(function, "__name__", "hyper")
    # The docstring is copied because its "Args" are the help of the flags.
    return dataclasses.make_dataclass(name, fields, frozen=True, kw_only=True, namespace={"__doc__": inspect.getdoc(function)})


def fill_defaults(function: Callable[..., Any], values: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Return all keyword-only arguments of `function`: its defaults, overridden by `values`.

    Args:
        function: an objective, or the builder of a method.
        values: values by name.
        what: the name of the function in errors.

    Raises:
        UserError: `function` does not take a name, a value has the wrong type, or an argument has neither a value nor a default.

    >>> from fullrank.objectives import vicreg
    >>> fill_defaults(vicreg, {"covariance": 4}, "objective 'vicreg'")
    {'invariance': 25.0, 'variance': 25.0, 'covariance': 4.0}
    """
    arguments = _keyword_arguments(function)
    for name in values:
        if name not in arguments:
            raise UserError(f"{what} has no hyperparameter '{name}'; it takes {', '.join(arguments) or 'none'}{suggest(name, arguments)}")
    given = {name: structure(value, arguments[name][0], f"{what}, {name}") for name, value in values.items()}
    if missing := [name for name, (_, default) in arguments.items() if default is inspect.Parameter.empty and name not in given]:
        raise UserError(f"{what} has no value for {', '.join(missing)}; give each a default in the signature")
    return {name: default for name, (_, default) in arguments.items()} | given


def _keyword_arguments(function: Callable[..., Any]) -> dict[str, tuple[Any, Any]]:
    """Return the type and the default of each keyword-only argument; without an annotation, the type is that of the default."""
    hints = typing.get_type_hints(function if inspect.isroutine(function) else type(function).__call__)
    keyword_only = [p for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY and p.name != GENERATOR]
    for parameter in keyword_only:
        if type(parameter.default) in (list, dict, set):
            name = getattr(function, "__name__", type(function).__name__)
            kind = type(parameter.default).__name__
            raise UserError(f"'{name}' has a {kind} as the default of {parameter.name}, expected a value that cannot change; give a tuple")
    return {p.name: (hints.get(p.name, type(p.default)), p.default) for p in keyword_only}
