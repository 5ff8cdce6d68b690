"""Recipes, the complete configurations of runs, one module per data set; `assemble` builds the parts of a run from a recipe.

The recipes themselves need no torch; what needs it is imported when it is first used.
"""

from typing import TYPE_CHECKING

from fullrank.lazy import lazy_attributes
from fullrank.recipes.choices import with_choices
from fullrank.recipes.cifar import CIFAR10, CIFAR10_PROJECTORS, CIFAR10_SMALL, CIFAR100
from fullrank.recipes.digits import DIGITS
from fullrank.recipes.functions import (
    builder_signature,
    check_objective_name,
    fill_defaults,
    import_function,
    keywords,
    objective_signature,
    resolve_builder,
    resolve_objective,
)
from fullrank.recipes.imagenet import IMAGENET, IMAGENET_DIRECTCLR, IMAGENET_SIMCLR
from fullrank.recipes.recipe import (
    FREE_FIELDS,
    DataConfig,
    MachineConfig,
    ProbeConfig,
    Recipe,
    SpectrumConfig,
    decides_weights,
    differences,
    from_dict,
    to_dict,
    with_devices,
    with_objective,
)
from fullrank.recipes.recipe_file import from_file, read_recipe, to_file
from fullrank.recipes.stl10 import STL10
from fullrank.recipes.trust import code_names, import_code

if TYPE_CHECKING:
    from fullrank.recipes.assembling import Assembly, assemble, build_encoder, build_method, build_preprocess, check, check_num_images
    from fullrank.recipes.dry_running import dry_run
    from fullrank.recipes.forecast import forecast_run
    from fullrank.recipes.photos import explain_photos_recipe, photos_recipe

_HOME = {
    **dict.fromkeys(
        ("Assembly", "assemble", "build_encoder", "build_method", "build_preprocess", "check", "check_num_images"), "assembling"
    ),
    "dry_run": "dry_running",
    "forecast_run": "forecast",
    **dict.fromkeys(("explain_photos_recipe", "photos_recipe"), "photos"),
}

__getattr__ = lazy_attributes(__name__, _HOME)

RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        *(DIGITS, CIFAR10_SMALL, CIFAR10_PROJECTORS, CIFAR10, CIFAR100, STL10),
        *(IMAGENET, IMAGENET_SIMCLR, IMAGENET_DIRECTCLR),
    )
}
"""Name → recipe, for `fullrank pretrain NAME`."""

ORIGINS = {
    "digits": "fullrank's own, for a minute on two CPU cores",
    "cifar10-small": "fullrank's own, for two CPU cores",
    "cifar10-projectors": "fullrank's own, for comparing projectors on one CPU core",
    "cifar10": "FroSSL's paper and its public configuration",
    "cifar100": "FroSSL's paper and its public configuration",
    "stl10": "FroSSL's public code; only the 13,000 labelled of 105,000 images",
    "imagenet": "FroSSL's paper, with the views of BYOL",
    "imagenet-simclr": "DirectCLR's paper and its public code",
    "imagenet-directclr": "DirectCLR's paper and its public code",
}
"""Name → whose recipe it is, and in what it differs from the publication."""

__all__ = [
    "FREE_FIELDS",
    "ORIGINS",
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
    "builder_signature",
    "check",
    "check_num_images",
    "check_objective_name",
    "code_names",
    "decides_weights",
    "differences",
    "dry_run",
    "explain_photos_recipe",
    "fill_defaults",
    "forecast_run",
    "from_dict",
    "from_file",
    "import_code",
    "import_function",
    "keywords",
    "objective_signature",
    "photos_recipe",
    "read_recipe",
    "resolve_builder",
    "resolve_objective",
    "to_dict",
    "to_file",
    "with_choices",
    "with_devices",
    "with_objective",
]
