"""`fullrank recipes`: list the recipes, or print one recipe as JSON."""

import json
from functools import partial

import tyro

from fullrank.cli.flags import call
from fullrank.errors import pick
from fullrank.recipes import ORIGINS, RECIPES, to_dict
from fullrank.recipes.recipe import view_sizes


def recipes(name: tyro.conf.Positional[str | None] = None, /) -> None:
    """List the recipes with their origin, or print one recipe as JSON. `fullrank pretrain FILE.json` accepts an edited copy.

    A recipe equals its publication as long as no flag changes it. With other epochs, batch size, view size, backbone or optimizer, the
    fields that depend on them follow, and the command says which.

    Args:
        name: name of a recipe.
    """
    if name is not None:
        print(json.dumps(to_dict(pick(name, RECIPES, "recipe")), indent=2))
        return
    width = max(map(len, RECIPES))
    for recipe in RECIPES.values():
        views = " + ".join(f"{V} × {size} px" for size, V in view_sizes(recipe).items())
        network = recipe.backbone.name + (" (narrow)" if "channels" in recipe.backbone.arguments else "")
        print(f"{recipe.name:{width}}  {ORIGINS[recipe.name]}")
        print(f"{'':{width}}  {recipe.data.source} · {network} · {views} · batch {recipe.batch_size} · {recipe.epochs} epochs")


run = partial(call, recipes, command="recipes")
