"""The flags of the commands that take a MODEL: how its images are read, where it runs, and files of other libraries."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from fullrank.errors import UserError
from fullrank.images.reading import Device, Reading
from fullrank.methods import BackboneConfig
from fullrank.models import Model, load
from fullrank.report import write_report
from fullrank.run.terminal import stderr

# How the images are read; what is not given is as in the run, or as usual.
ReadingFlags = Annotated[Reading, tyro.conf.arg(name="data")]
# Where the network runs, and how images come to it.
DeviceFlags = Annotated[Device, tyro.conf.arg(name="")]
ANYWHERE = Device()

# The network of weights that say by themselves what they belong to.
UNKNOWN = BackboneConfig(name="unknown")


@dataclass(frozen=True)
class Network:
    """The network of a file that another library wrote, and its preprocessing.

    Attributes:
        backbone: The network of a file:PATH that `fullrank export` did not write, such as weights of torchvision,
            solo-learn or lightly. Its name is a timm model.
        channels: Channels of the images of such a network; 3 by default.
        size: Side of its images in pixels; by default the size that timm gives for the network.
        mean: Mean of each channel, for pixels in [0, 1]; by default timm's.
        std: Standard deviation of each channel; by default timm's.
    """

    backbone: BackboneConfig = UNKNOWN
    channels: int | None = None
    size: int | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None


# The fields of `Network` as flags without a prefix.
NetworkFlags = Annotated[Network, tyro.conf.arg(name="")]
NO_NETWORK = Network()


def load_model(model: str, network: Network) -> Model:
    """Load a MODEL, and print what is known about the weights of another library."""
    backbone = None if network.backbone == UNKNOWN else network.backbone
    values: dict[str, Any] = vars(network) | {"backbone": backbone}
    loaded = load(model, **values)
    if loaded.note:
        stderr().print(loaded.note)
    return loaded


def check_new(*paths: Path | None, overwrite: bool) -> None:
    """Check before the work that the files of --out can be written.

    Raises:
        UserError: one exists.
    """
    for path in paths:
        if path is not None and path.exists() and not overwrite:
            raise UserError(f"{path} exists already; choose another name, or replace it with --overwrite")


def update_report(path: Path) -> None:
    """Write the report of a run again, and print where it is."""
    stderr().print(f"scores: {path / 'evaluation.json'}")
    stderr().print(f"report: {write_report([path], path / 'report.html')}")
