"""A recipe: the complete configuration of a run, as nested frozen dataclasses that are saved as JSON in the run directory."""

import hashlib
import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import tyro

from fullrank.errors import UserError
from fullrank.methods import BackboneConfig, ProjectorConfig
from fullrank.objectives.signature import tensor_names
from fullrank.recipes.functions import fill_defaults, import_function, resolve_builder, resolve_objective
from fullrank.structure import structure
from fullrank.training import OptimizerConfig, ScheduleConfig
from fullrank.views import ViewConfig

MAX_DIMENSIONS = {"wmse": 64, "corinfomax": 64}
"""The largest embedding dimension that `with_objective` gives to an objective: both invert or decompose a covariance of D dimensions from
N samples, and their authors use D = 64 on CIFAR-10 with N = 256 (Ermolov et al. 2021; Ozsoy et al. 2022)."""


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """The images and how they are stored."""

    source: str = "digits"
    """Source of the images: digits, a path (folder or Parquet), folder:PATH, parquet:PATH or hf:NAME."""
    train: str | None = None
    """Name of the training split. None: 'train', or a random 80 % if the source has no named splits."""
    test: str | None = None
    """Name of the held-out split. None: 'test' or 'validation', or a random 20 % if the source has no named splits."""
    channels: int = 3
    """Channels of an image: 1 for grey, 3 for colour. With any other number, the images must have that many channels."""
    mean: tuple[float, ...] = ()
    """Mean of each channel, in [0, 1]. Empty: it is measured on the training images and written into the recipe of the run."""
    std: tuple[float, ...] = ()
    """Standard deviation of each channel. Empty: it is measured, as the mean."""
    storage: Literal["auto", "memory", "disk", "streaming"] = "auto"
    """Where the images are stored; auto: in memory if they fit, else on disk.
    memory: all images as one uint8 tensor on the device.
    disk: workers decode each image when it is needed.
    streaming: images of hf:NAME are downloaded during training, in the order of the hub, and shuffled in a buffer;
    data.num_images defines the length of an epoch."""
    num_images: int = 0
    """Number of images per epoch; only for 'streaming'."""
    size: int = 0
    """Side in pixels to which images in memory are resized. 0: they keep their size, and all must have the same size."""
    workers: int = -1
    """Number of processes that decode images from disk or from the hub. -1: one per core, without the core of the trainer."""
    max_error_fraction: float = 0.1
    """The run stops if more than this share of the images cannot be read."""


@dataclass(frozen=True, kw_only=True)
class ProbeConfig:
    """The online linear probe. Its loss is not part of the objective, and its gradient never reaches the backbone."""

    lr: float = 1e-2
    """Learning rate of the probe, which has its own optimizer."""


@dataclass(frozen=True, kw_only=True)
class SpectrumConfig:
    """The spectrum evaluation during training."""

    every: int = 0
    """Steps between two spectrum evaluations; 0: as often as 2 % of the time of the run allows, but at least 20 times."""
    samples: int = 0
    """Held-out images per spectrum evaluation; 0: ten per embedding dimension (two to ten in short runs), at most a gigabyte."""
    batch_every: int = 10
    """Steps between two evaluations of the leading eigenvalues of the training batch."""


@dataclass(frozen=True, kw_only=True)
class MachineConfig:
    """The devices, the precision and other settings of speed."""

    accelerator: str = "auto"
    """auto, cpu, cuda or mps; auto uses a GPU if there is one."""
    devices: int = 1
    """Number of devices, with one process each."""
    micro_batch: int = 0
    """Images per forward pass on a device, to save memory without a change of the loss. 0: the device's whole share of the batch."""
    precision: Literal["auto", "32-true", "bf16-mixed", "64-true"] = "auto"
    """auto: bf16-mixed on GPUs that support it, else 32-true. The objective is always computed in float32 or better."""
    compile: bool = False
    """Compile the method with torch.compile."""
    channels_last: bool = True
    """Use the channels-last memory format for convolutions."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The complete configuration of a run.

    Raises:
        UserError: the objective is unknown, or `hyper` or `method` has a name or value that it does not take.

    >>> Recipe(objective="vicreg", hyper={"covariance": 4}).hyper
    {'invariance': 25.0, 'variance': 25.0, 'covariance': 4.0}
    """

    name: tyro.conf.Suppress[str] = "recipe"
    """Name of the recipe."""
    objective: tyro.conf.Suppress[str] = "frossl"
    """A name in `fullrank.objectives.OBJECTIVES`, or a user's function, package.module:function."""
    hyper: tyro.conf.Suppress[dict[str, Any]] = field(default_factory=dict)
    """Hyperparameters of the objective; missing ones are filled in from its signature."""
    method_builder: tyro.conf.Suppress[str] = ""
    """A user's function that builds the method, package.module:builder; empty: the library's builder for the objective."""
    method: tyro.conf.Suppress[dict[str, Any]] = field(default_factory=dict)
    """Hyperparameters of the method (queue, prototypes, momentum, …); missing ones are filled in from the signature of its builder."""
    data: DataConfig = field(default_factory=DataConfig)
    views: tuple[ViewConfig, ...] = (ViewConfig(),)
    """The distributions from which the views of an image are drawn."""
    custom_transforms: tuple[str, ...] = ()
    """Your own transforms of the views before normalisation: package.module:function,
    called as function(x, generator) with x of shape (V, n, C, S, S) in [0, 1]."""
    backbone: BackboneConfig = field(default_factory=BackboneConfig)
    projector: ProjectorConfig = field(default_factory=ProjectorConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    epochs: int = 100
    """Number of passes over the training images."""
    batch_size: int = 256
    """Images per step, summed over all devices."""
    seed: int = 0
    """Seed of the weights, the order of the images and the views."""
    checkpoints: int = 10
    """Number of checkpoints, evenly spaced; the last one is at the last step."""
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
            if ":" in self.objective + self.method_builder:  # the recipe of a run is complete: only training needs the user's functions
                return
            raise
        builder = resolve_builder(self.method_builder, self.objective, objective)
        object.__setattr__(self, "hyper", fill_defaults(objective, self.hyper, f"objective '{self.objective}'"))
        object.__setattr__(self, "method", fill_defaults(builder, self.method, f"the method of '{self.objective}'"))

    @property
    def fingerprint(self) -> str:
        """The hash that identifies the recipe in a checkpoint. It is taken of the recipe as read from its file, where 1 and 1.0 are equal.

        The number of devices is left out, because it does not change the run.
        """
        same = with_devices(from_dict(to_dict(self)), 1)
        return hashlib.sha256(json.dumps(to_dict(same), sort_keys=True).encode()).hexdigest()[:16]


def with_devices(recipe: Recipe, devices: int) -> Recipe:
    """Return the recipe for another number of devices.

    >>> with_devices(Recipe(), 2).machine.devices, with_devices(Recipe(), 2).fingerprint == Recipe().fingerprint
    (2, True)
    """
    return replace(recipe, machine=replace(recipe.machine, devices=devices))


def with_objective(recipe: Recipe, objective: str, *, method_builder: str = "") -> Recipe:
    """Return the recipe with another objective, the defaults of that objective, and a projector that fits it.

    An objective of the representation R gets no projector; an objective that inverts a covariance gets at most `MAX_DIMENSIONS`.

    Raises:
        UserError: there is no such objective.

    >>> recipe = Recipe(hyper={"invariance": 2.0})
    >>> with_objective(recipe, "wmse").projector.widths, with_objective(recipe, "directclr").projector.widths
    ((2048, 2048, 64), ())
    """
    projector = recipe.projector
    if tensor_names(resolve_objective(objective)) == ("R",):
        projector = replace(projector, kind="mlp", widths=())
    elif projector.widths and objective in MAX_DIMENSIONS:
        *hidden, D = projector.widths
        projector = replace(projector, widths=(*hidden, min(D, MAX_DIMENSIONS[objective])))
    return replace(recipe, objective=objective, hyper={}, method_builder=method_builder, method={}, projector=projector)


def to_dict(recipe: Recipe) -> dict[str, Any]:
    """Return the recipe as a JSON object.

    Raises:
        UserError: `backbone.arguments` holds a value that JSON cannot represent.

    >>> to_dict(Recipe())["schedule"]["milestones"]
    [60.0, 80.0]
    """
    try:
        return json.loads(json.dumps(asdict(recipe)))
    except TypeError as error:
        raise UserError(f"backbone.arguments {recipe.backbone.arguments} cannot be saved ({error}); use JSON values") from error


def from_dict(values: dict[str, Any]) -> Recipe:
    """Build a recipe from the result of `to_dict`; a missing field takes its default.

    Raises:
        UserError: a field does not exist or has the wrong type.

    >>> from_dict({"epochs": 3}) == Recipe(epochs=3)
    True
    """
    return structure(values, Recipe, "recipe")


def read_recipe(path: Path) -> Recipe:
    """Read `recipe.json`.

    Raises:
        UserError: the file is missing, damaged, or not a recipe.
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
    """Return one line for each field in which two recipes differ, such as 'epochs 3 → 5'.

    >>> differences(Recipe(epochs=3), Recipe(epochs=5, views=(ViewConfig(size=64),)))
    ['epochs 3 → 5', 'views.0.size 32 → 64']
    """
    left, right = _flatten(to_dict(a)), _flatten(to_dict(b))
    return [f"{name} {left.get(name)} → {right.get(name)}" for name in sorted({*left, *right}) if left.get(name) != right.get(name)]


def _flatten(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            value = {str(index): item for index, item in enumerate(value)}
        flat |= _flatten(value, f"{prefix}{name}.") if isinstance(value, dict) and value else {prefix + name: value}
    return flat
