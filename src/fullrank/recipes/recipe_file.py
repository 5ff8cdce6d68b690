"""recipe.json: a recipe with the version of its format. A reader ignores unknown fields of later versions that have
their default.
"""

from collections.abc import Iterator
from dataclasses import is_dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from fullrank.arguments import suggest_run
from fullrank.errors import UserError
from fullrank.files import parse_json, read_text
from fullrank.recipes.functions import fill_defaults
from fullrank.recipes.recipe import Every, Recipe, defaults, from_dict, is_below, to_dict
from fullrank.signatures import declared_builder, declared_objective, objective_names
from fullrank.structure import field_types, structure
from fullrank.terminal import stderr

FORMAT = 2
"""The version of recipe.json. It rises with each field that is added, removed or given another meaning."""


def to_file(recipe: Recipe) -> dict[str, Any]:
    """Return the content of recipe.json: `to_dict` with the format, and with the names of the fields that have their
    default.

    A reader that does not know a field of a later format may ignore it if it has its default.

    >>> to_file(Recipe(epochs=3))["format"], "epochs" in to_file(Recipe(epochs=3))["defaults"], "seed" in to_file(Recipe())["defaults"]
    (2, False, True)
    """
    return {"format": FORMAT, **to_dict(recipe), "defaults": defaults(recipe)}


def from_file(values: dict[str, Any], *, source: str = "recipe.json") -> Recipe:
    """Build a recipe from the content of recipe.json, of this format, an older or a newer one.

    Raises:
        UserError: a field has the wrong type, or an unknown field does not have its default.
    """
    values = dict(values)
    written = structure(values.pop("format", 0), Every | Literal[0], f"{source}, format")
    at_default = structure(values.pop("defaults", []), tuple[str, ...], f"{source}, defaults")
    unknown = [*unknown_fields(values, Recipe), *_unknown_hyperparameters(values)]
    ignored = [name for name in unknown if is_below(name, at_default)]
    for name in ignored:
        remove(values, name)
    if written > FORMAT and len(ignored) < len(unknown):
        names = ", ".join(name for name in unknown if name not in ignored)
        raise UserError(
            f"{source} is of format {written}, of a newer fullrank, and sets {names}, which this one does not know; upgrade it"
        )
    if ignored:
        _say_once(f"{source} is of a newer fullrank; ignored, because they have their defaults: {', '.join(ignored)}")
    return from_dict(values)


def read_recipe(path: Path) -> Recipe:
    """Read `recipe.json`. Nothing that it names is imported.

    Raises:
        UserError: the file is missing, damaged, or not a recipe.
    """
    try:
        values = parse_json(read_text(path))
    except FileNotFoundError:
        remedy = f"give the folder that `fullrank pretrain` wrote{suggest_run(str(path.parent))}"
        raise UserError(f"no run at {path.parent}: it has no {path.name}; {remedy}") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}); restore it, or start a new run") from error
    if not isinstance(values, dict):
        raise UserError(f"{path} contains a {type(values).__name__}, expected an object with the fields of a recipe")
    return from_file(values, source=str(path))


def unknown_fields(values: Any, kind: Any, prefix: str = "") -> Iterator[str]:
    """Yield the dotted names of the fields of a JSON object that the dataclass `kind` does not have.

    >>> list(unknown_fields({"epochs": 3, "epoch": 3, "views": [{"size": 32, "zoom": 2}]}, Recipe))
    ['epoch', 'views.0.zoom']
    """
    while get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    if is_dataclass(kind) and isinstance(values, dict):
        for name, value in values.items():
            inner = field_types(kind).get(name)  # pyright: ignore[reportArgumentType]  a type
            yield from [prefix + name] if inner is None else unknown_fields(value, inner, f"{prefix}{name}.")
    elif get_origin(kind) is tuple and isinstance(values, list):
        for i, value in enumerate(values):
            yield from unknown_fields(value, get_args(kind)[0], f"{prefix}{i}.")


def _unknown_hyperparameters(values: dict[str, Any]) -> Iterator[str]:
    """Yield the names of hyperparameters that the library's objective of the recipe, or its method, does not have."""
    name = values.get("objective", "frossl")
    if isinstance(name, str) and name in objective_names() and not values.get("method_builder"):
        for part, function in (("hyper", declared_objective(name)), ("method", declared_builder(name))):
            given = values.get(part)
            yield from (
                (f"{part}.{key}" for key in given if key not in fill_defaults(function, {}, part))
                if isinstance(given, dict)
                else ()
            )


def remove(values: Any, name: str) -> None:
    """Remove the field of a dotted name from a nested JSON object."""
    *parents, last = name.split(".")
    for parent in parents:
        values = values[int(parent)] if isinstance(values, list) else values[parent]
    del values[last]


@cache
def _say_once(line: str) -> None:
    stderr().print(line)
