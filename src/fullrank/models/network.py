"""What all kinds of MODEL share: the untrained network, its preprocessing by timm, and checks of weights."""

import math
from collections.abc import Mapping
from textwrap import shorten
from typing import Any

import timm
import timm.data
import torch
from torch import Tensor, nn

from fullrank.errors import UserError
from fullrank.images import Preprocess
from fullrank.methods import BackboneConfig, build_backbone


def build_untrained(spec: BackboneConfig, channels: int) -> nn.Module:
    """Build the network with random weights, equal at each call; torch's global generator is unchanged."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        return build_backbone(spec, channels=channels)


def timm_preprocess(network: nn.Module) -> Preprocess:
    """Return the preprocessing with timm's size, resize, mean and standard deviation."""
    return preprocess_from_config(timm.data.resolve_model_data_config(network))


def preprocess_from_config(data: dict[str, Any]) -> Preprocess:
    channels, size, _ = data["input_size"]
    resize = math.floor(size / data["crop_pct"]) if data["crop_mode"] == "center" else size
    mean, std = (tuple(map(float, data[name])) for name in ("mean", "std"))
    return Preprocess(int(channels), int(size), mean, std, resize=resize if resize > size else 0)


def check_preprocess(preprocess: Preprocess, what: str) -> None:
    """Check size and statistics.

    Raises:
        UserError: a value does not fit.
    """
    if not (1 <= preprocess.channels <= 2**12 and 1 <= preprocess.size <= 2**14):
        raise UserError(
            f"{what}: channels is {preprocess.channels} and size is {preprocess.size}, expected 1 to 4096 channels and 1 to 16384 px"
        )
    if preprocess.resize and not preprocess.size <= preprocess.resize <= 2**15:
        raise UserError(
            f"{what}: resize is {preprocess.resize}, expected 0, or at least the size of {preprocess.size} px and at most 32768"
        )
    for name, values in (("mean", preprocess.mean), ("std", preprocess.std)):
        if len(values) != preprocess.channels or not all(
            math.isfinite(value) and (name == "mean" or value > 0) for value in values
        ):
            kind = "positive values" if name == "std" else "values"
            raise UserError(
                f"{what}: {name} is {values}, expected {preprocess.channels} {kind}, one per channel (--{name})"
            )


def first_convolutions(network: nn.Module) -> list[str]:
    """Return the names of the weights that take the channels of the image, as timm describes the network.

    >>> first_convolutions(timm.create_model("test_resnet"))
    ['conv1.0.weight']
    """
    names = (getattr(network, "pretrained_cfg", None) or {}).get("first_conv") or ()
    return [f"{name}.weight" for name in ([names] if isinstance(names, str) else names)]


def first_not_finite(weights: Mapping[str, Tensor]) -> str:
    """Return the name and the number of values of the first tensor with NaN or infinity, empty if all weights are
    finite.

    >>> first_not_finite({"a": torch.zeros(2), "b": torch.tensor([1.0, torch.nan])})
    "'b': 1 of 2 values"
    """
    for name, tensor in weights.items():
        if tensor.is_floating_point() and (count := int((~tensor.isfinite()).sum())):
            return f"'{name}': {count} of {tensor.numel()} values"
    return ""


def class_names(names: Any) -> tuple[str, ...]:
    return tuple(names) if isinstance(names, list) and all(isinstance(name, str) for name in names) else ()


def summarize(error: Exception) -> str:
    """Return the shortened message of an error, or the name of its type if the message is empty."""
    return shorten(str(error), 160, placeholder=" …") or type(error).__name__
