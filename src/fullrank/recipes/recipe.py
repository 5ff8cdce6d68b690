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

MAX_EMBEDDING_DIMENSIONS = {"wmse": 64, "corinfomax": 64}
"""Objective → the largest embedding dimension D that `with_objective` gives it. Both objectives invert or decompose a D × D covariance of N
samples, and their authors use D = 64 and N = 256 on CIFAR-10 (Ermolov et al. 2021; Ozsoy et al. 2022)."""


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
    """Channels of an image: 1 for grayscale, 3 for RGB. Any other value must be the number of channels of the images."""
    mean: tuple[float, ...] = ()
    """Mean of each channel, in [0, 1]. Empty: computed from the training images and stored in the run's recipe."""
    std: tuple[float, ...] = ()
    """Standard deviation of each channel. Empty: computed like the mean."""
    storage: Literal["auto", "memory", "disk", "streaming"] = "auto"
    """Where the images are stored; auto: in memory if they fit, else on disk.
    memory: all images are one uint8 tensor on the device.
    disk: images stay on disk and are decoded when needed.
    streaming: images of hf:NAME are downloaded during training, in the order of the hub, and shuffled in a buffer;
    data.num_images defines the length of an epoch."""
    num_images: int = 0
    """Number of images per epoch; only for 'streaming'."""
    size: int = 0
    """Side in pixels to which images in memory are resized. 0: images keep their size, and all must have the same size."""
    workers: int = -1
    """Number of processes that decode images from disk or from the hub. -1: CPU cores per training process minus one."""
    max_error_fraction: float = 0.1
    """The run stops if more than this share of the images cannot be read."""


@dataclass(frozen=True, kw_only=True)
class ProbeConfig:
    """The online linear probe. Its loss is not part of the objective, and its gradient never reaches the backbone."""

    lr: float = 1e-2
    """Learning rate of the probe, which has a separate optimizer."""


@dataclass(frozen=True, kw_only=True)
class SpectrumConfig:
    """The spectrum evaluation during training."""

    every: int = 0
    """Steps between two spectrum evaluations. 0: evaluation takes about 2 % of the run time, with at least 20 evaluations."""
    samples: int = 0
    """Held-out images per spectrum evaluation. 0: ten per embedding dimension (two to ten in short runs), at most 1 GiB of pixels."""
    train_batch_every: int = 10
    """Steps between two evaluations of the leading eigenvalues of the training batch."""


@dataclass(frozen=True, kw_only=True)
class MachineConfig:
    """Devices, precision and performance settings."""

    accelerator: str = "auto"
    """auto, cpu, cuda or mps; auto uses a GPU if there is one."""
    devices: int = 1
    """Number of devices, with one process each."""
    micro_batch: int = 0
    """Images per forward pass on a device, to save memory without a change of the loss. 0: the whole share of the batch at once."""
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
        UserError: the objective is unknown, or `hyper` or `method` has an unknown name or a value of the wrong type.

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
    """User-defined transforms of the views before normalisation: package.module:function,
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
    keep_checkpoints: int = 2
    """Number of checkpoints that remain, the newest ones; two, in case the newest is damaged. -1: all."""
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
            if ":" in self.objective + self.method_builder:
                return  # a stored recipe contains all hyperparameters, so it can be read without importing the user's functions
            raise
        builder = resolve_builder(self.method_builder, self.objective, objective)
        object.__setattr__(self, "hyper", fill_defaults(objective, self.hyper, f"objective '{self.objective}'"))
        object.__setattr__(self, "method", fill_defaults(builder, self.method, f"the method of '{self.objective}'"))

    @property
    def fingerprint(self) -> str:
        """The hash that identifies the recipe in a checkpoint, whatever the number of devices, which does not change the run.

        It is computed after a round trip through JSON and the dataclass types, so that 1 and 1.0 give the same hash.
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

    An objective that takes the representation R gets no projector. `MAX_EMBEDDING_DIMENSIONS` limits the dimension for some objectives.

    Raises:
        UserError: there is no such objective.

    >>> recipe = Recipe(hyper={"invariance": 2.0})
    >>> with_objective(recipe, "wmse").projector.widths, with_objective(recipe, "directclr").projector.widths
    ((2048, 2048, 64), ())
    """
    projector = recipe.projector
    if tensor_names(resolve_objective(objective)) == ("R",):
        projector = replace(projector, kind="mlp", widths=())
    elif projector.widths and objective in MAX_EMBEDDING_DIMENSIONS:
        *hidden, D = projector.widths
        projector = replace(projector, widths=(*hidden, min(D, MAX_EMBEDDING_DIMENSIONS[objective])))
    return replace(recipe, objective=objective, hyper={}, method_builder=method_builder, method={}, projector=projector)


def to_dict(recipe: Recipe) -> dict[str, Any]:
    """Return the recipe as a JSON object.

    Raises:
        UserError: `backbone.arguments` contains a value that JSON cannot represent.

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
        raise UserError(f"no run at {path.parent}: it has no {path.name}; give the folder that `fullrank pretrain` wrote") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}); restore it, or start a new run") from error
    if not isinstance(values, dict):
        raise UserError(f"{path} contains a {type(values).__name__}, expected an object with the fields of a recipe")
    return from_dict(values)


def differences(a: Recipe, b: Recipe) -> list[str]:
    """Return one line for each field in which two recipes differ, such as 'epochs 3 → 5'.

    >>> differences(Recipe(epochs=3), Recipe(epochs=5, views=(ViewConfig(size=64),)))
    ['epochs 3 → 5', 'views.0.size 32 → 64']
    """
    left, right = flatten(to_dict(a)), flatten(to_dict(b))
    return [f"{name} {left.get(name)} → {right.get(name)}" for name in sorted({*left, *right}) if left.get(name) != right.get(name)]


def flatten(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Return the leaves of a nested JSON object: dotted name → value; a list of numbers or words is one leaf.

    >>> flatten({"hyper": {"log": True}, "views": [{"size": 32}], "widths": [64, 64], "empty": []})
    {'hyper.log': True, 'views.0.size': 32, 'widths': [64, 64], 'empty': []}
    """
    nested = isinstance(tree, list) and any(isinstance(branch, dict | list) for branch in tree)
    branches = tree.items() if isinstance(tree, dict) else enumerate(tree) if nested else None
    if not branches:
        return {prefix: tree}
    return {name: leaf for key, branch in branches for name, leaf in flatten(branch, f"{prefix}.{key}" if prefix else str(key)).items()}
