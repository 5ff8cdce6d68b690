"""The flags of the commands that take a MODEL: how its images are read, where it runs, and files of other libraries."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from fullrank.config import config
from fullrank.errors import UserError
from fullrank.images.reading import Device, Reading
from fullrank.methods import BackboneConfig
from fullrank.methods.config import Json
from fullrank.models import Model, load
from fullrank.run.terminal import stderr

# How the images are read; what is not given is as in the run, or as usual.
ReadingFlags = Annotated[Reading, tyro.conf.arg(name="data")]
# Where the network runs, and how images come to it.
DeviceFlags = Annotated[Device, tyro.conf.arg(name="")]


@config
class BackboneOptions:
    """The network of a file that another library wrote.

    Attributes:
        name: A timm model. Only for a file:PATH that `fullrank export` did not write, such as weights of torchvision,
            solo-learn or lightly.
        stem: 'small': the ResNet starts with a 3×3 convolution of stride 1, as for CIFAR.
        arguments: Further arguments of `timm.create_model`, as JSON.
    """

    name: str | None = None
    stem: Literal["standard", "small"] = "standard"
    arguments: Json = field(default_factory=dict)


@dataclass(frozen=True)
class ModelOptions:
    """The network of a file that another library wrote, and its preprocessing.

    Attributes:
        channels: Channels of the images of such a network; 3 by default.
        size: Side of its images in pixels; by default the size that timm gives for the network.
        mean: Mean of each channel, for pixels in [0, 1]; by default timm's.
        std: Standard deviation of each channel; by default timm's.
    """

    backbone: BackboneOptions = field(default_factory=BackboneOptions)
    channels: int | None = None
    size: int | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None


# The fields of `ModelOptions` as flags without a prefix.
ModelFlags = Annotated[ModelOptions, tyro.conf.arg(name="")]


def load_model(model: str, options: ModelOptions) -> Model:
    """Load a MODEL, and print what is known about the weights of another library."""
    given: dict[str, Any] = vars(options.backbone) | {"name": options.backbone.name or "resnet18"}
    backbone = None if options.backbone == BackboneOptions() else BackboneConfig(**given)
    values: dict[str, Any] = vars(options) | {"backbone": backbone}
    loaded = load(model, **values)
    if loaded.note:
        stderr().print(loaded.note)
    return loaded


def check_new(path: Path | None, *, overwrite: bool) -> None:
    """Check before the work that a file of --out can be written.

    Raises:
        UserError: it exists.
    """
    if path is not None and path.exists() and not overwrite:
        raise UserError(f"{path} exists already; choose another name, or replace it with --overwrite")


def update_report(path: Path) -> None:
    """Write the report of a run again, and print where it is."""
    from fullrank.report import write_report  # here, because it takes a second

    stderr().print(f"scores: {path / 'evaluation.json'}")
    stderr().print(f"report: {write_report([path], path / 'report.html')}")
