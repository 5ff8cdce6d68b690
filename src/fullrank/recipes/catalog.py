"""All recipes of the library by name, where they come from, and the recipe of a method on a data set."""

from fullrank.recipes import cifar, digits, imagenet, imagenet100, stl10, tiny_imagenet
from fullrank.recipes.published import Entry
from fullrank.recipes.recipe import Recipe, with_objective

ENTRIES: dict[str, Entry] = {
    entry.recipe.name: entry for module in (digits, cifar, stl10, tiny_imagenet, imagenet100, imagenet) for entry in module.ENTRIES
}

RECIPES: dict[str, Recipe] = {name: entry.recipe for name, entry in ENTRIES.items()}
"""Name → recipe, for `fullrank pretrain NAME`: DATASET for FroSSL, DATASET-OBJECTIVE for another method, DATASET-OBJECTIVE-VARIANT where
publications differ."""

ORIGINS: dict[str, str] = {name: entry.origin for name, entry in ENTRIES.items()}
"""Name → whose recipe it is, and in what it differs from the publication, besides `KEPT_DIFFERENCES`."""

PARTS = {
    "optimizer": "optimizer",
    "schedule": "schedule",
    "projector": "projector",
    "views": "views",
    "backbone": "backbone",
    "epochs": "epochs",
    "batch_size": "batch size",
}
"""Field of a recipe → its name in a sentence."""


def published_name(recipe: Recipe, objective: str) -> str | None:
    """Return the name of the published recipe of an objective on the data set of `recipe`.

    None if there is none, if `recipe` has this objective already, or if it is not one of the library's, unchanged: then its own values count.

    >>> published_name(RECIPES["cifar10"], "byol"), published_name(RECIPES["cifar10-byol"], "frossl")
    ('cifar10-byol', 'cifar10')
    >>> from dataclasses import replace
    >>> published_name(RECIPES["cifar10"], "tico"), published_name(replace(RECIPES["cifar10"], epochs=7), "byol")
    (None, None)
    """
    entry = ENTRIES.get(recipe.name)
    if entry is None or not entry.family or entry.recipe != recipe or objective == recipe.objective:
        return None
    candidates = (entry.family, f"{entry.family}-{objective}")
    return next((name for name in candidates if name in RECIPES and RECIPES[name].objective == objective), None)


def method_recipe(recipe: Recipe, objective: str, *, method_builder: str = "") -> tuple[Recipe, str]:
    """Return the published recipe of an objective on the data set of `recipe`, and a sentence that says which recipe it is.

    Where there is none, return `with_objective`, and a sentence that says which fields are those of `recipe`. The recipe of the same objective
    is returned as it is, without a sentence.

    Raises:
        UserError: there is no such objective, or it is a function of the user's that cannot be imported.

    >>> method_recipe(RECIPES["cifar10"], "barlow_twins")[1]
    "--objective barlow_twins takes the recipe cifar10-barlow_twins (solo-learn's configuration)"
    """
    if objective == recipe.objective and not method_builder:
        return recipe, ""
    if not method_builder and (name := published_name(recipe, objective)):
        return RECIPES[name], explain_published(name)
    other = with_objective(recipe, objective, method_builder=method_builder)
    return other, explain_fallback(recipe, other)


def explain_published(name: str) -> str:
    """Return the sentence about a published recipe that `--objective` chose."""
    return f"--objective {RECIPES[name].objective} takes the recipe {name} ({ORIGINS[name]})"


def explain_fallback(recipe: Recipe, other: Recipe) -> str:
    """Return the sentence about the fields that `with_objective` took over from `recipe`.

    >>> explain_fallback(RECIPES["digits"], with_objective(RECIPES["digits"], "wmse"))
    '--objective wmse has no recipe of its own here: optimizer, schedule, views, backbone, epochs, batch size are those of digits, for frossl'
    """
    kept = ", ".join(words for field, words in PARTS.items() if getattr(recipe, field) == getattr(other, field))
    return f"--objective {other.objective} has no recipe of its own here: {kept} are those of {recipe.name}, for {recipe.objective}"
