"""Backbones: any timm model by its name, with an explicit stem for small images."""

import json
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import timm
import tyro
from timm.models.resnet import BasicBlock, Bottleneck, ResNet
from torch import Tensor, nn

from fullrank.errors import UserError, suggest


def _json_object(words: list[str]) -> dict[str, Any]:
    value = json.loads(words[0])
    if not isinstance(value, dict):
        raise ValueError(f"{words[0]} is no JSON object")
    return value


Json = Annotated[
    dict[str, Any],
    tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="JSON",
        instance_from_str=_json_object,
        is_instance=lambda value: isinstance(value, dict),
        str_from_instance=lambda value: [json.dumps(value)],
    ),
]
"""A JSON object on the command line."""


@dataclass(frozen=True, kw_only=True)
class BackboneConfig:
    """Which network maps an image to its representation."""

    name: str = "resnet18"
    """A timm model, without pretrained weights."""
    arguments: Json = field(default_factory=dict)
    """Further arguments of `timm.create_model`, as JSON, such as {"channels": [32, 64, 96, 128]}."""
    stem: Literal["standard", "small"] = "standard"
    """'small', for images of about 32 px: a timm ResNet begins with a 3×3 convolution of stride 1, without max-pooling."""
    last_residual: bool = True
    """Without it, the last block of a timm ResNet has no shortcut: its representation comes from its convolutions alone."""


def build_backbone(spec: BackboneConfig, *, channels: int = 3) -> nn.Module:
    """Build the network: images (n, channels, S, S) to pooled features (n, D), with D = `feature_dim(network)`.

    No image is passed through it to learn D, so that the statistics of its BatchNorm are still those of its construction.
    Weights are drawn from torch's global generator, as every `nn.Module` draws them.

    Args:
        spec: which network.
        channels: of the images.

    Raises:
        UserError: no such model, arguments that it does not take, or a small stem or no last shortcut asked of anything but a timm
            ResNet.

    >>> build_backbone(BackboneConfig(name="resnet18", stem="small"), channels=1).conv1
    Conv2d(1, 64, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1), bias=False)
    """
    if not timm.is_model(spec.name):
        raise UserError(f"unknown backbone '{spec.name}'; choose a timm model such as resnet18{suggest(spec.name, timm.list_models())}")
    if spec.arguments.get("features_only") or spec.arguments.get("global_pool") == "":
        raise UserError(f"backbone arguments {spec.arguments} leave out the pooling, expected a network that gives one vector an image")
    try:
        # `pretrained` is given, so that it cannot come in among the arguments: what is learnt here is learnt from the images.
        network = timm.create_model(spec.name, pretrained=False, num_classes=0, in_chans=channels, **spec.arguments)
    except Exception as error:  # timm's constructors answer an argument that they cannot use with any type
        reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        raise UserError(f"backbone '{spec.name}' cannot be built with {spec.arguments} ({reason}); mend --backbone.arguments") from error
    if spec.stem == "small":
        use_small_stem(network, spec.name)
    if not spec.last_residual:
        drop_last_shortcut(network, spec.name)
    return network


def use_small_stem(network: nn.Module, name: str) -> None:
    """Replace the stem of a timm ResNet by one 3×3 convolution of stride 1, padding 1, without max-pooling.

    The padding is 1, so that a map of 32×32 stays one: the padding of 2 in several public recipes is an inherited slip.

    Raises:
        UserError: any other network, or a ResNet with a deep stem, of three convolutions.
    """
    if not (isinstance(network, ResNet) and isinstance(network.conv1, nn.Conv2d)):
        raise UserError(f"stem 'small' is defined for timm's plain ResNets, got backbone '{name}'; use --backbone.stem standard")
    old = network.conv1
    network.conv1 = nn.Conv2d(old.in_channels, old.out_channels, kernel_size=3, stride=1, padding=1, bias=False)
    nn.init.kaiming_normal_(network.conv1.weight, mode="fan_out", nonlinearity="relu")  # as timm initialises a ResNet
    network.maxpool = nn.Identity()


class NoShortcut(nn.Module):
    """A shortcut that adds nothing, whatever the shape of what it is added to."""

    def forward(self, x: Tensor) -> Tensor:
        """Return 0."""
        return x.new_zeros(())


def last_block(network: nn.Module, name: str) -> BasicBlock | Bottleneck:
    """Return the last residual block of a timm ResNet, whose pooled output is the representation.

    Raises:
        UserError: any other network.

    >>> type(last_block(build_backbone(BackboneConfig(name="resnet18")), "resnet18")).__name__
    'BasicBlock'
    """
    block = list(network.get_submodule("layer4").children())[-1] if isinstance(network, ResNet) else None
    if not isinstance(block, BasicBlock | Bottleneck):
        raise UserError(f"the last residual block is known of timm's ResNets alone, got backbone '{name}'; take one, such as resnet18")
    return block


def drop_last_shortcut(network: nn.Module, name: str) -> None:
    """Take the shortcut from the last block of a timm ResNet.

    Its last BatchNorm, which timm sets to zero so that a block begins as its shortcut, begins at one: nothing would pass it.

    Raises:
        UserError: any other network.
    """
    block = last_block(network, name)
    block.downsample = NoShortcut()
    last = block.bn3 if isinstance(block, Bottleneck) else block.bn2
    nn.init.ones_(last.weight)  # pyright: ignore[reportArgumentType]


def feature_dim(network: nn.Module) -> int:
    """Return the number D of features of a timm network that was built with `num_classes=0`.

    It is timm's `head_hidden_size` and not its `num_features`, which leaves out a layer between pooling and classifier.

    >>> network = build_backbone(BackboneConfig(name="mobilenetv3_small_050"))
    >>> feature_dim(network), network.num_features
    (1024, 288)
    """
    return int(network.head_hidden_size)  # pyright: ignore[reportArgumentType]  every timm model has it
