"""The recipe of a call such as `pretrain("path/to/photos", epochs=100)`: a recipe, its file or images, and fields by
keyword.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass, replace
from pathlib import Path
from typing import Any

import torch

from fullrank.errors import UserError, suggest
from fullrank.images import Images, dataset_info, hold_out_test, train_and_test
from fullrank.recipes.catalog import method_recipe, published_name
from fullrank.recipes.choices import OPTIMIZERS, explain_balance, largest_size, with_choices
from fullrank.recipes.photos import photos_recipe
from fullrank.recipes.recipe import DataConfig, Recipe, from_dict, to_dict
from fullrank.recipes.recipe_file import read_recipe
from fullrank.recipes.start import Start, explain_start, start_channels, start_size, with_start
from fullrank.recipes.view_groups import with_view_groups

PHOTOS = "photos"
"""The name of the general recipe, for which `data` names the images."""
SHORT = {
    "backbone": "backbone.name",
    "optimizer": "optimizer.name",
    "schedule": "schedule.name",
    "projector": "projector.widths",
}
"""Part of a recipe → the field that a plain value means: `backbone="resnet50"`."""


def recipe_from_keywords(
    recipe: Any,
    recipes: Mapping[str, Recipe],
    data: str | Images | None,
    changes: Mapping[str, Any],
    notify: Callable[[str], Any] = lambda line: None,
    *,
    start: Start | None = None,
) -> Recipe:
    """Return the recipe of a call, with fields set by keyword.

    Some fields follow from others, as on the command line (`with_choices`): a larger batch has a larger learning rate.

    Args:
        recipe: a recipe, its name, a recipe.json, a source of images, or 'photos' or None for the general recipe for
            `data`.
        recipes: the named recipes.
        data: a source of images, or opened images; only the general recipe reads them.
        changes: names and values of fields: `epochs=3`, `objective="vicreg"`, `optimizer=OptimizerConfig(…)`,
            `backbone="resnet50"`, and
            dotted names as in the flags: `**{"optimizer.lr": 0.1, "views.0.size": 64}`. Names such as views.1.size add
            a group of views.
        notify: is called with one line that says which recipe another objective takes, and with lines about `start` and
            FroSSL's invariance weight.
        start: the model whose weights the backbone starts with.

    Raises:
        UserError: the recipe or a field does not exist, or a value is wrong.

    >>> recipe = recipe_from_keywords("digits", {"digits": Recipe(batch_size=64)}, None, {"epochs": 10, "optimizer.momentum": 0.8})
    >>> recipe.epochs, recipe.schedule.warmup, recipe.optimizer.momentum
    (10, 2.0, 0.8)
    """
    fields = {
        SHORT.get(name, name) if isinstance(value, str | list | tuple) else name: value
        for name, value in changes.items()
    }
    objective: Any = fields.pop("objective", None)
    builder: Any = fields.pop("method_builder", "")
    data_fields = {name: value for name, value in fields.items() if name.startswith("data.") or name == "data"}
    if objective is not None and not (isinstance(objective, str) and isinstance(builder, str)):
        raise UserError(
            f"objective is {objective!r:.60}, expected its name: 'vicreg', or 'package.module:function' for your own function"
        )
    named = recipes.get(recipe) if isinstance(recipe, str) else recipe
    if isinstance(named, Recipe) and objective is not None and published_name(named, objective):
        recipe, sentence = method_recipe(named, objective)
        notify(sentence)
    base = _base(recipe, recipes, data, fields, with_changes(Recipe(), data_fields).data, start)
    if objective is not None and objective != base.objective:
        base, sentence = method_recipe(base, objective, method_builder=builder)
        notify(sentence)
    elif builder:
        base = replace(base, method_builder=builder, method={})
    final = with_changes(base if start is None else with_start(base, start, channels=_given_channels(fields)), fields)
    original = recipes.get(recipe) if isinstance(recipe, str) else recipe
    for line in explain_balance(original if isinstance(original, Recipe) else base, final):
        notify(line)
    for line in explain_start(final, start) if start else ():
        notify(line)
    return final


def _base(
    recipe: Any,
    recipes: Mapping[str, Recipe],
    data: str | Images | None,
    fields: Mapping[str, Any],
    spec: DataConfig,
    start: Start | None = None,
) -> Recipe:
    """Return the recipe before the changes, with what follows from the choices among `fields`; `spec` says how images
    are read.
    """
    names = ", ".join([*recipes][:3])
    expected = f"a Recipe, a name ({names} …, see `fullrank recipes`), a recipe.json or a source of images"
    if isinstance(recipe, Recipe):
        recipe = _with_groups(recipe, fields)
        return with_choices(recipe, **_choices(fields, recipe))
    if not isinstance(recipe, str | Path | None):
        raise UserError(f"recipe is {recipe!r:.60} ({type(recipe).__name__}), expected {expected}")
    if isinstance(recipe, str) and recipe in recipes:
        return _base(recipes[recipe], recipes, data, fields, spec, start)
    if isinstance(recipe, str | Path) and Path(recipe).suffix == ".json" and os.path.isfile(recipe):
        return _base(read_recipe(Path(recipe)), recipes, data, fields, spec, start)
    source = data if recipe is None or (str(recipe) == PHOTOS and data is not None) else str(recipe)
    if isinstance(source, str) and not (
        ":" in source or source == "digits" or ("\0" not in source and source and Path(source).exists())
    ):
        raise UserError(
            f"'{source}' is neither a recipe nor a path that exists, expected {expected}{suggest(source, recipes)}"
        )
    if source is None:
        raise UserError(f"no recipe, expected {expected}; to continue a run, give resume=RUN")
    if data is not None and source is not data:
        raise UserError(f"'{source}' is a source of images, and data is another one; leave one of them out")
    if isinstance(source, str):
        images = train_and_test(source, spec.reading, validation=spec.validation, subset=spec.subset).train
    else:
        images = hold_out_test(source, validation=spec.validation, subset=spec.subset).train
    name = source if isinstance(source, str) else source.source
    info, choices = dataset_info(images), _choices(fields, Recipe())
    if start is not None:
        choices |= {"size": choices["size"] or start_size(start), "backbone": start.backbone.name}
        info = replace(info, channels=start_channels(info.channels, start, _given_channels(fields)))
    chosen = photos_recipe(name, info, gpu=torch.cuda.is_available(), **choices)
    return _with_groups(chosen, fields)


def _given_channels(fields: Mapping[str, Any]) -> int | None:
    """Return the number of channels among the fields, None if they have none."""
    value = fields["data"].channels if isinstance(fields.get("data"), DataConfig) else fields.get("data.channels")
    return value if type(value) is int else None


def _with_groups(recipe: Recipe, fields: Mapping[str, Any]) -> Recipe:
    """Return the recipe with the groups of views that the names of the fields ask for, unless `views` replaces them
    all.
    """
    return recipe if "views" in fields else with_view_groups(recipe, fields)


def _choices(fields: Mapping[str, Any], recipe: Recipe) -> dict[str, Any]:
    """Return the arguments of `with_choices` among the fields; a wrong value is no choice, and the recipe refuses
    it.
    """
    numbers = {name: value for name, value in fields.items() if type(value) is int and value > 0}
    choices: dict[str, Any] = {name: numbers[name] for name in ("epochs", "batch_size") if name in numbers}
    choices["size"] = largest_size(recipe, numbers)
    if isinstance(fields.get("backbone.name"), str):
        choices["backbone"] = fields["backbone.name"]
    if fields.get("optimizer.name") in OPTIMIZERS:
        choices["optimizer"] = fields["optimizer.name"]
    return choices


def with_changes(recipe: Recipe, fields: Mapping[str, Any]) -> Recipe:
    """Return a recipe with other values of some fields, given by their names in Python (`views`) or as in the flags
    (`views.0.size`).

    Raises:
        UserError: a field does not exist, or a value is wrong.

    >>> with_changes(Recipe(), {"optimizer.lr": 0.2, "seed": 3}).optimizer.lr
    0.2
    >>> with_changes(Recipe(), {"epoch": 3})
    Traceback (most recent call last):
    fullrank.errors.UserError: recipe: there is no field 'epoch'; did you mean 'epochs'?
    """
    parts = {name: value for name, value in fields.items() if _holds_dataclass(value)}
    for name, value in parts.items():
        if name not in vars(recipe):
            raise UserError(f"recipe: there is no field '{name}'{suggest(name, vars(recipe))}")
        recipe = replace(recipe, **{name: value})
    values = to_dict(recipe)
    for name, value in fields.items():
        if name not in parts:
            _set(values, name, value)
    return from_dict(values) if len(parts) < len(fields) else recipe


def _holds_dataclass(value: Any) -> bool:
    return is_dataclass(value) or (isinstance(value, tuple | list) and any(map(is_dataclass, value)))


def _set(values: dict[str, Any], name: str, value: Any) -> None:
    """Set one value in nested dicts and lists; `from_dict` finds a last name that does not exist."""
    node: Any = values
    *path, last = name.split(".")
    for key in path:
        node = node[_key(node, key, name)]
    if isinstance(node, dict) and last in node.get("reading", {}):  # data.label_column, as the flag is called
        node = node["reading"]
    if not isinstance(node, dict):
        last = _key(node, last, name)
    node[last] = value


def _key(node: Any, key: str, name: str) -> Any:
    """Return the key of a dict or the index of a list."""
    known = (
        list(node) if isinstance(node, dict) else [str(i) for i in range(len(node))] if isinstance(node, list) else []
    )
    if key not in known:
        raise UserError(f"recipe: there is no field '{name}'{suggest(key, known)}")
    return key if isinstance(node, dict) else int(key)
