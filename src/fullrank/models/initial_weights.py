"""The weights with which a backbone starts if the recipe has an `init`: those of a MODEL, fitted to the network of the
recipe.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from timm.models import adapt_input_conv
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fullrank.config import from_json
from fullrank.errors import UserError
from fullrank.methods import BackboneConfig
from fullrank.models.loading import describes_network, load, parse_model
from fullrank.models.model import HasPath, Model, first_convolutions
from fullrank.models.weights import convert_by_timm, is_counter, listing, shape_of
from fullrank.recipes import Recipe, build_encoder
from fullrank.recipes.start import Start, normalization_for

SIZE_ARGUMENTS = ("img_size", "dynamic_img_size")
"""Arguments of a network that depend on the size of the views, which a recipe sets by itself."""
MIN_SHARE = 0.5
"""A MODEL must have at least this share of the tensors of the backbone; else it is another network."""


def read_start(model: str | Path | HasPath, *, backbone: BackboneConfig | None = None) -> Start:
    """Load a MODEL, and return what a recipe takes over from it.

    Args:
        model: a MODEL, see `fullrank.load`, or a run.
        backbone: the network of a file of another library, which does not name its network.

    Raises:
        UserError: the model does not exist, cannot be read, or needs a `backbone`.
    """
    text = str(model.path if isinstance(model, HasPath) else model)
    loaded, (kind, name, _) = _load_with(text, backbone), parse_model(text)
    names = {"run": f"{Path(name).absolute()}@{loaded.step}", "file": f"file:{Path(name).absolute()}"}
    arguments = {name: value for name, value in loaded.spec.arguments.items() if name not in SIZE_ARGUMENTS}
    return Start(
        model=names.get(kind, text),
        hash=hash_weights(loaded.backbone.state_dict()),
        backbone=replace(loaded.spec, arguments=arguments),
        channels=loaded.preprocess.channels,
        size=loaded.preprocess.size,
        mean=loaded.preprocess.mean,
        std=loaded.preprocess.std,
        note=loaded.note.partition("; images of")[0],  # size, mean and std are those of the recipe
    )


def named_backbone(fields: Mapping[str, Any]) -> BackboneConfig | None:
    """Return the network that keyword arguments name: `backbone="resnet50"`, a `BackboneConfig`, or dotted names such
    as backbone.stem.

    >>> named_backbone({"backbone": "resnet50", "backbone.stem": "small", "epochs": 3}).stem
    'small'
    """
    given = fields.get("backbone")
    if isinstance(given, BackboneConfig):
        return given
    parts = {name.removeprefix("backbone."): value for name, value in fields.items() if name.startswith("backbone.")}
    parts |= {"name": given} if given is not None else {}
    return from_json(BackboneConfig, parts, "backbone") if parts.get("name") else None


def _load_with(model: str, backbone: BackboneConfig | None) -> Model:
    """Load a MODEL; `backbone` is the network of a file of another library, and is ignored for other models."""
    kind, name, _ = parse_model(model)
    outside = kind == "file" and not describes_network(Path(name))
    return load(model, backbone=backbone if outside else None)


def hash_weights(weights: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of the names, shapes and values of tensors, without the counters of BatchNorm.

    >>> hash_weights({"w": torch.zeros(2)})[:8], hash_weights({"w": torch.ones(2)})[:8]
    ('a4571335', 'ee53a03a')
    """
    digest = hashlib.sha256()
    for name in sorted(name for name in weights if not is_counter(name)):
        values = weights[name].detach().cpu().contiguous()
        digest.update(f"{name} {tuple(values.shape)} {values.dtype}\n".encode())
        digest.update(values.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def with_initial_weights(recipe: Recipe) -> Recipe:
    """Return a recipe whose `init_hash` is known: of a recipe without it, the MODEL is loaded.

    Mean and std that are empty are those of the model.
    """
    if not recipe.init or recipe.init_hash:
        return recipe
    start = read_start(recipe.init, backbone=recipe.backbone)
    mean, std = normalization_for(start, recipe.data.channels)
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
    fitted, lines = fit(network, weights)
    shapes = {name: tensor for name, tensor in network.state_dict().items() if not is_counter(name)}
    taken = [name for name in shapes if name in fitted]
    if len(taken) < MIN_SHARE * len(shapes):
        raise UserError(
            f"{recipe.init} has {len(taken)} of {len(shapes)} tensors of the recipe's backbone {recipe.backbone.name}, "
            f"which is another network than its {loaded.spec.name}; "
            "leave out --backbone.name, or give init=… to `pretrain` instead of to the recipe"
        )
    random = [
        f"{name} ({f'{shape_of(weights[name])} instead of {shape_of(tensor)}' if name in weights else 'absent'})"
        for name, tensor in shapes.items()
        if name not in fitted
    ]
    unused = [name for name in weights if name not in network.state_dict()]
    heading = f"starts with {len(taken)} of {len(shapes)} tensors of {recipe.init} (hash {recipe.init_hash[:12]})"
    heading += f"; random: {listing(random, 20)}" if random else ""
    heading += f"; not used: {listing(unused, 20)}" if unused else ""
    lines = [f"{heading}; the projector is random", *lines]
    if any(isinstance(module, _BatchNorm) for module in network.modules()):
        lines.append(
            "BatchNorm: the running statistics are those of the model; training normalises by its batches, and updates"
        )
    return fitted, lines


def fit(network: nn.Module, weights: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], list[str]]:
    """Return the tensors that fit a network, converted by timm where their shapes differ, and a line for each
    conversion.
    """
    wanted, weights, lines = network.state_dict(), dict(weights), []

    def differing() -> list[str]:
        return [name for name in wanted if name in weights and weights[name].shape != wanted[name].shape]

    for name in set(first_convolutions(network)) & set(differing()):
        channels = wanted[name].shape[1]
        if weights[name].shape[1] == 3 and weights[name].shape[2:] == wanted[name].shape[2:]:
            weights[name] = adapt_input_conv(channels, weights[name])
            how = "their sum" if channels == 1 else f"repeated, times 3/{channels}"
            lines.append(f"{name}: from 3 channels to {channels}, by timm ({how})")
    if others := differing():
        converted = convert_by_timm(network, weights)
        for name in others:
            if name in converted and converted[name].shape == wanted[name].shape:
                lines.append(f"{name}: resampled by timm from {shape_of(weights[name])} to {shape_of(wanted[name])}")
                weights[name] = converted[name]
    other = set(differing())
    return {name: tensor for name, tensor in weights.items() if name in wanted and name not in other}, lines
