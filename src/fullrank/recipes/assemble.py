"""From a recipe to the parts that run: method, views, preprocessing. The numbers V, N and D are checked here, once."""

from dataclasses import dataclass
from functools import partial

import torch

from fullrank.errors import UserError, pick
from fullrank.images import Preprocess
from fullrank.methods import METHODS, Method, build_backbone, build_projector, features_of
from fullrank.objectives import OBJECTIVES, TWO_VIEWS
from fullrank.views import Views
from fullrank.recipes.recipe import Recipe


@dataclass(frozen=True)
class Assembly:
    """The parts of a run."""

    method: Method
    views: Views
    preprocess: Preprocess


def assemble(recipe: Recipe) -> Assembly:
    """Build method, views and preprocessing. Weights are a function of the recipe's seed; global random state is left alone.

    Raises:
        UserError: a recipe that cannot run, with the field to change.
    """
    check(recipe)
    return Assembly(method=build_method(recipe), views=build_views(recipe), preprocess=preprocess_of(recipe))


def build_method(recipe: Recipe) -> Method:
    """Build the networks around the objective, initialised by the recipe's seed."""
    objective = partial(pick(recipe.objective, OBJECTIVES, "objective"), **recipe.hyper)
    with torch.random.fork_rng():
        torch.manual_seed(recipe.seed)
        backbone = build_backbone(recipe.backbone, channels=recipe.data.channels)
        projector = build_projector(recipe.projector, features_of(backbone))
    return METHODS[recipe.objective](backbone, projector, objective)


def build_views(recipe: Recipe) -> Views:
    """Build the views with the data's statistics."""
    mean, std = statistics_of(recipe)
    return Views(recipe.views, mean=mean, std=std, channels=recipe.data.channels)


def preprocess_of(recipe: Recipe) -> Preprocess:
    """Return how an image becomes the network's input outside training."""
    mean, std = statistics_of(recipe)
    return Preprocess(channels=recipe.data.channels, size=max(view.size for view in recipe.views), mean=mean, std=std)


def statistics_of(recipe: Recipe) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation of each channel. Raises UserError where they do not fit the channels."""
    for name, values in (("mean", recipe.data.mean), ("std", recipe.data.std)):
        if len(values) != recipe.data.channels:
            raise UserError(f"data.{name} has {len(values)} numbers, expected one for each of the {recipe.data.channels} channels")
    return recipe.data.mean, recipe.data.std


def check(recipe: Recipe, images: int | None = None) -> None:
    """Check the numbers of a recipe: views V, batch N, dimensions D, and where `images` is given that there is a batch of them.

    Raises:
        UserError: with what was received, what was expected, and the flag to change.
    """
    V = sum(view.count for view in recipe.views)
    if V < 2:
        raise UserError(f"{V} view of each image, but joint embedding compares at least 2; give --views.0.count 2")
    if V != 2 and OBJECTIVES[recipe.objective] in TWO_VIEWS:
        raise UserError(f"objective '{recipe.objective}' takes exactly 2 views, got {V}; change --views.0.count, or use frossl")
    if recipe.batch < 2:
        raise UserError(f"batch of {recipe.batch}, but every objective compares images: it has to be at least 2 (256 is usual)")
    if recipe.batch % recipe.machine.devices:
        raise UserError(f"batch of {recipe.batch} cannot be shared by {recipe.machine.devices} devices; take a multiple of {recipe.machine.devices}")
    for name in ("epochs", "checkpoints", "log_every"):
        if getattr(recipe, name) < 1:
            raise UserError(f"{name} is {getattr(recipe, name)}, but has to be at least 1")
    if any(width < 1 for width in recipe.projector.widths):
        raise UserError(f"projector.widths are {recipe.projector.widths}, but each has to be at least 1")
    if images is not None and images < recipe.batch:
        raise UserError(f"{images} training images are fewer than a batch of {recipe.batch}; give --batch {max(images // 2, 2)} or more images")
