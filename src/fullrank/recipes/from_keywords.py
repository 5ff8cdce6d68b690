"""Names that the runs and the sweeps still use, until they call `resolve`."""

from dataclasses import replace

from fullrank.recipes.recipe import from_dict as from_file
from fullrank.recipes.recipe import to_dict as to_file
from fullrank.recipes.resolve import for_objective, resolve


def recipe_from_keywords(recipe, recipes, data, changes, notify=lambda line: None, *, start=None):
    source = data if recipe is None or (str(recipe) == "photos" and data is not None) else recipe
    return resolve(source, changes, start=start, notify=notify)


def with_choices(recipe, **choices):
    names = {"backbone": "backbone.name", "optimizer": "optimizer.name", "size": "views.0.size"}
    return resolve(recipe, {names.get(name, name): value for name, value in choices.items() if value is not None})


def method_recipe(recipe, objective):
    return for_objective(recipe, objective), ""


def with_devices(recipe, devices):
    return replace(recipe, machine=replace(recipe.machine, devices=devices))


__all__ = ["from_file", "method_recipe", "recipe_from_keywords", "to_file", "with_choices", "with_devices"]
