"""Frozen dataclasses that decide a run, one module for each data set; `assemble` turns one into parts that run."""

from fullrank.recipes.assemble import Assembly, assemble, build_encoder, build_method, build_preprocess, check
from fullrank.recipes.cifar import CIFAR10, CIFAR10_PROJECTORS, CIFAR10_SMALL, CIFAR100
from fullrank.recipes.digits import DIGITS
from fullrank.recipes.dry_run import dry_run
from fullrank.recipes.imagenet import IMAGENET, IMAGENET_DIRECTCLR, IMAGENET_SIMCLR
from fullrank.recipes.keywords import complete, keywords
from fullrank.recipes.named import import_function, resolve_builder, resolve_objective
from fullrank.recipes.objective import with_objective
from fullrank.recipes.photos import photos
from fullrank.recipes.recipe import (
    DataConfig,
    MachineConfig,
    ProbeConfig,
    Recipe,
    SpectrumConfig,
    differences,
    from_dict,
    read_recipe,
    to_dict,
    with_devices,
)
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
    "DataConfig",
    "MachineConfig",
    "ProbeConfig",
    "Recipe",
    "SpectrumConfig",
    "assemble",
    "build_encoder",
    "build_method",
    "build_preprocess",
    "check",
    "complete",
    "differences",
    "dry_run",
    "from_dict",
    "import_function",
    "keywords",
    "photos",
    "read_recipe",
    "resolve_builder",
    "resolve_objective",
    "to_dict",
    "with_devices",
    "with_objective",
]
