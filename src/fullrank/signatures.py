"""What the objectives and the builders of the library declare, read from their source: names, tensors, hyperparameters
and defaults.

An answer to a wrong flag needs these, but no torch, whose import takes a second. A declaration is the function of the
library without its
computation: its name, the names of its tensors, its hyperparameters with types and defaults, and its docstring.
"""

import ast
import inspect
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

GENERATOR = "generator"
"""Name of the argument through which an objective gets its random numbers."""

LIGHT = ("typing", "collections.abc", "pydantic", "fullrank.config")
"""The modules from which a declaration may take the types of its hyperparameters."""


def tensor_names(objective: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of the tensors that an objective needs: its positional arguments, except those with the default
    None.

    >>> tensor_names(declared_objective("moco")), tensor_names(declared_objective("swav"))
    (('Q', 'K', 'queue'), ('S',))
    """
    parameters = inspect.signature(objective).parameters.values()
    positional = (p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD))
    return tuple(p.name for p in positional if p.default is not None)


def optional_tensor_names(objective: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of the tensors that an objective takes but does not need: its positional arguments with the
    default None.

    >>> optional_tensor_names(declared_objective("swav"))
    ('queue',)
    """
    parameters = inspect.signature(objective).parameters.values()
    return tuple(
        p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is None
    )


@cache
def objective_names() -> tuple[str, ...]:
    """Return the names of the library's objectives, in the order of `fullrank.objectives.OBJECTIVES`."""
    table = _assigned("objectives/__init__.py", "OBJECTIVES")
    assert isinstance(table, ast.DictComp)
    return tuple(node.id for node in ast.walk(table.generators[0].iter) if isinstance(node, ast.Name))


@cache
def declared_objective(name: str) -> Callable[..., Any]:
    """Return the declaration of a library objective.

    >>> inspect.signature(declared_objective("simclr"))
    <Signature (Z, *, temperature: float = 0.2)>
    """
    assert name in objective_names(), (
        f"'{name}' is no objective of the library"
    )  # the name is a part of the path of the file
    return _declared(f"objectives/{name}.py", name)


@cache
def declared_builder(objective: str) -> Callable[..., Any]:
    """Return the declaration of the builder of a library objective's method, `fullrank.methods.METHODS[objective]`.

    >>> declared_builder("byol").__name__, declared_builder("moco").__name__
    ('build_byol', 'build_moco')
    """
    file = "methods/builders.py"
    by_name, by_tensors = _names_of_table(file, "BY_NAME"), _names_of_table(file, "BY_TENSORS")
    tensors = tensor_names(declared_objective(objective))
    prefixes = (tensors[:length] for length in range(len(tensors), 0, -1))  # the tensors of a state come last
    return _declared(
        file, by_name.get(objective) or next(by_tensors[prefix] for prefix in prefixes if prefix in by_tensors)
    )


def _declared(file: str, name: str) -> Callable[..., Any]:
    """Execute the definition of a function without decorators, tensor types and body, after the types that its file
    names.
    """
    body = _syntax(file).body
    function = next(node for node in body if isinstance(node, ast.FunctionDef) and node.name == name)
    types = [node for node in body if isinstance(node, ast.ImportFrom) and node.module in LIGHT]
    used = {node.id for part in function.args.kwonlyargs for node in ast.walk(part) if isinstance(node, ast.Name)}
    types += [
        node
        for node in body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id in used
    ]
    for argument in function.args.posonlyargs + function.args.args:
        argument.annotation = None
    function.decorator_list, function.returns, function.body = [], None, function.body[:1]
    kept = [
        (a, d) for a, d in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True) if a.arg != GENERATOR
    ]
    function.args.kwonlyargs, function.args.kw_defaults = [a for a, _ in kept], [d for _, d in kept]
    namespace: dict[str, Any] = {"__name__": f"fullrank.{file.removesuffix('.py').replace('/', '.')}"}
    exec(compile(ast.Module([*types, function], []), file, "exec"), namespace)
    return namespace[name]


def _names_of_table(file: str, table: str) -> dict[Any, str]:
    value = _assigned(file, table)
    assert isinstance(value, ast.Dict)
    pairs = zip(value.keys, value.values, strict=True)
    return {ast.literal_eval(key): name.id for key, name in pairs if key is not None and isinstance(name, ast.Name)}


def _assigned(file: str, name: str) -> ast.expr | None:
    """Return the value of an annotated assignment at the top of a file."""
    return next(
        node.value
        for node in _syntax(file).body
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == name
    )


def _syntax(file: str) -> ast.Module:
    return ast.parse((Path(__file__).parent / file).read_text(encoding="utf-8"))
