"""The MODEL of a command, with the flags that describe the network of a file of another library."""

from dataclasses import field
from typing import Annotated, Any, Literal

import tyro

from fullrank.config import config
from fullrank.methods.config import BackboneConfig, Json
from fullrank.models import Model, load
from fullrank.run.terminal import stderr


@config
class BackboneOptions:
    """The network of a file that another library wrote."""

    name: str | None = None
    """A timm model. Only for a file:PATH that `fullrank export` did not write, such as weights of torchvision,
    solo-learn or lightly."""
    stem: Literal["standard", "small"] = "standard"
    """'small': the ResNet starts with a 3×3 convolution of stride 1, as for CIFAR."""
    arguments: Json = field(default_factory=dict)
    """Further arguments of `timm.create_model`, as JSON."""


@config
class ModelOptions:
    """The network of a file that another library wrote, and its preprocessing."""

    backbone: BackboneOptions = field(default_factory=BackboneOptions)
    channels: int | None = None
    """Channels of the images of such a network; 3 by default."""
    size: int | None = None
    """Side of its images in pixels; by default the size that timm gives for the network."""
    mean: tuple[float, ...] | None = None
    """Mean of each channel, for pixels in [0, 1]; by default timm's."""
    std: tuple[float, ...] | None = None
    """Standard deviation of each channel; by default timm's."""


ModelFlags = Annotated[ModelOptions, tyro.conf.arg(name="")]
"""The fields of `ModelOptions` as flags without a prefix."""


def load_model(model: str, options: ModelOptions) -> Model:
    """Load a MODEL, and print what is known about the weights of another library."""
    given: dict[str, Any] = vars(options.backbone) | {"name": options.backbone.name or "resnet18"}
    backbone = None if options.backbone == BackboneOptions() else BackboneConfig(**given)
    values: dict[str, Any] = vars(options) | {"backbone": backbone}
    loaded = load(model, **values)
    if loaded.note:
        stderr().print(loaded.note)
    return loaded
