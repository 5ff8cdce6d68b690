"""Find the functions that a recipe names, and read their hyperparameters and defaults from the signature.

A name with a colon, `package.module:function`, is code of the user's. Only `import_function` imports it, which only
training calls and the commands that got the name on their command line; everything else finds what was imported before
in this process.
"""

import dataclasses
import importlib
import inspect
import os
import sys
import typing
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from fullrank.errors import UserError, pick, suggest
from fullrank.signatures import GENERATOR, declared_builder, declared_objective, objective_names
from fullrank.structure import FINITE, structure

if TYPE_CHECKING:
    from fullrank.methods import Builder
    from fullrank.objectives import Objective

_imported: dict[str, Callable[..., Any]] = {}
"""The functions of users that this process has imported, by name."""


def objective_signature(name: str) -> Callable[..., Any]:
    """Return what an objective declares: of the library's, its declaration, which needs no torch; of a user's, the
    imported function.

    Raises:
        UserError: there is no such objective, or the function was not imported.

    >>> list(fill_defaults(objective_signature("vicreg"), {}, "vicreg"))
    ['invariance', 'variance', 'covariance']
    """
    if ":" in name:
        return imported_function(name)
    check_objective_name(name)
    return declared_objective(name)


def check_objective_name(name: str) -> None:
    """Check that the library has an objective of this name.

    Raises:
        UserError: it has none.
    """
    try:
        pick(name, dict.fromkeys(objective_names()), "objective")
    except UserError as error:
        raise UserError(f"{error}; for an objective of your own, write package.module:function") from None


def builder_signature(name: str, objective_name: str) -> Callable[..., Any]:
    """Return what the builder of a method declares: a user's function that was imported before, or if `name` is empty,
    the library's.

    Raises:
        UserError: the function was not imported, or the library has no builder for the objective.
    """
    if not name and ":" not in objective_name:
        check_objective_name(objective_name)
        return declared_builder(objective_name)
    return resolve_builder(name, objective_name, resolve_objective(objective_name))


def resolve_objective(name: str) -> "Objective":
    """Return the library's objective of that name, or a user's function that was imported before.

    Raises:
        UserError: there is no such objective, or the function was not imported.

    >>> resolve_objective("frossl").__name__
    'frossl'
    """
    if ":" in name:
        return imported_function(name)
    check_objective_name(name)
    from fullrank.objectives import OBJECTIVES  # not at the top, because a recipe needs no torch

    return OBJECTIVES[name]


def resolve_builder(name: str, objective_name: str, objective: "Objective") -> "Builder":
    """Return the builder of a method: a user's function that was imported before, or the library's for the objective if
    `name` is empty.

    Raises:
        UserError: the function was not imported, or the library has no builder for the objective.

    >>> from fullrank.objectives import byol
    >>> resolve_builder("", "byol", byol).__name__
    'build_byol'
    """
    if name:
        return imported_function(name)
    from fullrank.methods import method_builder  # not at the top, because a recipe needs no torch

    return method_builder(objective_name, objective)


def is_imported(name: str) -> bool:
    """Return whether `name` is a name of the library's, or that of a user's function that this process has imported."""
    return ":" not in name or name in _imported


def imported_function(name: str) -> Callable[..., Any]:
    """Return a user's function that this process has imported.

    Raises:
        UserError: it has not; the message says how to allow it.

    >>> imported_function("os:system")
    Traceback (most recent call last):
    fullrank.errors.UserError: 'os:system' is code, which the recipe alone does not run; read it, then give --trust (trust=True in Python)
    """
    if name in _imported:
        return _imported[name]
    raise UserError(
        f"'{name}' is code, which the recipe alone does not run; read it, then give --trust (trust=True in Python)"
    )


def import_function(name: str, *, notify: Callable[[str], Any] = lambda line: None) -> Callable[..., Any]:
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
    module_name, colon, function_name = name.partition(":")
    if not (colon and module_name and function_name):
        raise UserError(f"'{name}' names no function; expected package.module:function")
    try:
        with _working_directory_importable():
            module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise UserError(
            f"'{name}': {error}; expected package.module:function, importable from the working directory"
        ) from error
    except Exception as error:  # the module may raise anything
        raise UserError(f"'{name}' cannot be imported ({type(error).__name__}: {error}); fix the module") from error
    function = getattr(module, function_name, None)
    if function is None:
        raise UserError(
            f"'{name}': module {module_name} has no function {function_name}{suggest(function_name, dir(module))}"
        )
    if not callable(function):
        raise UserError(
            f"'{name}': {function_name} of module {module_name} is a {type(function).__name__}, expected a function"
        )
    notify(f"imports {name} from {_origin(module)}")
    _imported[name] = function
    return function


@contextmanager
def _working_directory_importable() -> Iterator[None]:
    """Append the working directory to `sys.path` for as long as modules are imported from it.

    It comes last, so that a file json.py there replaces no module of Python's or of a package. It stays if it was there
    before, and after a successful import, because the module may import its neighbours later.
    """
    here = os.getcwd()
    added = here not in sys.path
    if added:
        sys.path.append(here)
    try:
        yield
    except BaseException:
        if added:
            sys.path.remove(here)
        raise


def _origin(module: Any) -> str:
    """Return the file of a module, relative to the working directory if it is below."""
    file = getattr(module, "__file__", None)
    if file is None:
        return "Python"
    path, here = Path(file), Path.cwd()
    return f"./{path.relative_to(here)}" if path.is_relative_to(here) else str(path)


def keywords(function: Callable[..., Any]) -> type:
    """Return a frozen dataclass with one field for each keyword-only argument of `function`, with its type and default.

    >>> from fullrank.objectives import vicreg
    >>> keywords(vicreg)(covariance=4.0)
    vicreg(invariance=25.0, variance=25.0, covariance=4.0)
    """
    fields = [
        (name, kind, dataclasses.field(default=default))
        for name, (kind, default) in _keyword_arguments(function).items()
    ]
    name = getattr(function, "__name__", "hyper")
    # The docstring is copied because its "Args" are the help of the flags.
    return dataclasses.make_dataclass(
        name, fields, frozen=True, kw_only=True, namespace={"__doc__": inspect.getdoc(function)}
    )


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
    >>> fill_defaults(vicreg, {"covariance": 4}, "objective 'vicreg'")
    {'invariance': 25.0, 'variance': 25.0, 'covariance': 4.0}
    """
    arguments = _keyword_arguments(function)
    for name in values:
        if name not in arguments:
            raise UserError(
                f"{what} has no hyperparameter '{name}'; it takes {', '.join(arguments) or 'none'}{suggest(name, arguments)}"
            )
    given = {name: structure(value, _finite(arguments[name][0]), f"{what}, {name}") for name, value in values.items()}
    if missing := [
        name for name, (_, default) in arguments.items() if default is inspect.Parameter.empty and name not in given
    ]:
        raise UserError(f"{what} has no value for {', '.join(missing)}; give each a default in the signature")
    return {name: default for name, (_, default) in arguments.items()} | given


def _keyword_arguments(function: Callable[..., Any]) -> dict[str, tuple[Any, Any]]:
    """Return the type and the default of each keyword-only argument; without an annotation, the type is that of the
    default.
    """
    hints = typing.get_type_hints(
        function if inspect.isroutine(function) else type(function).__call__, include_extras=True
    )
    keyword_only = [
        p for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY and p.name != GENERATOR
    ]
    for parameter in keyword_only:
        if type(parameter.default) in (list, dict, set):
            name = getattr(function, "__name__", type(function).__name__)
            kind = type(parameter.default).__name__
            raise UserError(
                f"'{name}' has a {kind} as the default of {parameter.name}, expected a value that cannot change; give a tuple"
            )
    return {p.name: (hints.get(p.name, type(p.default)), p.default) for p in keyword_only}


def _finite(kind: Any) -> Any:
    """Return the type of a hyperparameter with the requirement that a number is finite."""
    return Annotated[kind, FINITE] if kind in (int, float) else kind
