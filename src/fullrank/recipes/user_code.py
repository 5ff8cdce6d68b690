"""Functions by their names: the library's objectives and builders, and a user's `package.module:function`.

A name with a colon is code of the user's. Only `import_function` imports it, for a name that the user typed or trusts;
everything else finds what was imported before in this process.
"""

import importlib
import inspect
import os
import sys
import typing
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from fullrank import objectives
from fullrank.config import config, from_json
from fullrank.errors import Notify, UserError, silent, suggest
from fullrank.methods import Builder, method_builder
from fullrank.objectives import Objective
from fullrank.objectives.combined import CombinedObjective
from fullrank.objectives.signature import hyperparameters

# The functions of users that this process has imported, by name.
_imported: dict[str, Callable[..., Any]] = {}


def find_objective(name: str) -> Objective:
    """Return the library's objective of that name, a sum of these, or a user's function that was imported before.

    Raises:
        UserError: there is no such objective, a hyperparameter in a sum has the wrong type, or the function was not
            imported.

    >>> find_objective("frossl").__name__
    'frossl'
    """
    if ":" in name:
        return imported_function(name)
    try:
        objective = objectives.find_objective(name)
    except UserError as error:
        own = "" if "+" in name else "; for an objective of your own, write package.module:function"
        raise UserError(f"{error}{own}") from None
    if isinstance(objective, CombinedObjective):
        for each in objective.summands:
            fill_defaults(each.objective.func, each.objective.keywords, each.name)
    return objective


def find_builder(name: str, objective: str) -> Builder:
    """Return the builder of a method: a user's function, or the library's for the objective if `name` is empty.

    Raises:
        UserError: the function was not imported, or the library has no builder for the objective.

    >>> find_builder("", "byol").__name__
    'build_byol'
    """
    return imported_function(name) if name else method_builder(objective, find_objective(objective))


def is_imported(name: str) -> bool:
    """Return whether a name is the library's, or that of a user's function that this process has imported."""
    return ":" not in name or name in _imported


def imported_function(name: str) -> Callable[..., Any]:
    """Return a user's function that this process has imported.

    Raises:
        UserError: it has not; the message says how to allow it.

    >>> imported_function("os:system")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    fullrank.errors.UserError: 'os:system' is code, which a recipe does not run; read it, then give --trust (in ...
    """
    if name in _imported:
        return _imported[name]
    how = f"--trust (in Python: fullrank.recipes.import_function('{name}'))"
    raise UserError(f"'{name}' is code, which a recipe does not run; read it, then give {how}")


def import_function(name: str, *, notify: Notify = silent) -> Callable[..., Any]:
    """Import `package.module:function`. Modules of the working directory are found if no installed module has their
    name.

    Args:
        name: the name of a function that the user trusts, because the import runs its module.
        notify: is called with one line that says what is imported from which file, the first time.

    Raises:
        UserError: the name has another form, the module does not exist, or it has no such function.

    >>> import_function("math:sqrt")(9.0)
    3.0
    """
    if name in _imported:
        return _imported[name]
    module_name, _, function_name = name.partition(":")
    if not (module_name and function_name):
        raise UserError(f"'{name}' names no function; expected package.module:function")
    here = os.getcwd()
    if here not in sys.path:
        sys.path.append(here)  # the last place, so that a file json.py there replaces no module of Python's
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        expected = "expected package.module:function, importable from the working directory"
        raise UserError(f"'{name}': {error}; {expected}") from error
    except Exception as error:  # the module may raise anything
        raise UserError(f"'{name}' cannot be imported ({type(error).__name__}: {error}); fix the module") from error
    function = getattr(module, function_name, None)
    if not callable(function):
        hint = suggest(function_name, dir(module))
        raise UserError(f"'{name}': module {module_name} has no function {function_name}{hint}")
    file = Path(getattr(module, "__file__", None) or "Python")
    notify(f"imports {name} from {f'./{file.relative_to(here)}' if file.is_relative_to(here) else file}")
    _imported[name] = function
    return function


@cache
def keywords(function: Callable[..., Any]) -> type:
    """Return a frozen dataclass with one field for each keyword-only argument of `function`, with its type and default.

    Its docstring is that of the function, whose "Args" are the help of the flags. Without an annotation, the type of an
    argument is that of its default.

    Raises:
        UserError: the default of an argument can change, such as a list.

    >>> from fullrank.objectives import vicreg
    >>> keywords(vicreg)(covariance=4.0)
    vicreg(invariance=25.0, variance=25.0, covariance=4.0)
    """
    routine = function if inspect.isroutine(function) else type(function).__call__
    hints = typing.get_type_hints(routine, include_extras=True)
    numbers = hyperparameters(function)
    members: dict[str, Any] = {key: x for key, x in numbers.items() if x is not inspect.Parameter.empty}
    members["__annotations__"] = {key: hints.get(key, type(x)) for key, x in numbers.items()}
    name = str(getattr(function, "__name__", type(function).__name__))
    try:
        return config(type(name, (), members | {"__doc__": inspect.getdoc(function), "__module__": __name__}))
    except ValueError as error:
        raise UserError(f"'{name}': {error}; give a value that cannot change, such as a tuple") from None


def fill_defaults(function: Callable[..., Any], values: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Return all keyword-only arguments of `function`: its defaults, overridden by `values`.

    Args:
        function: an objective, or the builder of a method.
        values: values by name.
        what: the name of the function in errors.

    Raises:
        UserError: `function` does not take a name, a value has the wrong type, or an argument has neither a value nor a
            default.

    >>> from fullrank.objectives import vicreg
    >>> fill_defaults(vicreg, {"covariance": 4}, "vicreg")
    {'invariance': 25.0, 'variance': 25.0, 'covariance': 4.0}
    """
    return dict(vars(from_json(keywords(function), dict(values), what)))
