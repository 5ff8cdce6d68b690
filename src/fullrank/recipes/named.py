"""Functions by name: how a recipe, which is plain data, names a function of the user's own."""

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

from fullrank.errors import UserError, pick, suggest
from fullrank.methods import Builder, method_builder
from fullrank.objectives import OBJECTIVES, Objective


def resolve_objective(name: str) -> Objective:
    """Return one of the library's objectives, or a function of the user's own, `package.module:function`.

    Raises:
        UserError: there is none of that name.

    >>> resolve_objective("frossl").__name__
    'frossl'
    """
    if ":" in name:
        return import_function(name)
    try:
        return pick(name, OBJECTIVES, "objective")
    except UserError as error:
        raise UserError(f"{error}; one of your own is named package.module:function") from None


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
    """Import `package.module:function`; modules of the working directory are found, as they are by `python -m`.

    Raises:
        UserError: the name has another form, there is no such module, or it has no such function.

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
        raise UserError(f"'{name}': {error}; expected package.module:function, importable from here") from error
    function = getattr(module, function_name, None)
    if function is not None and not callable(function):
        raise UserError(f"'{name}': {function_name} of module {module_name} is a {type(function).__name__}, expected a function")
    if function is None:
        raise UserError(f"'{name}': module {module_name} has no function {function_name}{suggest(function_name, dir(module))}")
    return function
