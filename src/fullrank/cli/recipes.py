"""`fullrank recipes`: list the recipes, or print one recipe as JSON."""

import json
from functools import partial

import tyro

from fullrank.cli.flags import call
from fullrank.errors import pick
from fullrank.recipes import RECIPES, to_dict
from fullrank.recipes.catalog import list_recipes


def recipes(name: tyro.conf.Positional[str | None] = None, /) -> None:
    """List the recipes with their published accuracy and their origin, or print one recipe as JSON.

    A recipe equals its publication as long as no flag changes it. With other epochs, batch size, view size, backbone or
    optimizer, the fields that depend on them follow, and the command says which. `fullrank pretrain FILE.json` accepts
    an edited copy of the JSON.

    Args:
        name: name of a recipe.
    """
    print("\n".join(list_recipes()) if name is None else json.dumps(to_dict(pick(name, RECIPES, "recipe")), indent=2))


run = partial(call, recipes, command="recipes")
