"""Backbones: any timm model by its name, with an explicit stem for small images."""

import json
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import timm
import tyro
from timm.models.resnet import ResNet
from torch import nn

from fullrank.errors import UserError, perhaps


Json = Annotated[
    dict[str, Any],
    tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="JSON",
        instance_from_str=lambda words: json.loads(words[0]),
        is_instance=lambda value: isinstance(value, dict),
        str_from_instance=lambda value: [json.dumps(value)],
    ),
]
"""A JSON object on the command line."""


@dataclass(frozen=True, kw_only=True)
class Backbone:
    """Which network maps an image to its representation."""

    name: str = "resnet18"
    """A timm model, without pretrained weights."""
    arguments: Json = field(default_factory=dict)
    """Further arguments of `timm.create_model`, as JSON, such as {"channels": [32, 64, 96, 128]}."""
    stem: Literal["standard", "small"] = "standard"
    """'small' replaces the first convolution of a timm ResNet by 3×3 with stride 1 and drops its max-pooling (for images of about 32 px)."""


def build_backbone(spec: Backbone, *, channels: int = 3) -> nn.Module:
    """Build the network: float32 images (n, channels, S, S) to pooled features (n, `features_of(network)`).

    The number of features is read from the network's own attributes: no image is passed through it, so that the statistics
    of its BatchNorm are still those of its construction.

    Raises:
        UserError: no such model, arguments that it does not take, or a small stem asked of anything but a plain timm ResNet.
    """
    if not timm.is_model(spec.name):
        raise UserError(f"unknown backbone '{spec.name}'; choose a timm model such as resnet18{perhaps(spec.name, timm.list_models())}")
    try:
        network = timm.create_model(spec.name, num_classes=0, in_chans=channels, **spec.arguments)
    except (TypeError, ValueError, RuntimeError, AssertionError) as error:
        raise UserError(f"backbone '{spec.name}' cannot be built with arguments {spec.arguments}: {error}; see timm.create_model") from error
    if spec.stem == "small":
        use_small_stem(network, spec.name)
    return network


def use_small_stem(network: nn.Module, name: str) -> None:
    """Replace the stem of a timm ResNet by one 3×3 convolution of stride 1, padding 1, without max-pooling.

    The padding is 1, so that a map of 32×32 stays one: the padding of 2 in several public recipes is an inherited slip.
    """
    if not (isinstance(network, ResNet) and isinstance(network.conv1, nn.Conv2d)):
        raise UserError(f"stem 'small' is defined for timm's plain ResNets, got backbone '{name}'; use --backbone.stem standard")
    old = network.conv1
    network.conv1 = nn.Conv2d(old.in_channels, old.out_channels, kernel_size=3, stride=1, padding=1, bias=False)
    nn.init.kaiming_normal_(network.conv1.weight, mode="fan_out", nonlinearity="relu")      # as timm initialises a ResNet
    network.maxpool = nn.Identity()


def features_of(network: nn.Module) -> int:
    """Return the number of features of a timm network that was built with `num_classes=0`."""
    return int(network.head_hidden_size)      # pyright: ignore[reportArgumentType]  every timm model has it
