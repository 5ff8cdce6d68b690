"""The fields of a recipe by their dotted names, as in flags: given in several forms, set, compared; and what follows
from those that a user gives, and from a MODEL to start with.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, is_dataclass, replace
from typing import Any, Literal

import torch
from pydantic_core import to_jsonable_python

from fullrank.errors import UserError, suggest
from fullrank.images.reading import Reading
from fullrank.methods.backbones import build_backbone, check_name, feature_dim, has_plain_stem
from fullrank.methods.config import BackboneConfig
from fullrank.recipes.balance import balanced_weights
from fullrank.recipes.recipe import Recipe, flatten, from_dict, is_below, to_dict
from fullrank.recipes.user_code import is_imported
from fullrank.training.config import OptimizerConfig

# Views of at most this size get the small stem: the standard stem reduces 64 px to a feature map of 2×2.
LARGEST_SMALL_STEM = 64
# A run is at least this many times as long as its warm-up.
WARMUPS = 5
# Optimizer → its values at a batch of 256. LARS as in SimCLR (Chen et al. 2020, App. B), SGD as in SimSiam (Chen and He
# 2021), Adam as for W-MSE (Ermolov et al. 2021).
OPTIMIZERS = {
    "adam": OptimizerConfig(name="adam", lr=2e-3, weight_decay=1e-6),
    "adamw": OptimizerConfig(name="adamw", lr=2e-3, weight_decay=1e-4),
    "lars": OptimizerConfig(name="lars", lr=0.3, weight_decay=1e-6),
    "sgd": OptimizerConfig(name="sgd", lr=0.05, weight_decay=1e-4),
}
# AdamW for a vision transformer at a batch of 256, as in DINO (Caron et al. 2021, Sec. 3.2, whose weight decay grows
# from 0.04 to 0.4; the clip is from the public code).
VISION_TRANSFORMER = OptimizerConfig(name="adamw", lr=5e-4, weight_decay=0.04, clip_norm=3.0)
# Optimizer → exponent with which the learning rate follows the batch size: linear for LARS and SGD (Goyal et al. 2017),
# the square root for Adam and AdamW (Malladi et al. 2022).
BATCH_EXPONENTS = {"adam": 0.5, "adamw": 0.5, "lars": 1.0, "sgd": 1.0}
# Hyperparameters of methods, in epochs, with which something begins or ends early in the run: of SwAV and DINO.
WAITS = ("freeze", "queue_start", "temperature_warmup")
# Recipes whose authors use one learning rate for any batch size (the public code of DirectCLR).
SAME_RATE_FOR_ANY_BATCH = ("imagenet-simclr", "imagenet-directclr")
# Numbers of channels between which images are converted; images of any other number stay as they are.
CONVERTED = (1, 3)
# Short name → the field that it means: `devices=2`; of a part of the recipe, with a plain value: `backbone="resnet50"`.
SHORT = {
    "backbone": "backbone.name",
    "optimizer": "optimizer.name",
    "schedule": "schedule.name",
    "projector": "projector.widths",
    "data": "data.source",
    "split": "data.train",
    "labelled": "probe.labelled",
    "devices": "machine.devices",
}


def plain_fields(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return overrides under the names of the fields, with parts of a recipe as JSON objects.

    >>> plain_fields({"batch-size": 8, "backbone": "resnet50", "devices": 2, "data.label_column": "breed"})
    {'batch_size': 8, 'backbone.name': 'resnet50', 'machine.devices': 2, 'data.reading.label_column': 'breed'}
    """
    given = {}
    for name, value in overrides.items():
        name = name.replace("-", "_")
        parts = value if isinstance(value, tuple | list) else [value]
        if value is not None and not isinstance(value, Mapping) and not any(map(is_dataclass, parts)):
            name = SHORT.get(name, name)
        part, _, field = name.partition(".")
        if part == "data" and field in Reading.__dataclass_fields__:
            name = f"data.reading.{field}"
        given[name] = to_jsonable_python(value, fallback=lambda other: other)
    return given


def with_fields(recipe: Recipe, values: Mapping[str, Any]) -> Recipe:
    """Return a recipe with other values of some fields, by their dotted names; nothing follows from them.

    Raises:
        UserError: a field does not exist, or a value is wrong.

    >>> with_fields(Recipe(), {"optimizer.lr": 0.2, "views.1.size": 16}).views[1].size
    16
    """
    tree = to_dict(with_view_groups(recipe, values))
    tree["views"] = {str(number): view for number, view in enumerate(tree["views"])}
    known = is_imported(recipe.objective) and is_imported(recipe.method_builder)  # else hyper is not complete
    for name in sorted(values, key=lambda name: name.count(".")):
        *path, last = name.split(".")
        node: Any = tree
        for key in path:
            node = node.get(key) if isinstance(node, dict) else None
        if not isinstance(node, dict) or (known and last not in node):
            raise UserError(f"recipe: there is no field '{name}'{suggest(name, flatten(to_dict(recipe)))}")
        node[last] = values[name]
    if isinstance(tree["views"], dict):
        tree["views"] = list(tree["views"].values())
    return from_dict(tree) if values else recipe


def with_view_groups(recipe: Recipe, names: Iterable[str]) -> Recipe:
    """Return the recipe with a group of views for each number in the names of fields, such as `views.1.size`.

    A group after the recipe's last one is a copy of that one with one view; the fields that are named then change it.

    Raises:
        UserError: a group is left out.

    >>> [view.count for view in with_view_groups(Recipe(), ["views.1.size", "epochs"]).views]
    [2, 1]
    """
    if "views" in names:
        return recipe
    for number in sorted({int(match[1]) for name in names if (match := re.match(r"views\.(\d{1,9})\b", name))}):
        if number > len(recipe.views):
            raise UserError(f"views.{number} is given, but the recipe has no views.{number - 1}; add it first")
        if number == len(recipe.views):
            recipe = replace(recipe, views=(*recipe.views, replace(recipe.views[-1], count=1)))
    return recipe


def differences(a: Recipe, b: Recipe) -> list[str]:
    """Return one line for each field in which two recipes differ, such as 'epochs 3 → 5'.

    >>> differences(Recipe(epochs=3), Recipe(epochs=5, seed=1))
    ['epochs 3 → 5', 'seed 0 → 1']
    """
    left, right = flatten(to_dict(a)), flatten(to_dict(b))
    names = (name for name in sorted({*left, *right}) if left.get(name) != right.get(name))
    return [f"{name} {left.get(name)} → {right.get(name)}" for name in names]


def scaled(optimizer: OptimizerConfig, ratio: float) -> float:
    """Return the peak learning rate of an optimizer for a batch that is `ratio` times as large.

    >>> scaled(OPTIMIZERS["lars"], 2.0), scaled(OPTIMIZERS["adamw"], 0.25)
    (0.6, 0.001)
    """
    return optimizer.lr * ratio ** BATCH_EXPONENTS[optimizer.name]


def stem_for(network: str, size: int) -> Literal["small", "standard"]:
    """Return the stem of a network for views of `size` pixels.

    >>> [stem_for("resnet50", size) for size in (64, 96)]
    ['small', 'standard']
    """
    return "small" if size <= LARGEST_SMALL_STEM and has_plain_stem(network) else "standard"


def leading_share(objective: str, backbone: BackboneConfig) -> dict[str, int]:
    """Return d0 of DirectCLR for a backbone: the share of the paper, 360 of ResNet-50's 2048 features, and at least 2,
    because one normalised dimension has no gradient. Empty for another objective.

    >>> leading_share("directclr", BackboneConfig(name="resnet18"))
    {'d0': 90}
    """
    if objective not in ("directclr", "directclr_paper"):
        return {}
    with torch.device("meta"):  # without weights
        return {"d0": max(round(360 / 2048 * feature_dim(build_backbone(backbone))), 2)}


def following(recipe: Recipe, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that follow from the given ones, and are not given themselves.

    | given | what follows |
    |---|---|
    | epochs | the warm-up takes at most a fifth of them, and so do the waits of SwAV and DINO (`WAITS`) |
    | batch size | the learning rate: linear for LARS and SGD, the square root for Adam and AdamW |
    | size of the views | the stem of a ResNet: small for views of at most 64 px, else standard |
    | backbone | timm's own arguments instead of the recipe's, and the stem; d0 of DirectCLR (`leading_share`) |
    | batch size | the last width of the projector, for W-MSE: half the batch, if it is not smaller than the batch |
    | optimizer | its learning rate for this batch, and its weight decay, without biases and norms (`OPTIMIZERS`) |
    | batch size, projector, number of views, `log` | the weights of FroSSL's terms, which keep their balance |

    A published recipe equals its publication as long as none of these is given.

    >>> following(Recipe(), {"epochs": 20, "batch_size": 128})
    {'optimizer.lr': 0.15, 'schedule.warmup': 4.0, 'hyper.invariance': 0.5}
    """
    wanted, found = with_fields(recipe, given), {}
    optimizer, ratio = wanted.optimizer.name, wanted.batch_size / recipe.batch_size
    if optimizer != recipe.optimizer.name:
        found["optimizer.lr"] = scaled(OPTIMIZERS[optimizer], wanted.batch_size / 256)
        for name in ("weight_decay", "last_weight_decay", "decay_all"):
            found[f"optimizer.{name}"] = getattr(OPTIMIZERS[optimizer], name)
    elif ratio != 1 and recipe.name not in SAME_RATE_FOR_ANY_BATCH:
        found["optimizer.lr"] = scaled(recipe.optimizer, ratio)
    if "epochs" in given:
        found["schedule.warmup"] = min(recipe.schedule.warmup, wanted.epochs / WARMUPS)
        waits = () if recipe.method_builder else [name for name in WAITS if name in recipe.method]
        found |= {f"method.{name}": min(recipe.method[name], wanted.epochs / WARMUPS) for name in waits}
    before, after = (max(view.size for view in each.views) for each in (recipe, wanted))
    if "backbone.name" in given:
        check_name(wanted.backbone.name)
        found |= {"backbone.arguments": {}, "backbone.stem": stem_for(wanted.backbone.name, after)}
    elif (before <= LARGEST_SMALL_STEM) != (after <= LARGEST_SMALL_STEM):
        found["backbone.stem"] = stem_for(recipe.backbone.name, after)
    balance, balanced = balanced_weights(recipe), balanced_weights(wanted)
    own = wanted.objective == "frossl"  # the weights of other objectives stay as published
    changed = [name for name in balance if own and name in balanced and balance[name] != balanced[name]]
    found |= {f"hyper.{name}": recipe.hyper[name] * balanced[name] / balance[name] for name in changed}
    if wanted.objective == "wmse" and not wanted.hyper["epsilon"]:
        (*hidden, D), N = wanted.projector.widths or (0,), wanted.batch_size
        N = min(N, wanted.hyper["slice_size"] or N)
        found |= {"projector.widths": [*hidden, N // 2]} if D >= N else {}
    found = {name: value for name, value in found.items() if not is_below(name, given)}
    backbone = with_fields(recipe, {**found, **given}).backbone
    if backbone != recipe.backbone and not is_below("hyper.d0", given):
        found |= {f"hyper.{name}": value for name, value in leading_share(wanted.objective, backbone).items()}
    return found


def is_trained(init: str) -> bool:
    """Return whether a run with this `init` starts with trained weights.

    >>> is_trained("timm:resnet18"), is_trained("timm-untrained:resnet18"), is_trained("")
    (True, False, False)
    """
    return bool(init) and not init.startswith("timm-untrained:")


@dataclass(frozen=True, kw_only=True)
class Start:
    """A MODEL whose weights a run starts with.

    Attributes:
        model: The MODEL, with an absolute path and with the step of a run.
        hash: SHA-256 of the weights of its backbone.
        backbone: Its network, without a size of the images.
        size: Side of its images in pixels.
        note: What is known about weights of another library.
    """

    model: str
    hash: str
    backbone: BackboneConfig
    channels: int
    size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    note: str = ""

    def channels_for(self, channels: int) -> int:
        """Return the number of channels of the images of a run: those of the model, if images of `channels` channels
        can be converted to them, between gray and RGB.
        """
        return self.channels if channels in CONVERTED and self.channels in CONVERTED else channels

    def normalization(self, channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return the mean and the standard deviation of each channel; empty if they are computed from the images,
        as for a model that was not trained.
        """
        if not is_trained(self.model):
            return (), ()
        if channels == self.channels:
            return self.mean, self.std
        if channels == 1 and self.mean:
            return (sum(self.mean) / self.channels,), (sum(self.std) / self.channels,)
        return (), ()


def with_start(recipe: Recipe, start: Start, *, channels: int | None = None) -> Recipe:
    """Return the recipe that starts with the weights of a MODEL.

    | field | value |
    |---|---|
    | backbone | that of the model |
    | channels | those of the model, if model and images are gray or RGB; else those of the images |
    | mean, std | those of the model; for gray images and an RGB model, their means; for other channels, the images' |

    Learning rate and warm-up are those of the recipe: docs/start-from-weights.md has what a lower rate did. A model
    that was not trained (`timm-untrained:NAME`) leaves the mean and std of the images.

    Args:
        recipe: the recipe, with the choices of the user but for single flags.
        start: the model.
        channels: the number of channels that the user gave.

    >>> of_imagenet = {"channels": 3, "size": 224, "mean": (), "std": ()}
    >>> start = Start(model="timm:resnet50", hash="", backbone=BackboneConfig(name="resnet50"), **of_imagenet)
    >>> with_start(Recipe(epochs=100), start).backbone.name
    'resnet50'
    """
    channels = channels or start.channels_for(recipe.data.channels)
    mean, std = start.normalization(channels)
    data = replace(recipe.data, channels=channels, mean=mean, std=std)
    return replace(recipe, init=start.model, init_hash=start.hash, backbone=start.backbone, data=data)


def explain_start(recipe: Recipe, start: Start) -> Iterator[str]:
    """Yield lines about the final recipe of a run that starts with the weights of a MODEL."""
    if start.note:
        yield start.note
    data, size = recipe.data, max(view.size for view in recipe.views)
    adapted = "" if data.channels == start.channels else f" instead of its {start.channels}"
    sizes = "" if size == start.size else f", views of {size} px (--views.0.size), its images have {start.size}"
    yield f"the backbone starts with the weights of {start.model}: {data.channels} channels{adapted}{sizes}"
