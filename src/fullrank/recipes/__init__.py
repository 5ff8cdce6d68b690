"""Recipes, the complete configurations of runs: the published ones by name, the way from words to a recipe (`resolve`),
and from a recipe to the parts of a run (`assemble`).
"""

from fullrank.recipes.assembling import Assembly, assemble, build_encoder, build_method, build_preprocess, check
from fullrank.recipes.assembling import check_num_images as check_num_images
from fullrank.recipes.balance import balanced_weights
from fullrank.recipes.catalog import PUBLISHED, RECIPES, PublishedScore
from fullrank.recipes.dry_running import dry_run
from fullrank.recipes.photos import photos_recipe
from fullrank.recipes.recipe import (
    DataConfig,
    MachineConfig,
    ProbeConfig,
    Recipe,
    SpectrumConfig,
    code_names,
    decides_weights,
    from_dict,
    import_code,
    read_recipe,
    to_dict,
)
from fullrank.recipes.resolve import resolve, with_objective
from fullrank.recipes.rules import differences, with_fields
from fullrank.recipes.user_code import import_function

__all__ = [
    "PUBLISHED", "RECIPES", "Assembly", "DataConfig", "MachineConfig", "ProbeConfig", "PublishedScore", "Recipe",
    "SpectrumConfig", "assemble", "balanced_weights", "build_encoder", "build_method", "build_preprocess", "check",
    "code_names", "decides_weights", "differences", "dry_run", "from_dict", "import_code", "import_function",
    "photos_recipe", "read_recipe", "resolve", "to_dict", "with_fields", "with_objective",
]  # fmt: skip
