"""All recipes of the library by name, where they come from, and the recipe of a method on a data set."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from fullrank.recipes import cifar, digits, imagenet, imagenet100, stl10, tiny_imagenet, vision_transformers
from fullrank.recipes.choices import with_choices
from fullrank.recipes.published import Entry
from fullrank.recipes.recipe import Recipe, with_objective

ENTRIES: dict[str, Entry] = {
    entry.name: entry
    for module in (digits, cifar, stl10, tiny_imagenet, imagenet100, imagenet, vision_transformers)
    for entry in module.ENTRIES
}

FAMILIES = {
    "": "fullrank's own recipes, for small machines",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "stl10": "STL-10 (the source has the 13,000 labelled images; the authors train on 105,000, most of them unlabelled)",
    "tiny-imagenet": "Tiny ImageNet",
    "imagenet100": "ImageNet-100",
    "imagenet": "ImageNet",
}
"""Family → its title."""


class _Recipes(Mapping[str, Recipe]):
    """The recipes by name. Each is built when it is first used, because a command that answers a typo needs only the
    names.
    """

    def __getitem__(self, name: str) -> Recipe:
        return ENTRIES[name].recipe

    def __iter__(self) -> Iterator[str]:
        return iter(ENTRIES)

    def __len__(self) -> int:
        return len(ENTRIES)


RECIPES: Mapping[str, Recipe] = _Recipes()
"""Name → recipe, for `fullrank pretrain NAME`: DATASET for FroSSL, DATASET-OBJECTIVE for another method,
DATASET-OBJECTIVE-VARIANT where publications differ."""

ORIGINS: Mapping[str, str] = {name: entry.origin for name, entry in ENTRIES.items()}
"""Name → whose recipe it is, and in what it differs from the publication, besides `KEPT_DIFFERENCES`."""

PARTS = {
    "optimizer": "optimizer",
    "schedule": "schedule",
    "projector": "projector",
    "views": "views",
    "backbone": "backbone",
    "epochs": "epochs",
    "batch_size": "batch",
}
"""Field of a recipe → its name in a sentence."""


OF_THE_RUN = ("epochs", "seed", "data", "checkpoints", "keep_checkpoints", "log_every", "probe", "spectrum", "machine")
"""The fields of a recipe that belong to a run more than to a method: another objective keeps them."""


def published_name(recipe: Recipe, objective: str) -> str | None:
    """Return the name of the published recipe of an objective on the data set of `recipe`.

    None if there is none, if `recipe` has this objective already, or if it is not a recipe of the library, up to the
    fields `OF_THE_RUN`: then its own values count.

    >>> published_name(RECIPES["cifar10"], "byol"), published_name(RECIPES["cifar10-byol"], "frossl")
    ('cifar10-byol', 'cifar10')
    >>> published_name(RECIPES["cifar10"], "tico"), published_name(replace(RECIPES["cifar10"], batch_size=512), "byol")
    (None, None)
    """
    entry = ENTRIES.get(recipe.name)
    if entry is None or not entry.family or objective == recipe.objective:
        return None
    of_the_run = {field: getattr(recipe, field) for field in OF_THE_RUN}
    if recipe not in [
        replace(each, **of_the_run) for each in (entry.recipe, with_choices(entry.recipe, epochs=recipe.epochs))
    ]:
        return None
    candidates = (entry.family, f"{entry.family}-{objective}")
    return next((name for name in candidates if name in ENTRIES and ENTRIES[name].objective == objective), None)


def method_recipe(recipe: Recipe, objective: str, *, method_builder: str = "") -> tuple[Recipe, str]:
    """Return the published recipe of an objective on the data set of `recipe`, and a sentence that says which recipe it
    is.

    What `recipe` changes of the fields `OF_THE_RUN`, such as the epochs, is kept. Where there is no published recipe,
    return `with_objective`, and a sentence that says which fields are those of `recipe`. If `recipe` has this objective
    already, return it as it is, without a sentence.

    Raises:
        UserError: there is no such objective, or it is a function of the user's that cannot be imported.

    >>> method_recipe(RECIPES["cifar10"], "barlow_twins")[1]
    "--objective barlow_twins takes the recipe cifar10-barlow_twins (solo-learn's configuration)"
    """
    if objective == recipe.objective and not method_builder:
        return recipe, ""
    if not method_builder and (name := published_name(recipe, objective)):
        original = RECIPES[recipe.name]
        changed = {
            field: getattr(recipe, field) for field in OF_THE_RUN if getattr(recipe, field) != getattr(original, field)
        }
        return replace(with_choices(RECIPES[name], epochs=changed.pop("epochs", None)), **changed), explain_published(
            name
        )
    other = with_objective(recipe, objective, method_builder=method_builder)
    return other, explain_fallback(recipe, other)


def explain_published(name: str) -> str:
    """Return the sentence about a published recipe that `--objective` chose."""
    return f"--objective {RECIPES[name].objective} takes the recipe {name} ({ORIGINS[name]})"


def explain_fallback(recipe: Recipe, other: Recipe) -> str:
    """Return the sentence about the fields that `with_objective` took over from `recipe`.

    >>> digits = RECIPES["digits"]
    >>> explain_fallback(digits, with_objective(digits, "wmse"))
    '--objective wmse has no published recipe here; optimizer, schedule, views, backbone, epochs, batch are those of digits, for frossl'
    """
    base = replace(recipe, optimizer=replace(recipe.optimizer, constant_predictor=other.optimizer.constant_predictor))
    kept = ", ".join(words for field, words in PARTS.items() if getattr(base, field) == getattr(other, field))
    return f"--objective {other.objective} has no published recipe here; {kept} are those of {recipe.name}, for {recipe.objective}"
