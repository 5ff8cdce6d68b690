"""Backbones: any timm model by its name, with a stem for small images."""

import inspect
import json
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

import timm
import torch
from timm.models import build_model_with_cfg
from timm.models.resnet import BasicBlock, Bottleneck, ResNet
from torch import Tensor, nn

from fullrank.errors import UserError, suggest
from fullrank.flag_types import parsed_by
from fullrank.structure import Requirement, is_json, validate


def _json_object(words: list[str]) -> dict[str, Any]:
    try:
        value = json.loads(words[0])
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError(f"{words[0]} is not a JSON object")
    return value


Json = Annotated[
    dict[str, Any],
    Requirement("of JSON values with finite numbers", is_json),
    parsed_by(_json_object, json.dumps, dict, "JSON"),
]
"""A JSON object on the command line."""
ModelName = Annotated[str, Requirement("that is a name in timm.list_models()", lambda name: bool(re.fullmatch(r"[\w.-]+", name, re.ASCII)))]
"""The name of a network in timm. The names with a colon, such as hf-hub:… and local-dir:…, would load files."""

NOT_ARCHITECTURE = {
    *inspect.signature(timm.create_model).parameters,
    *inspect.signature(build_model_with_cfg).parameters,
    *("kwargs", "num_classes", "in_chans", "device", "dtype", "out_indices", "feature_cls"),
}
"""Arguments of timm that load files, fill the network with weights, change global settings, or that the recipe itself sets."""
LOADS = re.compile(r"pretrained|checkpoint_|cache|weights|url|file|(^|_)hub(_|$)")
WORD = re.compile(r"[\w-]{0,40}", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class BackboneConfig:
    """The network that maps an image to its representation."""

    name: ModelName = "resnet18"
    """A timm model, without pretrained weights."""
    arguments: Json = field(default_factory=dict)
    """Further arguments of the network's architecture, as JSON, such as {"channels": [32, 64, 96, 128]}."""
    stem: Literal["standard", "small"] = "standard"
    """'small', for images of about 32 px: the ResNet starts with a 3×3 convolution of stride 1, without max-pooling."""
    last_residual: bool = True
    """False: the last block of the ResNet has no shortcut, and the representation comes only from its convolutions."""

    def __post_init__(self) -> None:
        validate(self, "backbone.")
        for name, value in self.arguments.items():
            _check_argument(name, value)


def _check_argument(name: str, value: Any) -> None:
    """Check that an argument describes an architecture: no file, no weights, and numbers of a sensible size.

    Raises:
        UserError: it does not.
    """
    what = f"backbone.arguments: '{name}'"
    if name in NOT_ARCHITECTURE or LOADS.search(name):
        raise UserError(f"{what} is not an argument of an architecture, such as channels, layers or img_size; remove it")
    for leaf in _leaves(value):
        if isinstance(leaf, str) and not WORD.fullmatch(leaf):
            raise UserError(f"{what} is {leaf!r}, expected a word of letters, digits, '_' and '-', or numbers; change it")
        if isinstance(leaf, int | float) and not isinstance(leaf, bool):
            high = 1 if "drop" in name else 65536
            if not (0 if "drop" in name else -high) <= leaf <= high:
                raise UserError(f"{what} is {leaf}, expected a number from {0 if 'drop' in name else -high} to {high}; change it")


def _leaves(value: Any) -> Iterator[Any]:
    branches = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else None
    if branches is None:
        yield value
    else:
        for branch in branches:
            yield from _leaves(branch)


def build_backbone(config: BackboneConfig, *, channels: int = 3) -> nn.Module:
    """Build the network: images (n, channels, S, S) to pooled features (n, D), with D = `feature_dim(network)`.

    No image passes through the network, so the statistics of its BatchNorm layers have their initial values.
    Weights are drawn from torch's global generator.

    Args:
        config: the configuration of the network.
        channels: number of channels of the images.

    Raises:
        UserError: the model is unknown or does not take the arguments, or the small stem or `last_residual=False` is requested for a
            network that is not a timm ResNet.

    >>> build_backbone(BackboneConfig(name="resnet18", stem="small"), channels=1).conv1
    Conv2d(1, 64, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1), bias=False)
    """
    check_name(config.name)
    if config.arguments.get("features_only") or config.arguments.get("global_pool") == "":
        raise UserError(f"backbone arguments {config.arguments} remove the pooling, expected a network that gives one vector per image")
    try:
        # `pretrained` is given here, so that the arguments cannot load pretrained weights.
        network = timm.create_model(config.name, pretrained=False, num_classes=0, in_chans=channels, **config.arguments)
    except Exception as error:  # timm raises exceptions of many types
        reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        raise UserError(f"backbone '{config.name}' cannot be built with {config.arguments} ({reason}); fix backbone.arguments") from error
    if config.stem == "small":
        use_small_stem(network, config.name)
    if not config.last_residual:
        drop_last_shortcut(network, config.name)
    return network


def check_name(name: str) -> None:
    """Check that timm has a network of this name.

    Raises:
        UserError: timm has none.
    """
    if not timm.is_model(name):
        raise UserError(f"unknown backbone '{name}'; choose a timm model such as resnet18{suggest(name, timm.list_models())}")
    try:
        timm.get_pretrained_cfg(name)
    except RuntimeError as error:  # an unknown tag: NAME.TAG
        raise UserError(f"unknown backbone '{name}' ({error}); choose a timm model such as {name.partition('.')[0]}") from error


def use_small_stem(network: nn.Module, name: str) -> None:
    """Replace the stem of a timm ResNet by one 3×3 convolution of stride 1, padding 1, without max-pooling.

    With padding 1, a map of 32×32 stays 32×32; the padding of 2 in several public recipes is an error.

    Raises:
        UserError: the network is not a timm ResNet, or its stem has three convolutions.
    """
    if not (isinstance(network, ResNet) and isinstance(network.conv1, nn.Conv2d)):
        raise UserError(f"backbone.stem 'small' needs one of timm's plain ResNets, got backbone '{name}'; use 'standard'")
    old = network.conv1
    network.conv1 = nn.Conv2d(old.in_channels, old.out_channels, kernel_size=3, stride=1, padding=1, bias=False)
    nn.init.kaiming_normal_(network.conv1.weight, mode="fan_out", nonlinearity="relu")  # as in timm
    network.maxpool = nn.Identity()


def has_plain_stem(name: str) -> bool:
    """Return whether timm's network of this name is a ResNet whose stem is one convolution, which `use_small_stem` can replace.

    >>> has_plain_stem("resnet50"), has_plain_stem("resnet50d"), has_plain_stem("vit_tiny_patch16_224")
    (True, False, False)
    """
    if not timm.is_model(name):
        return False
    cfg = timm.get_pretrained_cfg(name)
    return timm.model_entrypoint(name).__module__ == "timm.models.resnet" and cfg is not None and cfg.first_conv == "conv1"


def at_size(config: BackboneConfig, sizes: Collection[int]) -> BackboneConfig:
    """Return the configuration of the network for images of these sizes.

    Most networks take images of any size. Others, such as a ViT, are built for one size: they get the largest one as `img_size` and, if
    there are several, `dynamic_img_size`, which interpolates the position embeddings. Arguments in `config` take precedence.

    >>> at_size(BackboneConfig(name="vit_tiny_patch16_224"), [96]).arguments
    {'img_size': 96}
    """
    cfg = timm.get_pretrained_cfg(config.name)
    if cfg is None or not cfg.fixed_input_size:
        return config
    arguments: dict[str, Any] = {"img_size": max(sizes)}
    if len(set(sizes)) > 1 and _takes_any_size(config.name):
        arguments["dynamic_img_size"] = True
    return replace(config, arguments=arguments | config.arguments)


def _takes_any_size(name: str) -> bool:
    try:
        with torch.device("meta"):
            timm.create_model(name, dynamic_img_size=True)
    except TypeError:
        return False
    return True


class NoShortcut(nn.Module):
    """A shortcut that adds zero to an output of any shape."""

    def forward(self, x: Tensor) -> Tensor:
        """Return 0."""
        return x.new_zeros(())


def last_block(network: nn.Module, name: str) -> BasicBlock | Bottleneck:
    """Return the last residual block of a timm ResNet. The pooled output of this block is the representation.

    Raises:
        UserError: the network is not a timm ResNet.

    >>> type(last_block(build_backbone(BackboneConfig(name="resnet18")), "resnet18")).__name__
    'BasicBlock'
    """
    block = list(network.get_submodule("layer4").children())[-1] if isinstance(network, ResNet) else None
    if not isinstance(block, BasicBlock | Bottleneck):
        raise UserError(f"the last residual block is defined only for timm's ResNets, got backbone '{name}'; choose resnet18 or another")
    return block


def drop_last_shortcut(network: nn.Module, name: str) -> None:
    """Remove the shortcut from the last block of a timm ResNet.

    The weight of the block's last BatchNorm is set to one. With timm's initial value zero, a block without shortcut would output zero.

    Raises:
        UserError: the network is not a timm ResNet.
    """
    block = last_block(network, name)
    block.downsample = NoShortcut()
    last = block.bn3 if isinstance(block, Bottleneck) else block.bn2
    nn.init.ones_(last.weight)  # pyright: ignore[reportArgumentType]


def feature_dim(network: nn.Module) -> int:
    """Return the number D of features of a timm network that was built with `num_classes=0`.

    This is timm's `head_hidden_size`; timm's `num_features` ignores a layer between pooling and classifier. A network of a user's may have
    `num_features` only.

    Raises:
        UserError: the network has neither.

    >>> network = build_backbone(BackboneConfig(name="mobilenetv3_small_050"))
    >>> feature_dim(network), network.num_features
    (1024, 288)
    """
    features = getattr(network, "head_hidden_size", None) or getattr(network, "num_features", None)
    if not isinstance(features, int):
        raise UserError(f"{type(network).__name__} does not say how many features it has; set network.num_features in its function")
    return features
