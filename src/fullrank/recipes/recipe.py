"""A recipe: everything that decides a run, as nested frozen dataclasses that are saved as JSON beside it."""

import dataclasses
import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import tyro

from fullrank.errors import UserError
from fullrank.methods import BackboneConfig, ProjectorConfig
from fullrank.recipes.keywords import complete
from fullrank.recipes.named import import_function, resolve_builder, resolve_objective
from fullrank.structure import structure
from fullrank.training import OptimizerConfig, ScheduleConfig
from fullrank.views import ViewConfig


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Which images, and how they are held."""

    source: str = "digits"
    """digits, a path (folder or Parquet), folder:PATH, parquet:PATH or hf:NAME."""
    train: str | None = None
    """Name of the split to train on; None: 'train', or 80 % by seed where there are no named splits."""
    test: str | None = None
    """Name of the held-out split; None: 'test' or 'validation', or 20 % by seed where there are no named splits."""
    channels: int = 3
    """Channels of an image: 1 grey, 3 colour; any other number takes images with just as many."""
    mean: tuple[float, ...] = ()
    """Mean of each channel, in [0, 1]; empty: measured on the training images, and written into the run's recipe."""
    std: tuple[float, ...] = ()
    """Standard deviation of each channel, likewise."""
    storage: Literal["auto", "memory", "disk", "streaming"] = "auto"
    """'memory': the whole set as one uint8 tensor on the device; 'disk': decoded anew by workers; 'auto' decides by size.
    'streaming': nothing is downloaded ahead; images of hf:NAME arrive in their own order, shuffled in a buffer, and --data.num_images says
    how many make an epoch."""
    num_images: int = 0
    """Images of an epoch, for 'streaming' alone."""
    size: int = 0
    """Side at which images are held in memory; 0: as they are, which asks for one size."""
    workers: int = -1
    """Decoding processes of a stream; -1: one a core, less the trainer's."""
    max_error_fraction: float = 0.1
    """Share of unreadable files beyond which the run stops."""


@dataclass(frozen=True, kw_only=True)
class ProbeConfig:
    """The online linear probe; its loss is never part of the objective."""

    lr: float = 1e-2
    """Learning rate of its own optimizer."""


@dataclass(frozen=True, kw_only=True)
class SpectrumConfig:
    """The spectrum watch."""

    every: int = 0
    """Steps between two spectra of held-out images; 0: as often as 2 % of the run allows, at least 20 times."""
    samples: int = 0
    """Held-out images in a spectrum; 0: ten for each embedding dimension, down to two where the run is short, a gigabyte at most."""
    batch_every: int = 10
    """Steps between two looks at the training batch's leading eigenvalues."""


@dataclass(frozen=True, kw_only=True)
class MachineConfig:
    """Where and how fast; 'auto' takes what the machine offers."""

    accelerator: str = "auto"
    """auto, cpu, cuda or mps."""
    devices: int = 1
    """Number of devices (processes)."""
    micro_batch: int = 0
    """Images embedded at once on a device, where its share of the batch needs too much memory; 0: its whole share."""
    precision: Literal["auto", "32-true", "bf16-mixed", "64-true"] = "auto"
    """auto: bf16-mixed on a GPU that has it, 32-true elsewhere. The objective itself is always taken in float32 or better."""
    compile: bool = False
    """Pass the method through torch.compile."""
    channels_last: bool = True
    """Hold convolution weights in the channels-last layout."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything that decides a run.

    Raises:
        UserError: an unknown objective, or `hyper` or `method` with a number that it does not take.

    >>> Recipe(objective="vicreg", hyper={"covariance": 4}).hyper
    {'invariance': 25.0, 'variance': 25.0, 'covariance': 4.0}
    """

    name: tyro.conf.Suppress[str] = "recipe"
    """What the run is called."""
    objective: tyro.conf.Suppress[str] = "frossl"
    """A name in `fullrank.objectives.OBJECTIVES`, or a function of the user's own, package.module:function."""
    hyper: tyro.conf.Suppress[dict[str, Any]] = field(default_factory=dict)
    """The objective's numbers; completed from its signature."""
    method_builder: tyro.conf.Suppress[str] = ""
    """A function of the user's own that builds the method, package.module:builder; empty: the library's builder for the objective."""
    method: tyro.conf.Suppress[dict[str, Any]] = field(default_factory=dict)
    """The numbers of the method (queue, prototypes, momentum …); completed from the signature of its builder."""
    data: DataConfig = field(default_factory=DataConfig)
    views: tuple[ViewConfig, ...] = (ViewConfig(),)
    """The distributions of the views."""
    custom_transforms: tuple[str, ...] = ()
    """Further steps of the views before normalisation, as package.module:function, called as function(x, generator) with x
    (V, n, C, S, S) in [0, 1]."""
    backbone: BackboneConfig = field(default_factory=BackboneConfig)
    projector: ProjectorConfig = field(default_factory=ProjectorConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    epochs: int = 100
    """Passes over the images."""
    batch: int = 256
    """Images of the whole batch, over all devices."""
    seed: int = 0
    """Of the weights, the order and the views."""
    checkpoints: int = 10
    """Checkpoints over the run, evenly spaced, the last step's included."""
    log_every: int = 10
    """Steps between two lines of metrics.jsonl."""
    probe: ProbeConfig = field(default_factory=ProbeConfig)
    spectrum: SpectrumConfig = field(default_factory=SpectrumConfig)
    machine: MachineConfig = field(default_factory=MachineConfig)

    def __post_init__(self) -> None:
        try:
            objective = resolve_objective(self.objective)
            if self.method_builder:
                import_function(self.method_builder)
        except UserError:
            if ":" in self.objective + self.method_builder:  # a run's recipe is complete; only training needs the user's functions
                return
            raise
        builder = resolve_builder(self.method_builder, self.objective, objective)
        object.__setattr__(self, "hyper", complete(objective, self.hyper, f"objective '{self.objective}'"))
        object.__setattr__(self, "method", complete(builder, self.method, f"the method of '{self.objective}'"))

    @property
    def fingerprint(self) -> str:
        """Hash of what decides the weights, which a checkpoint carries: of the recipe as its file gives it back, where 1 and 1.0 are one.

        The number of devices is left out, since a run is the same on any.
        """
        same = with_devices(from_dict(to_dict(self)), 1)
        return hashlib.sha256(json.dumps(to_dict(same), sort_keys=True).encode()).hexdigest()[:16]


def with_devices(recipe: Recipe, devices: int) -> Recipe:
    """Return the recipe for another number of devices.

    >>> with_devices(Recipe(), 2).machine.devices, with_devices(Recipe(), 2).fingerprint == Recipe().fingerprint
    (2, True)
    """
    return dataclasses.replace(recipe, machine=dataclasses.replace(recipe.machine, devices=devices))


def to_dict(recipe: Recipe) -> dict[str, Any]:
    """Return the recipe as what JSON can hold.

    Raises:
        UserError: it holds something else, which only `backbone.arguments` can.

    >>> to_dict(Recipe())["schedule"]["milestones"]
    [60.0, 80.0]
    """
    try:
        return json.loads(json.dumps(dataclasses.asdict(recipe)))
    except TypeError as error:
        raise UserError(f"backbone.arguments {recipe.backbone.arguments} cannot be saved ({error}); give what JSON can hold") from error


def from_dict(values: dict[str, Any]) -> Recipe:
    """Build a recipe from `to_dict`'s result; a field that is left out takes its default.

    Raises:
        UserError: a field that does not exist or has the wrong type.

    >>> from_dict({"epochs": 3}) == Recipe(epochs=3)
    True
    """
    return structure(values, Recipe, "recipe")


def read_recipe(path: Path) -> Recipe:
    """Read `recipe.json`.

    Raises:
        UserError: it is missing, damaged, or no recipe.
    """
    try:
        values = json.loads(path.read_text())
    except FileNotFoundError:
        raise UserError(f"no run at {path.parent}: it has no {path.name}; give the folder that `fullrank pretrain` made") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}); restore it, or start a new run") from error
    if not isinstance(values, dict):
        raise UserError(f"{path} holds a {type(values).__name__}, expected an object with the fields of a recipe")
    return from_dict(values)


def differences(a: Recipe, b: Recipe) -> list[str]:
    """Return one phrase for each field in which two recipes differ, named as its flag.

    >>> differences(Recipe(epochs=3), Recipe(epochs=5, views=(ViewConfig(size=64),)))
    ['epochs 3 → 5', 'views.0.size 32 → 64']
    """
    left, right = _flat(to_dict(a)), _flat(to_dict(b))
    return [f"{name} {left.get(name)} → {right.get(name)}" for name in sorted({*left, *right}) if left.get(name) != right.get(name)]


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            value = {str(place): entry for place, entry in enumerate(value)}
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) and value else {prefix + name: value}
    return flat
