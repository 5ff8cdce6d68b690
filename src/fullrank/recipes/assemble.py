"""From a recipe to the parts that run: method, views, preprocessing. The numbers V, N and D are checked here, once."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from math import isfinite
from operator import attrgetter

import torch

from fullrank.errors import UserError
from fullrank.images import Preprocess
from fullrank.methods import Encoder, Grouped, Method, build_backbone, build_projector, feature_dim, method_builder
from fullrank.objectives.signature import required_views, tensor_names
from fullrank.recipes.named import import_function, resolve_objective
from fullrank.recipes.recipe import Recipe
from fullrank.views import MultiViewTransform


@dataclass(frozen=True)
class Assembly:
    """The parts of a run."""

    method: Method
    views: MultiViewTransform
    preprocess: Preprocess


def assemble(recipe: Recipe) -> Assembly:
    """Build method, views and preprocessing. Weights are a function of the recipe's seed; global random state is left alone.

    Raises:
        UserError: a recipe that cannot run, with the field to change.

    >>> from fullrank.recipes import DataConfig
    >>> parts = assemble(Recipe(data=DataConfig(channels=1, mean=(0.5,), std=(0.25,))))
    >>> images = torch.zeros(4, 1, 40, 40, dtype=torch.uint8)
    >>> parts.method(parts.views(images, parts.views.make_params(0, 0, 4)))["Z"].shape
    torch.Size([2, 4, 1024])
    """
    check(recipe)
    return Assembly(method=build_method(recipe), views=build_transform(recipe), preprocess=build_preprocess(recipe))


def build_method(recipe: Recipe) -> Method:
    """Build the networks around the objective, on the CPU, initialised by the recipe's seed.

    Raises:
        UserError: a backbone that timm does not know or cannot build.
    """
    objective = resolve_objective(recipe.objective)
    build = method_builder(recipe.objective, objective)
    with _seeded(recipe):
        views = sum(view.count for view in recipe.views)
        objective = partial(objective, **recipe.hyper)
        if recipe.projector.kind == "groups":
            objective = Grouped(objective, groups=recipe.projector.groups, seed=recipe.seed)
        return build(partial(_make_encoder, recipe), objective, views, **recipe.method)


def build_encoder(recipe: Recipe) -> Encoder:
    """Build the backbone and projector with which `build_method` begins, alone: what is needed of a run to use it.

    Raises:
        UserError: a backbone that timm does not know or cannot build.

    >>> branch = build_encoder(Recipe())
    >>> torch.equal(branch.projector[0].weight, build_method(Recipe()).projector[0].weight)
    True
    """
    with _seeded(recipe):
        return _make_encoder(recipe)


def _make_encoder(recipe: Recipe) -> Encoder:
    backbone = build_backbone(recipe.backbone, channels=recipe.data.channels)
    D_b = feature_dim(backbone)
    return Encoder(backbone, build_projector(recipe.projector, D_b, seed=recipe.seed), recipe.projector.dimensions(D_b))


@contextmanager
def _seeded(recipe: Recipe) -> Iterator[None]:
    """Seed torch's generator on the CPU by the recipe, and put it back."""
    with torch.random.fork_rng(devices=()):
        torch.default_generator.manual_seed(recipe.seed)  # torch.manual_seed would seed the GPUs' generators too
        yield


def build_transform(recipe: Recipe) -> MultiViewTransform:
    """Build the views with the data's statistics.

    Raises:
        UserError: an extra step that cannot be imported.
    """
    mean, std = statistics_of(recipe)
    custom_transforms = [import_function(name) for name in recipe.custom_transforms]
    return MultiViewTransform(
        recipe.views, mean=mean, std=std, channels=recipe.data.channels, custom_transforms=custom_transforms, compile=recipe.machine.compile
    )


def build_preprocess(recipe: Recipe) -> Preprocess:
    """Return how an image becomes the network's input outside training."""
    mean, std = statistics_of(recipe)
    return Preprocess(channels=recipe.data.channels, size=max(view.size for view in recipe.views), mean=mean, std=std)


def statistics_of(recipe: Recipe) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation of each channel.

    Raises:
        UserError: they do not fit the number of channels, or a standard deviation is zero.
    """
    for name, values in (("mean", recipe.data.mean), ("std", recipe.data.std)):
        if len(values) != recipe.data.channels:
            raise UserError(f"data.{name} has {len(values)} numbers, expected one for each of the {recipe.data.channels} channels")
    if min(recipe.data.std) <= 0:
        raise UserError(f"data.std is {recipe.data.std}, but has to be positive; are the images all of one colour?")
    return recipe.data.mean, recipe.data.std


LEAST = dict.fromkeys(
    (
        *("epochs", "checkpoints", "log_every", "spectrum.batch_every", "machine.devices", "data.channels"),
        *("projector.d0", "projector.groups"),
    ),
    1,
) | dict.fromkeys(
    (
        *(
            "seed",
            "optimizer.lr",
            "optimizer.weight_decay",
            "optimizer.trust_coefficient",
            "probe.lr",
            "schedule.warmup",
            "schedule.min_lr_ratio",
        ),
        *(
            "schedule.period",
            "schedule.decay",
            "data.size",
            "data.num_images",
            "data.max_error_fraction",
            "spectrum.every",
            "spectrum.samples",
        ),
        "machine.micro_batch",
    ),
    0,
)
"""The least value of each number of a recipe that has one."""


def view_sizes(recipe: Recipe) -> dict[int, int]:
    """Return how many views there are of each size, largest first.

    >>> from fullrank.views import ViewConfig
    >>> view_sizes(Recipe(views=(ViewConfig(size=24, count=6), ViewConfig(size=32, count=2))))
    {32: 2, 24: 6}
    """
    sizes = sorted({view.size for view in recipe.views}, reverse=True)
    return {size: sum(view.count for view in recipe.views if view.size == size) for size in sizes}


def check(recipe: Recipe, images: int | None = None) -> None:
    """Check the numbers of a recipe: views V, batch N, dimensions D, and where `images` is given that there is a batch of them.

    What an objective asks of its tensors is checked here alone; the objectives themselves check nothing.

    Raises:
        UserError: with what was received, what was expected, and the flag to change.

    >>> from fullrank.recipes import RECIPES
    >>> check(RECIPES["digits"], images=1438)
    """
    _check_views(recipe)
    _check_numbers(recipe)
    if recipe.batch < 2:
        raise UserError(f"batch of {recipe.batch}, but every objective compares images: it has to be at least 2 (256 is usual)")
    if recipe.batch % recipe.machine.devices:
        devices = recipe.machine.devices
        raise UserError(f"batch of {recipe.batch} cannot be shared by {devices} devices; give --batch a multiple of {devices}")
    if images is not None and images < recipe.batch:
        remedy = f"give --batch {max(images // 2, 2)} or more images"
        raise UserError(f"{images} training images are fewer than a batch of {recipe.batch}; {remedy}")


def _check_views(recipe: Recipe) -> None:
    """Check what the objective asks of the views, and of the projector behind them."""
    V = sum(view.count for view in recipe.views)
    if V < 2:
        raise UserError(f"{V} view of each image, but joint embedding compares at least 2; give --views.0.count 2")
    objective = resolve_objective(recipe.objective)
    if V != 2 and required_views(objective) == 2:
        raise UserError(f"objective '{recipe.objective}' takes exactly 2 views, got {V}; change --views.0.count, or use frossl")
    sizes = view_sizes(recipe)
    if len(sizes) > 1 and tensor_names(objective) == ("R",):
        got = " and ".join(map(str, sizes))
        raise UserError(f"objective '{recipe.objective}' takes views of one size, got {got} px; give both views one size")
    if not recipe.projector.absent and tensor_names(objective) == ("R",):
        kind = "" if recipe.projector.kind == "mlp" else "give --projector.kind mlp and "
        raise UserError(f"objective '{recipe.objective}' sees the representation itself; {kind}leave --projector.widths empty")
    V_0 = next(iter(sizes.values()))
    if recipe.hyper.get("full", V_0) > V_0:
        raise UserError(f"hyper.full is {recipe.hyper['full']}, but there are {V_0} views of full size; give --hyper.full {V_0}")


def _check_numbers(recipe: Recipe) -> None:
    """Check each number on its own."""
    for field, least in LEAST.items():
        value = attrgetter(field)(recipe)
        if not isfinite(value):
            raise UserError(f"{field} is {value}, but has to be a finite number of at least {least}; change --{field}")
        if value < least:
            raise UserError(f"{field} is {value}, but has to be at least {least}; change --{field}")
    for name, value in recipe.method.items():
        if isinstance(value, tuple) and not all(0 <= share <= 1 for share in value):
            raise UserError(f"method.{name} is {value}, but each has to be from 0 to 1; change --method.{name}")
        if isinstance(value, float) and not isfinite(value):
            raise UserError(f"method.{name} is {value}, but has to be a finite number of at least 0; change --method.{name}")
        if isinstance(value, float) and value < 0:
            raise UserError(f"method.{name} is {value}, but has to be at least 0; change --method.{name}")
        if type(value) is int and value < 1:
            raise UserError(f"method.{name} is {value}, but has to be at least 1; change --method.{name}")
    if not 0 <= recipe.optimizer.momentum < 1:
        raise UserError(f"optimizer.momentum is {recipe.optimizer.momentum}, but has to be from 0 to less than 1 (0.9 is usual)")
    if any(width < 1 for width in recipe.projector.widths):
        raise UserError(f"projector.widths is {recipe.projector.widths}, but each has to be at least 1")
