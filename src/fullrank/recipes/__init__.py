"""Recipes, the complete configurations of runs, one module per data set; `assemble` builds the parts of a run from a
recipe.

The recipes themselves need no torch; what needs it is imported when it is first used.
"""

from typing import TYPE_CHECKING

from fullrank.lazy import lazy_attributes
from fullrank.recipes.catalog import ORIGINS, RECIPES, method_recipe, published_name
from fullrank.recipes.choices import with_choices
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
from fullrank.recipes.published import KEPT_DIFFERENCES
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
from fullrank.recipes.scores import PUBLISHED, PublishedScore
from fullrank.recipes.trust import code_names, import_code

if TYPE_CHECKING:
    from fullrank.recipes.assembling import (
        Assembly,
        assemble,
        build_encoder,
        build_method,
        build_preprocess,
        check,
        check_num_images,
    )
    from fullrank.recipes.dry_running import dry_run
    from fullrank.recipes.forecast import forecast_run
    from fullrank.recipes.photos import explain_photos_recipe, photos_recipe

_HOME = {
    **dict.fromkeys(
        ("Assembly", "assemble", "build_encoder", "build_method", "build_preprocess", "check", "check_num_images"),
        "assembling",
    ),
    "dry_run": "dry_running",
    "forecast_run": "forecast",
    **dict.fromkeys(("explain_photos_recipe", "photos_recipe"), "photos"),
}

__getattr__ = lazy_attributes(__name__, _HOME)

__all__ = [
    "FREE_FIELDS",
    "KEPT_DIFFERENCES",
    "ORIGINS",
    "PUBLISHED",
    "RECIPES",
    "Assembly",
    "DataConfig",
    "MachineConfig",
    "ProbeConfig",
    "PublishedScore",
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
    "method_recipe",
    "objective_signature",
    "photos_recipe",
    "published_name",
    "read_recipe",
    "resolve_builder",
    "resolve_objective",
    "to_dict",
    "to_file",
    "with_choices",
    "with_devices",
    "with_objective",
]
