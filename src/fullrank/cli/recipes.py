"""`fullrank recipes`: list the recipes, or print one as JSON."""

import json
from collections.abc import Sequence

import tyro
from rich.console import Console
from rich.table import Table

from fullrank.cli.flags import call
from fullrank.errors import pick
from fullrank.recipes import RECIPES, to_dict


def run(arguments: Sequence[str]) -> None:
    """Parse and print."""
    call(recipes, arguments, verb="recipes")


def recipes(name: tyro.conf.Positional[str | None] = None, /) -> None:
    """List the recipes, or print the one of that name as JSON: save it, change it, and give the file to `fullrank pretrain`.

    Args:
        name: a recipe.
    """
    if name is not None:
        print(json.dumps(to_dict(pick(name, RECIPES, "recipe")), indent=2))
        return
    table = Table("recipe", "data", "objective", "backbone", "views", "batch", "epochs", "optimizer")
    for recipe in RECIPES.values():
        views = " + ".join(f"{view.count} × {view.size} px" for view in recipe.views)
        optimizer = f"{recipe.optimizer.name} {recipe.optimizer.lr:g}"
        backbone = f"{recipe.backbone.name}, {recipe.backbone.stem} stem"
        table.add_row(recipe.name, recipe.data.source, recipe.objective, backbone, views, str(recipe.batch), str(recipe.epochs), optimizer)
    Console().print(table)
