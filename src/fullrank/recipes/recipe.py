"""A recipe: the complete configuration of a run, as nested frozen dataclasses that are saved as JSON in the run
directory.
"""

import hashlib
import json
from collections.abc import Collection, Iterator
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass, replace
from typing import Annotated, Any, Literal

from fullrank.errors import UserError
from fullrank.flag_types import Hidden, Unprefixed
from fullrank.images.reading import USUAL, Reading
from fullrank.methods.config import BackboneConfig, ProjectorConfig
from fullrank.recipes.functions import (
    builder_signature,
    fill_defaults,
    import_function,
    is_imported,
    objective_signature,
)
from fullrank.signatures import tensor_names
from fullrank.structure import JsonObject, PathText, Requirement, Share, Text, between, structure, validate
from fullrank.training.config import OptimizerConfig, ScheduleConfig
from fullrank.views.config import ViewConfig

RunName = Annotated[Text, Requirement("that is the name of one folder", lambda name: is_folder_name(name))]
Count = Annotated[int, between(0, 1_000_000_000)]
Every = Annotated[int, between(1, 1_000_000_000)]
KeptCheckpoints = Annotated[
    int, Requirement("of at least 1, or -1", lambda number: number == -1 or 1 <= number <= 10_000)
]

MAX_EMBEDDING_DIMENSIONS = {"wmse": 64, "corinfomax": 64}
"""Objective → the largest embedding dimension D that `with_objective` gives it. Both objectives invert or decompose a D
× D covariance of N samples, and their authors use D = 64 and N = 256 on CIFAR-10 (Ermolov et al. 2021; Ozsoy et al.
2022)."""


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """The images and how they are stored."""

    source: PathText = "digits"
    """Source of the images: digits, a path (a folder, Parquet, a table of paths), folder:PATH, parquet:PATH or
    hf:NAME."""
    reading: Annotated[Reading, Unprefixed] = USUAL
    """How the source is read."""
    channels: Annotated[int, between(1, 1024)] = 3
    """Channels of an image: 1 for grayscale, 3 for RGB. Any other value must be the number of channels of the
    images."""
    bits: Annotated[int, between(0, 16)] = 0
    """Bits that the values of 16-bit images use: 12 for values up to 4095. 0: found from a sample and stored in the
    run's recipe."""
    mean: tuple[Share, ...] = ()
    """Mean of each channel, in [0, 1]. Empty: computed from the training images and stored in the run's recipe."""
    std: tuple[Annotated[float, between(0, 10)], ...] = ()
    """Standard deviation of each channel. Empty: computed like the mean."""
    storage: Literal["auto", "memory", "disk", "streaming"] = "auto"
    """Where the images are stored; auto: in memory if they fit, else on disk.
    memory: all images are one uint8 tensor on the device.
    disk: images stay on disk and are decoded when needed.
    streaming: images of hf:NAME are downloaded during training, in the order of the hub, and shuffled in a buffer;
    data.num_images defines the length of an epoch."""
    num_images: Count = 0
    """Number of images per epoch; only for 'streaming'."""
    size: Annotated[int, between(0, 4096)] = 0
    """Side in pixels to which images in memory are resized. 0: images keep their size, and all must have the same
    size."""
    workers: Annotated[int, between(-1, 256)] = -1
    """Number of processes that decode images from disk or from the hub. -1: CPU cores per training process minus
    one."""
    max_error_fraction: Share = 0.1
    """The run stops if more than this share of the images cannot be read."""
    subset: Count = 0
    """Number of training images: a random choice, the same for every seed, with the classes' shares where there are
    labels. 0: all."""
    validation: Share = 0.0
    """Share of the training images that is held out for validation, the same images for every seed, with the classes'
    shares. They take
    the place of the test images in the run and in `fullrank evaluate RUN`, so that no choice is made on the test
    images. 0: none."""


@dataclass(frozen=True, kw_only=True)
class ProbeConfig:
    """The online linear probe: a linear classifier that is trained along with the backbone, on the representations of
    the full-size views.

    Its loss is not part of the objective, and its gradient never reaches the backbone. Ours has its own SGD and
    standardised features, so that one learning rate fits backbones of any scale. The online classifier of Skean et al.
    2024 (table 3) is solo-learn's: plain features, the optimizer of the backbone (LARS) with its schedule and weight
    decay, learning rate 0.1. `--probe.no-standardize --probe.lr 0.1 --probe.schedule backbone --probe.weight_decay W`
    is this protocol with SGD in place of LARS.
    """

    lr: Annotated[float, between(0, 1_000_000)] = 1e-2
    """Learning rate of the probe, which has a separate optimizer."""
    momentum: Share = 0.9
    """Momentum of the probe's SGD."""
    weight_decay: Share = 0.0
    """Weight decay of the probe's weights, not of its biases."""
    standardize: bool = True
    """Standardise the features by running statistics, so that their scale does not matter."""
    schedule: Literal["constant", "backbone"] = "constant"
    """constant: the learning rate stays; backbone: it follows the schedule of the backbone's learning rate, from the
    peak `probe.lr`."""
    epochs: tuple[
        Annotated[float, Requirement("above 0, at most 1,000,000", lambda epoch: 0 < epoch <= 1_000_000)], ...
    ] = ()
    """Epochs after which the probe is scored on all test images, in eval mode; fractions are allowed, and epochs after
    the end of the run are left out. Each score costs a forward pass of the backbone over the test images."""
    labelled: PathText = ""
    """Source of labelled images from another place than the images of the run. A linear probe is trained on the
    features of its training
    images and scored on its test images, as by `fullrank evaluate`: before the first step, and after the epochs of
    `probe.epochs`, or after each tenth of the run if there are none. Each score costs a forward pass over these
    images."""


@dataclass(frozen=True, kw_only=True)
class SpectrumConfig:
    """The spectrum evaluation during training."""

    every: Count = 0
    """Steps between two spectrum evaluations. 0: 20 to 100 evaluations, in at most 2 % of the run time; fewer in a very
    short run."""
    samples: Count = 0
    """Held-out images per spectrum evaluation. 0: ten per embedding dimension, fewer in short runs, at most 1 GiB of
    pixels."""
    train_batch_every: Every = 10
    """Steps between two evaluations of the leading eigenvalues of the training batch."""


@dataclass(frozen=True, kw_only=True)
class MachineConfig:
    """Devices, precision and performance settings."""

    accelerator: Text = "auto"
    """auto, cpu, cuda or mps; auto uses a GPU if there is one."""
    devices: Annotated[int, between(1, 4096)] = 1
    """Number of devices, with one process each."""
    micro_batch: Count = 0
    """Images per forward pass on a device, to save memory without a change of the loss. 0: the whole share of the batch
    at once."""
    precision: Literal["auto", "32-true", "bf16-mixed", "64-true"] = "auto"
    """auto: bf16-mixed on GPUs that support it, and on CPUs with AMX for networks that pass a test; else 32-true. The
    run's recipe has the choice. The objective is always computed in float32 or better."""
    compile: bool = False
    """Compile the method with torch.compile."""
    channels_last: bool = True
    """Use the channels-last memory format for convolutions."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The complete configuration of a run.

    The annotation of each field is its type with its bounds. A name with a colon is code of the user's: a recipe never
    imports it, and completes `hyper` and `method` only after the import (`fullrank.recipes.import_code`).

    Raises:
        UserError: a value has the wrong type or is out of bounds, the objective is unknown, or `hyper` or `method` has
            an unknown name.

    >>> Recipe(objective="vicreg", hyper={"covariance": 4}).hyper
    {'invariance': 25.0, 'variance': 25.0, 'covariance': 4.0}
    """

    name: Hidden[RunName] = "recipe"
    """Name of the recipe, and of the folder of its runs."""
    objective: Hidden[Text] = "frossl"
    """A name in `fullrank.objectives.OBJECTIVES`, or a user's function, package.module:function."""
    hyper: Hidden[JsonObject] = field(default_factory=dict)
    """Hyperparameters of the objective; missing ones are filled in from its signature."""
    method_builder: Hidden[Text] = ""
    """A user's function that builds the method, package.module:builder; empty: the library's builder for the
    objective."""
    method: Hidden[JsonObject] = field(default_factory=dict)
    """Hyperparameters of the method (queue, prototypes, momentum, …); missing ones are filled in from the signature of
    its builder."""
    init: Hidden[Text] = ""
    """The MODEL whose weights the backbone starts with; empty: random weights, drawn from `seed`."""
    init_hash: Hidden[Text] = ""
    """SHA-256 of these weights; the run stores it, and a run with this recipe starts only from the same weights."""
    data: DataConfig = field(default_factory=DataConfig)
    views: Annotated[tuple[ViewConfig, ...], Requirement("with at least one view", bool)] = (ViewConfig(),)
    """The distributions from which the views of an image are drawn."""
    custom_transforms: tuple[Text, ...] = ()
    """User-defined transforms of the views before normalisation: package.module:function,
    called as function(x, generator) with x of shape (V, n, C, S, S) in [0, 1]."""
    backbone: BackboneConfig = field(default_factory=BackboneConfig)
    projector: ProjectorConfig = field(default_factory=ProjectorConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    epochs: Annotated[int, between(1, 1_000_000)] = 100
    """Number of passes over the training images."""
    batch_size: Annotated[int, between(2, 1_000_000)] = 256
    """Images per step, summed over all devices; at least 2, because every objective compares images."""
    seed: Annotated[int, between(0, 2**32 - 1)] = 0
    """Seed of the weights, the order of the images and the views."""
    checkpoints: Annotated[int, between(1, 10_000)] = 10
    """Number of checkpoints, evenly spaced; the last one is at the last step."""
    keep_checkpoints: KeptCheckpoints = 2
    """Number of checkpoints that remain, the newest ones; two, in case the newest is damaged. -1: all."""
    log_every: Every = 10
    """Steps between two lines of metrics.jsonl."""
    probe: ProbeConfig = field(default_factory=ProbeConfig)
    spectrum: SpectrumConfig = field(default_factory=SpectrumConfig)
    machine: MachineConfig = field(default_factory=MachineConfig)

    def __post_init__(self) -> None:
        validate(self, remedy="; change --{}")
        if not is_imported(self.objective):
            return
        objective = objective_signature(self.objective)
        object.__setattr__(self, "hyper", fill_defaults(objective, self.hyper, f"objective '{self.objective}'"))
        if is_imported(self.method_builder):
            builder = builder_signature(self.method_builder, self.objective)
            object.__setattr__(self, "method", fill_defaults(builder, self.method, f"the method of '{self.objective}'"))

    @property
    def split_seed(self) -> int:
        """Seed of the held-out fifth of a source without a test split: that of the run; 0 with `data.subset` or
        `data.validation`, whose images are the same for every run.
        """
        return 0 if self.data.subset or self.data.validation else self.seed

    @property
    def fingerprint(self) -> str:
        """The hash that identifies the recipe in a checkpoint: of all fields that decide the weights
        (`decides_weights`).

        Fields with their default are left out, so that a field which a later version adds does not change the hash of
        older runs.
        """
        values = flatten(to_dict(self))
        same = defaults(self)
        deciding = {name: value for name, value in values.items() if decides_weights(name) and not is_below(name, same)}
        deciding |= {"number of views": len(self.views), "streaming": self.data.storage == "streaming"}
        return hashlib.sha256(json.dumps(deciding, sort_keys=True).encode()).hexdigest()[:16]


FREE_FIELDS = (
    *("name", "init", "checkpoints", "keep_checkpoints", "log_every", "spectrum", "probe.epochs", "probe.labelled"),
    *("data.source", "data.storage", "data.workers", "data.max_error_fraction"),
    *(f"data.reading.{name}" for name in ("follow_links", "max_pixels", "max_expansion")),
    *("machine.accelerator", "machine.devices", "machine.micro_batch", "machine.compile", "machine.channels_last"),
)
"""The fields that do not decide the weights, with the fields below them. A run may continue with other values of these:
with its images in another place, on other devices, or with other logs. (The images are compared by their own
fingerprint, and the weights of `init` by `init_hash`.)"""


def decides_weights(name: str) -> bool:
    """Return whether a field, by its dotted name, decides the weights of a run, up to rounding.

    >>> [decides_weights(name) for name in ("epochs", "views.0.size", "spectrum.every", "data.source")]
    [True, True, False, False]
    """
    return not is_below(name, FREE_FIELDS)


def is_below(name: str, parents: Collection[str]) -> bool:
    """Return whether a dotted name is one of `parents` or below one of them.

    >>> is_below("spectrum.every", ["spectrum"]), is_below("spectrums", ["spectrum"])
    (True, False)
    """
    parts = name.split(".")
    return any(".".join(parts[: i + 1]) in parents for i in range(len(parts)))


def is_folder_name(name: str) -> bool:
    """Return whether a name is that of one folder on every system, not a path.

    >>> [is_folder_name(name) for name in ("cifar10-small", "my photos", "..", "a/b", "", ".hidden")]
    [True, True, False, False, False, False]
    """
    return (
        0 < len(name.encode(errors="replace")) <= 200 and not name.startswith(".") and not set(name) & set('/\\:*?"<>|')
    )


def view_sizes(recipe: Recipe) -> dict[int, int]:
    """Return the number of views of each size, largest size first.

    >>> view_sizes(Recipe(views=(ViewConfig(size=24, count=6), ViewConfig(size=32, count=2))))
    {32: 2, 24: 6}
    """
    sizes = sorted({view.size for view in recipe.views}, reverse=True)
    return {size: sum(view.count for view in recipe.views if view.size == size) for size in sizes}


def with_devices(recipe: Recipe, devices: int) -> Recipe:
    """Return the recipe for another number of devices.

    >>> with_devices(Recipe(), 2).machine.devices, with_devices(Recipe(), 2).fingerprint == Recipe().fingerprint
    (2, True)
    """
    return replace(recipe, machine=replace(recipe.machine, devices=devices))


def with_objective(recipe: Recipe, objective: str, *, method_builder: str = "") -> Recipe:
    """Return the recipe with another objective, the defaults of that objective, and a projector that fits it.

    A name with a colon is imported, so give only functions that you trust. An objective that takes the representation R
    gets no projector. `MAX_EMBEDDING_DIMENSIONS` limits the dimension for some objectives.
    `optimizer.constant_predictor` is a choice of SimSiam's recipe, so another objective has it switched off.

    Raises:
        UserError: there is no such objective.

    >>> recipe = Recipe(hyper={"invariance": 2.0})
    >>> with_objective(recipe, "wmse").projector.widths, with_objective(recipe, "directclr").projector.widths
    ((2048, 2048, 64), ())
    """
    for name in (objective, method_builder):
        if ":" in name:
            import_function(name)
    projector = recipe.projector
    if tensor_names(objective_signature(objective)) == ("R",):
        projector = replace(projector, kind="mlp", widths=())
    elif projector.widths and objective in MAX_EMBEDDING_DIMENSIONS:
        *hidden, D = projector.widths
        projector = replace(projector, widths=(*hidden, min(D, MAX_EMBEDDING_DIMENSIONS[objective])))
    optimizer = (
        recipe.optimizer if objective == recipe.objective else replace(recipe.optimizer, constant_predictor=False)
    )
    return replace(
        recipe,
        objective=objective,
        hyper={},
        method_builder=method_builder,
        method={},
        projector=projector,
        optimizer=optimizer,
    )


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
        raise UserError(
            f"backbone.arguments {recipe.backbone.arguments} cannot be saved ({error}); use JSON values"
        ) from error


def from_dict(values: dict[str, Any]) -> Recipe:
    """Build a recipe from the result of `to_dict`; a missing field takes its default.

    Raises:
        UserError: a field does not exist or has the wrong type.

    >>> from_dict({"epochs": 3}) == Recipe(epochs=3)
    True
    """
    return structure(values, Recipe, "recipe")


def defaults(recipe: Recipe) -> list[str]:
    """Return the dotted names of the fields that have their default; a name stands for all fields below it.

    The hyperparameters of the library's objectives count; those of a user's function do not.

    >>> [name for name in defaults(Recipe(optimizer=OptimizerConfig(lr=0.1))) if name.startswith(("optimizer", "schedule"))][:3]
    ['optimizer.name', 'optimizer.weight_decay', 'optimizer.last_weight_decay']
    """
    names = list(_default_fields(recipe, ""))
    if ":" not in recipe.objective + recipe.method_builder:
        objective, builder = objective_signature(recipe.objective), builder_signature("", recipe.objective)
        for part, function, values in (("hyper", objective, recipe.hyper), ("method", builder, recipe.method)):
            names += [
                f"{part}.{name}"
                for name, value in fill_defaults(function, {}, part).items()
                if values.get(name) == value
            ]
    return names


def _default_fields(config: Any, prefix: str) -> Iterator[str]:
    for f in fields(config):
        value = getattr(config, f.name)
        if value == (f.default if f.default_factory is MISSING else f.default_factory()):
            yield prefix + f.name
        elif is_dataclass(value):
            yield from _default_fields(value, f"{prefix}{f.name}.")
        elif isinstance(value, tuple) and value and is_dataclass(value[0]):
            for i, item in enumerate(value):
                yield from _default_fields(item, f"{prefix}{f.name}.{i}.")


def differences(a: Recipe, b: Recipe) -> list[str]:
    """Return one line for each field in which two recipes differ, such as 'epochs 3 → 5'.

    >>> differences(Recipe(epochs=3), Recipe(epochs=5, views=(ViewConfig(size=64),)))
    ['epochs 3 → 5', 'views.0.size 32 → 64']
    """
    left, right = flatten(to_dict(a)), flatten(to_dict(b))
    return [
        f"{name} {left.get(name)} → {right.get(name)}"
        for name in sorted({*left, *right})
        if left.get(name) != right.get(name)
    ]


def flatten(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Return the leaves of a nested JSON object: dotted name → value; a list of numbers or words is one leaf.

    >>> flatten({"hyper": {"log": True}, "views": [{"size": 32}], "widths": [64, 64], "empty": []})
    {'hyper.log': True, 'views.0.size': 32, 'widths': [64, 64], 'empty': []}
    """
    nested = isinstance(tree, list) and any(isinstance(branch, dict | list) for branch in tree)
    branches = tree.items() if isinstance(tree, dict) else enumerate(tree) if nested else None
    if not branches:
        return {prefix: tree}
    return {
        name: leaf
        for key, branch in branches
        for name, leaf in flatten(branch, f"{prefix}.{key}" if prefix else str(key)).items()
    }
