"""Build method, views and preprocessing from a recipe, and check the values of the recipe."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

from torch import Tensor

from fullrank.errors import UserError
from fullrank.images import Preprocess
from fullrank.methods import Encoder, Grouped, Method, build_projector
from fullrank.methods.backbones import at_size, build_backbone, feature_dim, freeze
from fullrank.objectives.signature import required_views, takes_representations
from fullrank.recipes.recipe import Recipe, view_sizes
from fullrank.recipes.user_code import find_builder, find_objective, imported_function
from fullrank.seeding import seeded
from fullrank.views import MultiViewTransform


@dataclass(frozen=True)
class Assembly:
    """The parts of a run."""

    method: Method
    views: MultiViewTransform
    preprocess: Preprocess


def assemble(recipe: Recipe, method: Method | None = None) -> Assembly:
    """Build method, views and preprocessing. Weights are a function of the recipe's seed; the global random state does
    not change.

    Args:
        recipe: the recipe; `data.mean` and `data.std` must be set.
        method: the method of this recipe, if it is built already; None: check the recipe and build the method.

    Raises:
        UserError: the recipe cannot run; the message names the field to change.

    >>> import torch
    >>> from fullrank.recipes import DataConfig
    >>> parts = assemble(Recipe(data=DataConfig(channels=1, mean=(0.5,), std=(0.25,))))
    >>> images = torch.zeros(4, 1, 40, 40, dtype=torch.uint8)
    >>> parts.method(parts.views(images, parts.views.make_params(0, 0, 4)))["Z"].shape
    torch.Size([2, 4, 1024])
    """
    if method is None:
        check(recipe)
        method = build_method(recipe)
    return Assembly(method=method, views=build_transform(recipe), preprocess=build_preprocess(recipe))


def build_method(recipe: Recipe, weights: Mapping[str, Tensor] = MappingProxyType({})) -> Method:
    """Build the method on the CPU, with weights that are initialised from the recipe's seed.

    Args:
        recipe: the recipe.
        weights: tensors of the backbone that replace the initial ones, by name (`fullrank.models.initial_weights`). All
            other weights are the same as without them.

    Raises:
        UserError: timm does not know the backbone or cannot build it, or the builder returns no method.
    """
    objective = find_objective(recipe.objective)
    build = find_builder(recipe.method_builder, recipe.objective)
    with seeded(recipe.seed):
        views = sum(view.count for view in recipe.views)
        objective = partial(objective, **recipe.hyper)
        if recipe.projector.kind == "groups":
            objective = Grouped(objective, groups=recipe.projector.groups, seed=recipe.seed)
        make_encoder = partial(_make_encoder, recipe, weights, frozen=recipe.optimizer.frozen)
        method = build(make_encoder, objective, views, **recipe.method)
    if not isinstance(method, Method):
        received = f"'{recipe.method_builder}' returns a {type(method).__name__}"
        raise UserError(f"{received}, expected a fullrank.methods.Method; return one")
    method.seed = recipe.seed
    return method


def build_encoder(recipe: Recipe) -> Encoder:
    """Build only the backbone and the projector, with the same initial weights as in `build_method`.

    Raises:
        UserError: timm does not know the backbone or cannot build it, or the builder returns no method.

    >>> import torch
    >>> encoder = build_encoder(Recipe())
    >>> torch.equal(encoder.projector[0].weight, build_method(Recipe()).projector[0].weight)
    True
    """
    with seeded(recipe.seed):
        return _make_encoder(recipe)


def _make_encoder(
    recipe: Recipe, weights: Mapping[str, Tensor] = MappingProxyType({}), *, frozen: Sequence[str] = ()
) -> Encoder:
    """Build an encoder; `frozen`: the parts of the backbone that training leaves out."""
    backbone = build_backbone(at_size(recipe.backbone, view_sizes(recipe)), channels=recipe.data.channels)
    if weights:
        backbone.load_state_dict(weights, strict=False)
    freeze(backbone, frozen)
    D_b = feature_dim(backbone)
    return Encoder(backbone, build_projector(recipe.projector, D_b, seed=recipe.seed), recipe.projector.dimensions(D_b))


def build_transform(recipe: Recipe) -> MultiViewTransform:
    """Build the transform that draws the views, with the normalisation of the data.

    Raises:
        UserError: a custom transform was not imported, or the normalisation does not fit the channels.
    """
    data, own = recipe.data, [imported_function(name) for name in recipe.custom_transforms]
    check_normalization(data.channels, data.mean, data.std, "--data")
    options = {"channels": data.channels, "compile": recipe.machine.compile}
    return MultiViewTransform(recipe.views, mean=data.mean, std=data.std, custom_transforms=own, **options)


def build_preprocess(recipe: Recipe) -> Preprocess:
    """Build the preprocessing of images outside training: the size of the largest view and the normalisation of the
    data.
    """
    data, size = recipe.data, max(view.size for view in recipe.views)
    check_normalization(data.channels, data.mean, data.std, "--data")
    return Preprocess(channels=data.channels, size=size, mean=data.mean, std=data.std, bits=data.bits or 16)


def check_normalization(channels: int, mean: Sequence[float], std: Sequence[float], what: str) -> None:
    """Check that there are a mean and a positive standard deviation for each channel.

    Raises:
        UserError: there are not; `what` names the place of the values.
    """
    for name, values in (("mean", mean), ("std", std)):
        if len(values) != channels or not all(math.isfinite(value) for value in values):
            raise UserError(f"{what}: {name} is {values}, expected {channels} values, one per channel")
    if min(std) <= 0:
        raise UserError(f"{what}: std is {std}, expected positive values; check whether all images have one colour")


def check(recipe: Recipe) -> None:
    """Check whether the parts of a recipe fit together: views, projector, objective, devices. (A `Recipe` checks each
    value itself.)

    Raises:
        UserError: two parts do not fit, or the user's objective was not imported; the message names the flag to change.

    >>> from fullrank.recipes import RECIPES
    >>> check(RECIPES["digits"])
    """
    data, devices, full = recipe.data, recipe.machine.devices, recipe.hyper.get("full")
    if data.mean or data.std:
        usual = (data.mean or (0.5,) * data.channels, data.std or (1.0,) * data.channels)
        check_normalization(data.channels, *usual, "--data")
    objective, sizes = find_objective(recipe.objective), view_sizes(recipe)
    V, V_0, what = sum(sizes.values()), next(iter(sizes.values())), f"objective '{recipe.objective}'"
    _refuse(V < 2, f"the number of views per image is {V}, expected at least 2; give --views.0.count 2")
    two = f"{what} takes exactly 2 views, got {V}; change --views.0.count, or use frossl"
    _refuse(V != 2 and required_views(objective) == 2, two)
    if takes_representations(objective):
        received = " and ".join(map(str, sizes))
        _refuse(len(sizes) > 1, f"{what} takes views of one size, got {received} px; give all views the same size")
        remedy = "give --projector.kind mlp and --projector.widths no value"
        _refuse(not recipe.projector.absent, f"{what} takes the representation, not the embedding; {remedy}")
    fewer = f"hyper.full, the number of full-size views, is {full}, but the recipe has {V_0}; give --hyper.full {V_0}"
    _refuse(full is not None and not 1 <= full <= V_0, fewer)
    if data.storage == "streaming":
        reason = "--data.subset and --data.validation choose among all training images, which a stream cannot do"
        _refuse(data.subset or data.validation, f"{reason}; give --data.storage disk, or leave them out")
        reason = "--probe.epochs scores the probe on all test images, but a stream keeps only some of them"
        remedy = "give --data.storage disk, or --probe.epochs without a value"
        _refuse(recipe.probe.epochs and not recipe.probe.labelled, f"{reason}; {remedy}")
    wrong, remedy = f"a batch of {recipe.batch_size} is not divisible", f"give --batch-size a multiple of {devices}"
    _refuse(recipe.batch_size % devices, f"{wrong} by {devices} devices; {remedy}")


def _refuse(wrong: object, message: str) -> None:
    if wrong:
        raise UserError(message)


def check_num_images(recipe: Recipe, num_images: int) -> None:
    """Check that there are enough training images for a batch.

    Raises:
        UserError: there are fewer images than `batch_size`.
    """
    remedy = f"set --batch-size {max(num_images // 2, 2)}, or add images"
    received = f"batch_size is {recipe.batch_size}, but there are only {num_images} training images"
    _refuse(num_images < recipe.batch_size, f"{received}; {remedy}")
