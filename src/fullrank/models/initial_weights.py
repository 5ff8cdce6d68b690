"""The weights with which a backbone starts if the recipe has an `init`: those of a MODEL, fitted to the network of the
recipe.
"""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from timm.models import adapt_input_conv
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fullrank.config import from_json
from fullrank.errors import Notify, UserError, silent
from fullrank.images import Images
from fullrank.methods import BackboneConfig
from fullrank.models.loading import describes_network, load, parse_model
from fullrank.models.model import Model, first_convolutions
from fullrank.models.weights import Weights, convert_by_timm, hash_weights, is_counter, listing, not_fitting, shape_of
from fullrank.recipes import Recipe, build_encoder, resolve
from fullrank.recipes.rules import Start, plain_fields

# Arguments of a network that depend on the size of the views, which a recipe sets by itself.
SIZE_ARGUMENTS = ("img_size", "dynamic_img_size")
# A MODEL must have at least this share of the tensors of the backbone; else it is another network.
MIN_SHARE = 0.5


def read_start(model: str | os.PathLike, fields: Mapping[str, Any] = MappingProxyType({})) -> Start:
    """Load a MODEL, and return what a recipe takes over from it.

    Args:
        model: a MODEL, see `fullrank.load`, or a run.
        fields: fields of the recipe; a file of another library needs its network among them, as backbone="resnet50", a
            `BackboneConfig`, or dotted names such as backbone.name.

    Raises:
        UserError: the model does not exist, cannot be read, or needs a `backbone`.
    """
    given, text = plain_fields(fields), os.fspath(model)
    parts = given.get("backbone") or {}
    parts |= {key.removeprefix("backbone."): given[key] for key in given if key.startswith("backbone.")}
    backbone = from_json(BackboneConfig, parts, "backbone") if "name" in parts else None
    loaded, (kind, name, _) = _load_with(text, backbone), parse_model(text)
    names = {"run": f"{Path(name).absolute()}@{loaded.step}", "file": f"file:{Path(name).absolute()}"}
    arguments = {name: value for name, value in loaded.spec.arguments.items() if name not in SIZE_ARGUMENTS}
    return Start(
        model=names.get(kind, text),
        hash=hash_weights(loaded.backbone.state_dict()),
        backbone=replace(loaded.spec, arguments=arguments),
        **{name: getattr(loaded.preprocess, name) for name in ("channels", "size", "mean", "std")},
        note=loaded.note.partition("; images of")[0],  # size, mean and std are those of the recipe
    )


def resolve_with_init(
    source: Recipe | Images | str | Path | None, overrides: Mapping[str, Any], notify: Notify = silent
) -> Recipe:
    """Return the recipe that words describe, as `fullrank.recipes.resolve`, with the MODEL that `init` names among
    them.
    """
    fields = dict(overrides)
    init = fields.pop("init", None)
    return resolve(source, fields, start=None if init is None else read_start(init, fields), notify=notify)


def _load_with(model: str, backbone: BackboneConfig | None) -> Model:
    """Load a MODEL; `backbone` is the network of a file of another library, and is ignored for other models."""
    kind, name, _ = parse_model(model)
    outside = kind == "file" and not describes_network(Path(name))
    return load(model, backbone=backbone if outside else None)


def with_initial_weights(recipe: Recipe) -> Recipe:
    """Return a recipe whose `init_hash` is known: of a recipe without it, the MODEL is loaded.

    Mean and std that are empty are those of the model.
    """
    if not recipe.init or recipe.init_hash:
        return recipe
    start = read_start(recipe.init, {"backbone": recipe.backbone})
    mean, std = start.normalization(recipe.data.channels)
    data = replace(recipe.data, mean=recipe.data.mean or mean, std=recipe.data.std or std)
    return replace(recipe, init=start.model, init_hash=start.hash, data=data)


def initial_weights(recipe: Recipe) -> tuple[dict[str, Tensor], list[str]]:
    """Return the tensors of the backbone that the MODEL of a recipe gives, and lines that say what was taken and what
    was not.

    Both are empty for a recipe without `init`.

    Where shapes differ, timm converts: the first convolution to another number of channels, position embeddings to
    another size. Tensors that still have another shape, or that the MODEL does not have, keep their random values.

    Raises:
        UserError: the MODEL cannot be read, has other weights than those of the recipe, or another network.
    """
    if not recipe.init:
        return {}, []
    loaded = _load_with(recipe.init, recipe.backbone)
    weights = loaded.backbone.state_dict()
    if recipe.init_hash and (found := hash_weights(weights)) != recipe.init_hash:
        raise UserError(
            f"the recipe starts with weights of hash {recipe.init_hash[:12]}, but {recipe.init} now has {found[:12]}; "
            f"restore these weights, or give --init {recipe.init} to start with those of now"
        )
    network = build_encoder(recipe).backbone
    wanted = network.state_dict()
    fitted, lines = adapt_weights(network, weights)
    random, unused = not_fitting(wanted, weights | fitted), [name for name in weights if name not in wanted]
    count = sum(not is_counter(name) for name in wanted)
    if count - len(random) < MIN_SHARE * count:
        raise UserError(
            f"{recipe.init} has {count - len(random)} of {count} tensors of the recipe's backbone "
            f"{recipe.backbone.name}, which is another network than its {loaded.spec.name}; "
            "leave out --backbone.name, or give init=… to `pretrain` instead of to the recipe"
        )
    said = f"starts with {count - len(random)} of {count} tensors of {recipe.init} (hash {recipe.init_hash[:12]})"
    said += f"; random: {listing(random, 20)}" if random else ""
    said += f"; not used: {listing(unused, 20)}" if unused else ""
    lines = [f"{said}; the projector is random", *lines]
    if any(isinstance(module, _BatchNorm) for module in network.modules()):
        lines.append("BatchNorm: the running statistics are the model's; training normalises by batches, and updates")
    return fitted, lines


def adapt_weights(network: nn.Module, weights: Weights) -> tuple[dict[str, Tensor], list[str]]:
    """Return the tensors that fit a network, converted by timm where their shapes differ, and a line for each
    conversion.
    """
    wanted, weights, lines = network.state_dict(), dict(weights), []
    for name in first_convolutions(network):
        old, channels = weights.get(name), wanted[name].shape[1]
        if old is not None and old.shape[1] == 3 != channels and old.shape[2:] == wanted[name].shape[2:]:
            weights[name] = adapt_input_conv(channels, old)
            how = "their sum" if channels == 1 else f"repeated, times 3/{channels}"
            lines.append(f"{name}: from 3 channels to {channels}, by timm ({how})")
    fitting = {name: t for name, t in weights.items() if name in wanted and t.shape == wanted[name].shape}
    if others := [name for name in wanted if name in weights and name not in fitting]:
        converted = convert_by_timm(network, weights)
        for name in others:
            if name in converted and converted[name].shape == wanted[name].shape:
                lines.append(f"{name}: resampled by timm from {shape_of(weights[name])} to {shape_of(wanted[name])}")
                fitting[name] = converted[name]
    return fitting, lines
