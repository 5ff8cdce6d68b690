"""Backbones: any timm model by its name, with a stem for small images."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import timm
import torch
from timm.models.resnet import BasicBlock, Bottleneck, ResNet
from torch import Tensor, nn

from fullrank.errors import UserError, explain_errors, suggest
from fullrank.methods.config import BackboneConfig

MAX_PARAMETERS = 2**33  # 32 GiB; the largest network of timm has 6.7 billion


def build_backbone(config: BackboneConfig, *, channels: int = 3) -> nn.Module:
    """Build the network: images (n, channels, S, S) to pooled features (n, D), with D = `feature_dim(network)`.

    No image passes through the network, so the statistics of its BatchNorm layers have their initial values.
    Weights are drawn from torch's global generator.

    Args:
        config: the configuration of the network.
        channels: number of channels of the images.

    Raises:
        UserError: the model is unknown or does not take the arguments, or the small stem or `last_residual=False` is
            requested for a network that is not a timm ResNet.

    >>> build_backbone(BackboneConfig(name="resnet18", stem="small"), channels=1).conv1
    Conv2d(1, 64, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1), bias=False)
    """
    check_name(config.name)
    if config.arguments.get("features_only") or config.arguments.get("global_pool") == "":
        expected = "expected a network that gives one vector per image"
        raise UserError(f"backbone arguments {config.arguments} remove the pooling, {expected}")
    # `pretrained` is given here, so that the arguments cannot load pretrained weights.
    arguments: Any = {**config.arguments, "pretrained": False, "num_classes": 0, "in_chans": channels}
    failed = f"backbone '{config.name}' cannot be built with {config.arguments}"
    with explain_errors(failed, "fix backbone.arguments"):
        with torch.device("meta"):  # nothing is allocated
            size = sum(p.numel() for p in timm.create_model(config.name, **arguments).parameters())
        if size > MAX_PARAMETERS:
            raise ValueError(f"{size / 1e9:,.1f} billion parameters are more than {MAX_PARAMETERS / 1e9:.1f}")
        network = timm.create_model(config.name, **arguments)
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
        hint = suggest(name, timm.list_models())
        raise UserError(f"unknown backbone '{name}'; choose a timm model such as resnet18{hint}")
    try:
        timm.get_pretrained_cfg(name)
    except RuntimeError as error:  # an unknown tag: NAME.TAG
        remedy = f"choose a timm model such as {name.partition('.')[0]}"
        raise UserError(f"unknown backbone '{name}' ({error}); {remedy}") from error


def use_small_stem(network: nn.Module, name: str) -> None:
    """Replace the stem of a timm ResNet by one 3×3 convolution of stride 1, padding 1, without max-pooling.

    With padding 1, a map of 32×32 stays 32×32; the padding of 2 in several public recipes is an error.

    Raises:
        UserError: the network is not a timm ResNet, or its stem has three convolutions.
    """
    if not (isinstance(network, ResNet) and isinstance(network.conv1, nn.Conv2d)):
        needed = "needs one of timm's plain ResNets"
        raise UserError(f"backbone.stem 'small' {needed}, got backbone '{name}'; use 'standard'")
    old = network.conv1
    network.conv1 = nn.Conv2d(old.in_channels, old.out_channels, kernel_size=3, stride=1, padding=1, bias=False)
    nn.init.kaiming_normal_(network.conv1.weight, mode="fan_out", nonlinearity="relu")  # as in timm
    network.maxpool = nn.Identity()


def has_plain_stem(name: str) -> bool:
    """Return whether timm's network of this name is a ResNet whose stem is one convolution, which `use_small_stem` can
    replace.

    >>> has_plain_stem("resnet50"), has_plain_stem("resnet50d"), has_plain_stem("vit_tiny_patch16_224")
    (True, False, False)
    """
    if not timm.is_model(name):
        return False
    cfg = timm.get_pretrained_cfg(name)
    return (
        timm.model_entrypoint(name).__module__ == "timm.models.resnet" and cfg is not None and cfg.first_conv == "conv1"
    )


def is_built_for_one_size(name: str) -> bool:
    """Return whether timm's network of this name has a fixed size of images, as vision transformers have.

    >>> is_built_for_one_size("vit_tiny_patch16_224"), is_built_for_one_size("resnet50")
    (True, False)
    """
    cfg = timm.get_pretrained_cfg(name)
    return cfg is not None and cfg.fixed_input_size


def at_size(config: BackboneConfig, sizes: Collection[int]) -> BackboneConfig:
    """Return the configuration of the network for images of these sizes.

    Most networks take images of any size. Others, such as a ViT, are built for one size: they get the largest one as
    `img_size` and, if there are several, `dynamic_img_size`, which interpolates the position embeddings. Arguments in
    `config` take precedence.

    >>> at_size(BackboneConfig(name="vit_tiny_patch16_224"), [96]).arguments
    {'img_size': 96}
    """
    if not is_built_for_one_size(config.name):
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
        needed = "the last residual block is defined only for timm's ResNets"
        raise UserError(f"{needed}, got backbone '{name}'; choose resnet18")
    return block


def drop_last_shortcut(network: nn.Module, name: str) -> None:
    """Remove the shortcut from the last block of a timm ResNet.

    The weight of the block's last BatchNorm is set to one. With timm's initial value zero, a block without shortcut
    would output zero.

    Raises:
        UserError: the network is not a timm ResNet.
    """
    block = last_block(network, name)
    block.downsample = NoShortcut()
    last = block.bn3 if isinstance(block, Bottleneck) else block.bn2
    nn.init.ones_(last.weight)  # pyright: ignore[reportArgumentType]


def freeze(network: nn.Module, names: Collection[str]) -> None:
    """Exclude parts of a network from training, by the names of modules or parameters.

    Raises:
        UserError: the network has no parameters below a name, or all of its parameters would be frozen.

    >>> network = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    >>> freeze(network, ["0"])
    >>> [parameter.requires_grad for parameter in network.parameters()]
    [False, False, True, True]
    """
    for name in names:
        found = [parameter for path, parameter in network.named_parameters() if f"{path}.".startswith(f"{name}.")]
        if not found:
            parts = [part for part, child in network.named_children() if any(True for _ in child.parameters())]
            known = f"only {', '.join(parts)}{suggest(name, parts)}"
            raise UserError(f"optimizer.frozen names '{name}', but the backbone has no such weights, {known}")
        for parameter in found:
            parameter.requires_grad_(False)
    if names and not any(parameter.requires_grad for parameter in network.parameters()):
        raise UserError(f"optimizer.frozen {' '.join(names)} freezes the whole backbone; name fewer parts")


def feature_dim(network: nn.Module) -> int:
    """Return the number D of features of a timm network that was built with `num_classes=0`.

    This is timm's `head_hidden_size`; timm's `num_features` ignores a layer between pooling and classifier. A network
    of a user's may have `num_features` only.

    Raises:
        UserError: the network has neither.

    >>> network = build_backbone(BackboneConfig(name="mobilenetv3_small_050"))
    >>> feature_dim(network), network.num_features
    (1024, 288)
    """
    features = getattr(network, "head_hidden_size", None) or getattr(network, "num_features", None)
    if not isinstance(features, int):
        remedy = "set network.num_features in its function"
        raise UserError(f"{type(network).__name__} does not say how many features it has; {remedy}")
    return features
