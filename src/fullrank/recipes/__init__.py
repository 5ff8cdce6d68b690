"""Frozen dataclasses that decide a run, one module for each data set; `assemble` turns one into parts that run."""

from fullrank.recipes.assemble import Assembly, assemble, build_branch, build_method, check, preprocess_of
from fullrank.recipes.cifar import CIFAR10, CIFAR10_PROJECTORS, CIFAR10_SMALL, CIFAR100
from fullrank.recipes.digits import DIGITS
from fullrank.recipes.imagenet import IMAGENET, IMAGENET_DIRECTCLR, IMAGENET_SIMCLR
from fullrank.recipes.keywords import complete, keywords
from fullrank.recipes.named import function_named, objective_named
from fullrank.recipes.objective import with_objective
from fullrank.recipes.photos import photos
from fullrank.recipes.recipe import Data, Machine, Probe, Recipe, Watch, differences, from_dict, on_devices, read_recipe, to_dict
from fullrank.recipes.rehearsal import rehearse
from fullrank.recipes.stl10 import STL10

RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        *(DIGITS, CIFAR10_SMALL, CIFAR10_PROJECTORS, CIFAR10, CIFAR100, STL10),
        *(IMAGENET, IMAGENET_SIMCLR, IMAGENET_DIRECTCLR),
    )
}
"""Name → recipe, for `fullrank pretrain NAME`."""

__all__ = [
    "RECIPES",
    "Assembly",
    "Data",
    "Machine",
    "Probe",
    "Recipe",
    "Watch",
    "assemble",
    "build_branch",
    "build_method",
    "check",
    "complete",
    "differences",
    "from_dict",
    "function_named",
    "keywords",
    "objective_named",
    "on_devices",
    "photos",
    "preprocess_of",
    "read_recipe",
    "rehearse",
    "to_dict",
    "with_objective",
]
