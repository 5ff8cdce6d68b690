"""`fullrank recipes`: list the recipes, or print one recipe as JSON."""

import json
from functools import partial

import tyro
from rich.console import Console
from rich.table import Column, Table

from fullrank.cli.flags import call
from fullrank.errors import pick
from fullrank.recipes import RECIPES, to_dict


def recipes(name: tyro.conf.Positional[str | None] = None, /) -> None:
    """List the recipes, or print one recipe as JSON. `fullrank pretrain FILE.json` accepts an edited copy.

    Args:
        name: name of a recipe.
    """
    if name is not None:
        print(json.dumps(to_dict(pick(name, RECIPES, "recipe")), indent=2))
        return
    table = Table(*(Column(name, no_wrap=True) for name in ("recipe", "data")), "network", "views", "batch × epochs", box=None)
    for recipe in RECIPES.values():
        views = " + ".join(f"{view.count} × {view.size} px" for view in recipe.views)
        table.add_row(recipe.name, recipe.data.source, recipe.backbone.name, views, f"{recipe.batch_size} × {recipe.epochs}")
    Console().print(table)


run = partial(call, recipes, command="recipes")
