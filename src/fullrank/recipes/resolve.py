"""The one way from words to a Recipe: for the command line, for `pretrain(**changes)` in Python, and for sweeps.

`resolve` takes a recipe, its name, its file, or images, and fields by their dotted names. A given field always wins.
The fields that follow from it are computed here, once: a larger batch has a larger learning rate (`rules.following`).
"""

import os
import re
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from fullrank.errors import Notify, UserError, silent, suggest
from fullrank.files import paths_beside
from fullrank.images import DatasetInfo, Images, dataset_info, train_and_test
from fullrank.methods import ProjectorConfig
from fullrank.methods.backbones import check_name
from fullrank.objectives.signature import takes_representations
from fullrank.recipes.catalog import ENTRIES, RECIPES
from fullrank.recipes.photos import explain_photos_recipe, photos_recipe
from fullrank.recipes.published import Entry
from fullrank.recipes.recipe import Recipe, flatten, is_below, read_recipe, to_dict
from fullrank.recipes.rules import Start, explain_start, following, leading_share, plain_fields, with_fields, with_start
from fullrank.recipes.user_code import find_objective, import_function

# The name of the general recipe, for which `data.source` names the images.
PHOTOS = "photos"
# The fields of a recipe that belong to a run more than to a method: another objective keeps them.
OF_THE_RUN = ("epochs", "seed", "data", "checkpoints", "keep_checkpoints", "log_every", "probe", "spectrum", "machine")
# Objective → the largest embedding dimension D that `with_objective` gives it. Both objectives invert or decompose a D
# × D covariance of N samples, and their authors use D = 64 and N = 256 on CIFAR-10 (Ermolov et al. 2021; Ozsoy et al.
# 2022).
MAX_EMBEDDING_DIMENSIONS = {"wmse": 64, "corinfomax": 64}
# Largest side of the views that the general recipe takes from a model. Our choice: DINOv2's ViT-S has 518 px, and a
# step with such views costs more than five times as much as with 224 px.
LARGEST_START = 224


def resolve(
    source: Recipe | Images | str | Path | None,
    overrides: Mapping[str, Any],
    *,
    start: Start | None = None,
    notify: Notify = silent,
) -> Recipe:
    """Return the recipe that words describe.

    Args:
        source: a recipe, the name of one in `RECIPES`, a recipe.json, or images (a folder, hf:NAME, `Images`), for
            which a general recipe is chosen; "photos" or None: the images of data.source among the overrides.
        overrides: names and values of fields: `objective`, `epochs`, dotted names as in the flags, such as
            "optimizer.lr", with "views.1.size" adding a group of views; a whole part: `optimizer=OptimizerConfig(…)`;
            or a word for it: `backbone="resnet50"`.
        start: the MODEL whose weights the backbone starts with.
        notify: is called with lines about what was chosen, and what followed from the overrides.

    Raises:
        UserError: the recipe or a field does not exist, or a value is wrong.

    >>> recipe = resolve("digits", {"epochs": 5, "batch_size": 32, "optimizer.momentum": 0.8})
    >>> recipe.epochs, recipe.schedule.warmup, recipe.optimizer.lr, recipe.optimizer.momentum
    (5, 1.0, 0.0025, 0.8)
    """
    given = plain_fields(overrides)
    objective, builder = given.pop("objective", None), given.pop("method_builder", "")
    if not isinstance(objective, str | None) or not isinstance(builder, str):
        own = "'vicreg', or 'package.module:function' for your own function"
        raise UserError(f"objective is {objective!r:.60}, expected its name: {own}")
    if source is None or (source == PHOTOS and "data.source" in given):
        source = given.get("data.source")
    base, info = find_recipe(source), None
    if base is None:
        base, info = general_recipe(source, given, start)
    base = for_objective(base, objective or base.objective, builder, notify)
    follows = following(base, given | ({"backbone": asdict(start.backbone)} if start else {}))
    recipe = with_fields(base, follows | given)
    if start is not None:
        recipe = with_fields(with_start(recipe, start, channels=given.get("data.channels")), given)
    before, after = flatten(to_dict(base)), flatten(to_dict(recipe))
    changed = [name for name in follows if name in before and before[name] != after[name]]
    if changed and info is None:
        values = (f"{name} {_short(before[name])} → {_short(after[name])}" for name in changed)
        notify(f"follows from the flags: {', '.join(values)}; a flag sets another value")
    said = [*(explain_photos_recipe(recipe, info) if info else ()), *(explain_start(recipe, start) if start else ())]
    for line in said:
        notify(line)
    return recipe


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def find_recipe(source: Any) -> Recipe | None:
    """Return the recipe itself, the recipe of that name, or that of a recipe.json; None for a source of images.

    Raises:
        UserError: the words are neither a recipe nor a source that exists.
    """
    if isinstance(source, Recipe):
        return source
    if isinstance(source, Images):
        return None
    some = f"{', '.join([*RECIPES][:4])} …; `fullrank recipes` lists all {len(RECIPES)}"
    expected = f"a recipe ({some}), or images in a folder, a Parquet file or hf:OWNER/NAME"
    if not isinstance(source, str | Path):
        raise UserError(f"recipe is {source!r:.60}, expected {expected}; to continue a run, give resume=RUN")
    name = str(source)
    if name in RECIPES:
        return RECIPES[name]
    if name.endswith(".json") and os.path.isfile(name):  # unlike Path.is_file, False in a folder that is not readable
        return read_recipe(Path(name))
    if os.path.isfile(Path(name) / "recipe.json"):
        again = f"give {Path(name) / 'recipe.json'} to train its recipe again"
        raise UserError(f"{name} is a run, expected a recipe or images; continue it with --resume {name}, or {again}")
    if ":" not in name and not os.path.exists(os.path.expanduser(name)):
        hint = suggest(name, RECIPES) or suggest(name, paths_beside(name))
        raise UserError(f"'{name}' is neither a recipe nor a path that exists; expected {expected}{hint}")
    return None


def general_recipe(source: Any, given: Mapping[str, Any], start: Start | None) -> tuple[Recipe, DatasetInfo]:
    """Return the general recipe for images, and what is known about the images."""
    wanted = with_fields(Recipe(), {name: given[name] for name in given if not is_below(name, ["hyper", "method"])})
    check_name(wanted.backbone.name)  # before a folder is opened
    options = {name: getattr(wanted.data, name) for name in ("validation", "subset", "subset_seed")}
    splits = train_and_test(source, wanted.data.reading, **options)
    info = dataset_info(splits.train)
    channels = given.get("data.channels", info.channels)
    size, backbone = given.get("views.0.size"), given.get("backbone.name")
    if start is not None:
        channels = given.get("data.channels") or start.channels_for(info.channels)
        size, backbone = size or min(start.size, LARGEST_START), start.backbone.name
    info = replace(info, channels=channels)
    return photos_recipe(str(source), info, gpu=torch.cuda.is_available(), size=size, backbone=backbone), info


def for_objective(recipe: Recipe, objective: str, builder: str = "", notify: Notify = silent) -> Recipe:
    """Return the published recipe of an objective on the data set of `recipe`, or else `with_objective`.

    What `recipe` changes of the fields `OF_THE_RUN`, such as the epochs, is kept.

    >>> for_objective(RECIPES["cifar10"], "barlow_twins").name, for_objective(RECIPES["cifar10"], "tico").name
    ('cifar10-barlow_twins', 'cifar10')
    """
    if objective == recipe.objective and not builder:
        return recipe
    entry = None if builder else published_entry(recipe, objective)
    if entry is None:
        kept = f"optimizer, schedule and views are those of {recipe.name}"
        chosen = f"--method-builder {builder}" if builder else f"--objective {objective} has no published recipe here"
        notify(f"{chosen}; {kept}")
        return with_objective(recipe, objective, method_builder=builder)
    notify(f"--objective {objective} takes the recipe {entry.name} ({entry.origin})")
    original = RECIPES[recipe.name]
    kept = {name: getattr(recipe, name) for name in OF_THE_RUN if getattr(recipe, name) != getattr(original, name)}
    epochs = {name: kept.pop(name) for name in ("epochs",) if name in kept}
    return replace(resolve(entry.recipe, epochs), **kept)


def published_entry(recipe: Recipe, objective: str) -> Entry | None:
    """Return the published recipe of another objective on the data set of `recipe`.

    None if there is none, or if `recipe` is not one of the library's, up to the fields `OF_THE_RUN`: then its own
    values count.
    """
    own = ENTRIES.get(recipe.name)
    if own is None or not own.family:
        return None
    of_the_run = {name: getattr(recipe, name) for name in OF_THE_RUN}
    usual = (own.recipe, resolve(own.recipe, {"epochs": recipe.epochs}))
    if recipe not in [replace(each, **of_the_run) for each in usual]:
        return None
    candidates = (ENTRIES.get(name) for name in (own.family, f"{own.family}-{objective}"))
    return next((entry for entry in candidates if entry and entry.recipe.objective == objective), None)


def with_objective(recipe: Recipe, objective: str, *, method_builder: str = "") -> Recipe:
    """Return the recipe with another objective, the defaults of that objective, and a projector that fits it.

    A name with a colon is imported, so give only functions that you trust. An objective that takes the representation R
    gets no projector, and DirectCLR the paper's share of the backbone's features. `MAX_EMBEDDING_DIMENSIONS` limits
    the dimension for some objectives.
    `optimizer.constant_predictor` is a choice of SimSiam's recipe, so another objective has it switched off.

    Raises:
        UserError: there is no such objective.

    >>> recipe = Recipe(hyper={"invariance": 2.0})
    >>> with_objective(recipe, "wmse").projector.widths, with_objective(recipe, "directclr").projector.widths
    ((2048, 2048, 64), ())
    """
    for name in (objective, method_builder):
        if ":" in name:
            import_function(name)
    projector, optimizer = recipe.projector, recipe.optimizer
    if takes_representations(find_objective(objective)):
        projector = replace(projector, kind="mlp", widths=())
    elif projector.absent and takes_representations(find_objective(recipe.objective)):
        projector = replace(projector, widths=ProjectorConfig().widths)
    for name, largest in MAX_EMBEDDING_DIMENSIONS.items():
        if projector.widths and ":" not in objective and name in re.findall(r"\w+", objective):  # also in a sum
            *hidden, D = projector.widths
            projector = replace(projector, widths=(*hidden, min(D, largest)))
    if objective != recipe.objective:
        optimizer = replace(optimizer, constant_predictor=False)
    hyper = recipe.hyper if objective == recipe.objective else leading_share(objective, recipe.backbone)
    own = {"objective": objective, "hyper": hyper, "method_builder": method_builder, "method": {}}
    return replace(recipe, **own, projector=projector, optimizer=optimizer)
