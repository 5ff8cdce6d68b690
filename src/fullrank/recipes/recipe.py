"""A recipe: the complete configuration of a run, as nested frozen dataclasses that are saved as JSON in the run
directory.
"""

import hashlib
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import asdict, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from pydantic import Field
from tyro.conf import Suppress

from fullrank.config import Share, config, from_json
from fullrank.errors import Notify, UserError, silent
from fullrank.files import read_text
from fullrank.images.reading import Reading
from fullrank.methods.config import BackboneConfig, ProjectorConfig
from fullrank.recipes import user_code
from fullrank.recipes.balance import balanced_weights
from fullrank.training.config import OptimizerConfig, ScheduleConfig
from fullrank.views.config import ViewConfig

# A line that is safe to print.
Text = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f]*$")]
# The name of one folder on every system, not a path.
FOLDER_NAME = r'^[^.\x00-\x1f/\\:*?"<>|][^\x00-\x1f/\\:*?"<>|]{0,199}$'
FolderName = Annotated[str, Field(pattern=FOLDER_NAME)]
Count = Annotated[int, Field(ge=0, le=10**9)]
Every = Annotated[int, Field(ge=1, le=10**9)]
Epoch = Annotated[float, Field(gt=0, le=10**6)]


@config
class DataConfig:
    """The images and how they are stored.

    Attributes:
        source: Source of the images: digits, a path (a folder, Parquet, a table of paths), folder:PATH, parquet:PATH,
            hf:NAME, or for a stream an address such as s3://bucket/folder.
        reading: How the source is read.
        channels: Channels of an image: 1 for grayscale, 3 for RGB. Any other value must be the number of channels of
            the images.
        bits: Bits that the values of 16-bit images use: 12 for values up to 4095. 0: found from a sample and stored in
            the run's recipe.
        mean: Mean of each channel, in [0, 1]. Empty: computed from the training images and stored in the run's recipe.
        std: Standard deviation of each channel. Empty: computed like the mean.
        storage: Where the images are stored; auto: in memory if they fit, else on disk.
            memory: all images are one uint8 tensor on the device.
            disk: images stay on disk and are decoded when needed.
            streaming: images of hf:NAME, of Parquet files or of tar shards, also at s3://… and the like, are read
            during training and shuffled in a buffer; data.num_images defines the length of an epoch.
        num_images: Number of images per epoch; only for 'streaming'.
        size: Side in pixels to which images in memory are resized. 0: images keep their size, and all must have the
            same size.
        workers: Number of processes that decode images from disk or from the hub. -1: CPU cores per training process
            minus one.
        max_error_fraction: The run stops if more than this share of the images cannot be read.
        subset: Number of training images: a random choice, the same for every seed of the run, with the classes' shares
            where there are labels. 0: all.
        subset_seed: Seed of the choice of the subset and of the validation images.
        validation: Share of the training images that is held out for validation, the same images for every seed of the
            run, with the classes' shares. They take the place of the test images in the run and in `fullrank evaluate
            RUN`, so that no choice is made on the test images. 0: none.
    """

    source: str = "digits"
    reading: Annotated[Reading, tyro.conf.arg(name="")] = Reading()
    channels: Annotated[int, Field(ge=1, le=1024)] = 3
    bits: Annotated[int, Field(ge=0, le=16)] = 0
    mean: tuple[Share, ...] = ()
    std: tuple[Annotated[float, Field(ge=0, le=10)], ...] = ()
    storage: Literal["auto", "memory", "disk", "streaming"] = "auto"
    num_images: Count = 0
    size: Annotated[int, Field(ge=0, le=4096)] = 0
    workers: Annotated[int, Field(ge=-1, le=256)] = -1
    max_error_fraction: Share = 0.1
    subset: Count = 0
    subset_seed: Count = 0
    validation: Share = 0.0


@config
class ProbeConfig:
    """The online linear probe: a linear classifier that is trained along with the backbone, on the representations of
    the full-size views.

    Its loss is not part of the objective, and its gradient never reaches the backbone. Ours has its own SGD and
    standardised features, so that one learning rate fits backbones of any scale. The online classifier of Skean et al.
    2024 (table 3) is solo-learn's: plain features, the optimizer of the backbone (LARS) with its schedule and weight
    decay, learning rate 0.1. `--probe.no-standardize --probe.lr 0.1 --probe.schedule backbone --probe.weight-decay W`
    is this protocol with SGD in place of LARS.

    Attributes:
        lr: Learning rate of the probe, which has a separate optimizer.
        momentum: Momentum of the probe's SGD.
        weight_decay: Weight decay of the probe's weights, not of its biases.
        standardize: Standardise the features by running statistics, so that their scale does not matter.
        schedule: constant: the learning rate stays; backbone: it follows the schedule of the backbone's learning rate,
            from the peak `probe.lr`.
        epochs: Epochs after which the probe is scored on all test images, in eval mode; fractions are allowed, and
            epochs after the end of the run are left out. Each score costs a forward pass of the backbone over the test
            images.
        labelled: Source of labelled images from another place than the images of the run. A linear probe is trained on
            the features of its training images and scored on its test images, as by `fullrank evaluate`: before the
            first step, and after the epochs of `probe.epochs`, or after each tenth of the run. Each score costs a pass
            over these images.
    """

    lr: Annotated[float, Field(ge=0, le=10**6)] = 1e-2
    momentum: Share = 0.9
    weight_decay: Share = 0.0
    standardize: bool = True
    schedule: Literal["constant", "backbone"] = "constant"
    epochs: tuple[Epoch, ...] = ()
    labelled: str = ""


@config
class SpectrumConfig:
    """The spectrum evaluation during training.

    Attributes:
        every: Steps between two spectrum evaluations. 0: 20 to 100 evaluations, in at most 1.5 % of the forward passes
            of the training; fewer in a very short run.
        samples: Held-out images per spectrum evaluation. 0: ten per embedding dimension, fewer in short runs, at most 1
            GiB of pixels. The first and the last evaluation measure the spectrum on ten images per dimension or all
            there are too: held-out images, then training images.
        train_batch_every: Steps between two evaluations of the leading eigenvalues of the training batch.
    """

    every: Count = 0
    samples: Count = 0
    train_batch_every: Every = 10


@config
class MachineConfig:
    """Devices, precision and performance settings.

    Attributes:
        accelerator: auto, cpu, cuda or mps; auto uses a GPU if there is one.
        devices: Number of devices, with one process each.
        micro_batch: Images per forward pass on a device, to save memory; loss and gradient stay the same. 0: the whole
            share of the batch at once.
        ghost_batchnorm: With BatchNorm, whose statistics need the whole batch, micro-batches are an error unless this
            is set: each micro-batch is then normalised by itself (ghost batch normalisation).
        precision: auto: bf16-mixed on GPUs that support it, and on CPUs with AMX for networks that pass a test; else
            32-true. The run's recipe has the choice. The objective is always computed in float32 or better.
        compile: Compile the method with torch.compile.
        channels_last: Use the channels-last memory format for convolutions.
    """

    accelerator: Text = "auto"
    devices: Annotated[int, Field(ge=1, le=4096)] = 1
    micro_batch: Count = 0
    ghost_batchnorm: bool = False
    precision: Literal["auto", "32-true", "bf16-mixed", "64-true"] = "auto"
    compile: bool = False
    channels_last: bool = True


@config
class Recipe:
    """The complete configuration of a run.

    The annotation of each field is its type with its bounds. A name with a colon is code of the user's: a recipe never
    imports it, and completes `hyper` and `method` only after the import (`import_code`).

    Attributes:
        name: Name of the recipe, and of the folder of its runs.
        objective: A name in `fullrank.objectives.OBJECTIVES`, a sum such as "frossl + 0.5 byol", or a user's function,
            package.module:function.
        hyper: Hyperparameters of the objective; missing ones are filled in from its signature. The word "balanced" for
            a weight or temperature becomes the number of `balanced_weights`.
        method_builder: A user's function that builds the method, package.module:builder; empty: the library's builder
            for the objective.
        method: Hyperparameters of the method (queue, prototypes, momentum, …); missing ones are filled in from the
            signature of its builder.
        init: The MODEL whose weights the backbone starts with; empty: random weights, drawn from `seed`.
        init_hash: SHA-256 of these weights; the run stores it, and a run with this recipe starts only from the same
            weights.
        views: The distributions from which the views of an image are drawn.
        custom_transforms: User-defined transforms of the views before normalisation: package.module:function, called as
            function(x, generator) with x (V, 1, C, S, S) in [0, 1], the views of one image.
        epochs: Number of passes over the training images.
        batch_size: Images per step, summed over all devices; at least 2, because every objective compares images.
        seed: Seed of the weights, the order of the images and the views.
        checkpoints: Number of checkpoints, evenly spaced; the last one is at the last step.
        keep_checkpoints: Number of checkpoints that remain, the newest ones; two, in case the newest is damaged. -1:
            all.
        log_every: Steps between two lines of metrics.jsonl.

    Raises:
        UserError: a value has the wrong type or is out of bounds, the objective is unknown, or `hyper` or `method` has
            an unknown name.

    >>> Recipe(objective="vicreg", hyper={"covariance": 4}).hyper
    {'invariance': 25.0, 'variance': 25.0, 'covariance': 4.0}
    """

    name: Suppress[FolderName] = "recipe"
    objective: Suppress[Text] = "frossl"
    hyper: Suppress[dict[str, Any]] = field(default_factory=dict)
    method_builder: Suppress[Text] = ""
    method: Suppress[dict[str, Any]] = field(default_factory=dict)
    init: Suppress[Text] = ""
    init_hash: Suppress[Text] = ""
    data: DataConfig = field(default_factory=DataConfig)
    views: Annotated[tuple[ViewConfig, ...], Field(min_length=1, max_length=100)] = (ViewConfig(),)
    custom_transforms: tuple[Text, ...] = ()
    backbone: BackboneConfig = field(default_factory=BackboneConfig)
    projector: ProjectorConfig = field(default_factory=ProjectorConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    epochs: Annotated[int, Field(ge=1, le=10**6)] = 100
    batch_size: Annotated[int, Field(ge=2, le=10**6)] = 256
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    checkpoints: Annotated[int, Field(ge=1, le=10_000)] = 10
    keep_checkpoints: Literal[-1] | Annotated[int, Field(ge=1, le=10_000)] = 2
    log_every: Every = 10
    probe: ProbeConfig = field(default_factory=ProbeConfig)
    spectrum: SpectrumConfig = field(default_factory=SpectrumConfig)
    machine: MachineConfig = field(default_factory=MachineConfig)

    def __post_init__(self) -> None:
        if not user_code.is_imported(self.objective):
            return
        balanced = {name: x for name, x in balanced_weights(self).items() if self.hyper.get(name) == "balanced"}
        objective, what = user_code.find_objective(self.objective), f"objective '{self.objective}'"
        hyper = user_code.fill_defaults(objective, {**self.hyper, **balanced}, what)
        object.__setattr__(self, "hyper", hyper)
        if user_code.is_imported(self.method_builder):
            builder = user_code.find_builder(self.method_builder, self.objective)
            method = user_code.fill_defaults(builder, self.method, f"the method of '{self.objective}'")
            object.__setattr__(self, "method", method)

    @property
    def split_seed(self) -> int:
        """Seed of the held-out fifth of a source without a test split: that of the run; 0 with `data.subset` or
        `data.validation`, whose images depend on `data.subset_seed` only.
        """
        return 0 if self.data.subset or self.data.validation else self.seed

    @property
    def fingerprint(self) -> str:
        """The hash that identifies the recipe in a checkpoint: of all fields that decide the weights."""
        later = LATER_FIELDS[""] | LATER_FIELDS.get(self.objective, {})
        fields = flatten(to_dict(self)).items()
        deciding = {name: x for name, x in fields if decides_weights(name) and not (name in later and x == later[name])}
        deciding["streaming"] = self.data.storage == "streaming"
        return hashlib.sha256(json.dumps(deciding, sort_keys=True).encode()).hexdigest()[:16]


# The fields that do not decide the weights, with the fields below them. A run may continue with other values of these:
# with its images in another place, on other devices, or with other logs. (The images are compared by their own
# fingerprint, and the weights of `init` by `init_hash`.)
FREE_FIELDS = (
    *("name", "init", "checkpoints", "keep_checkpoints", "log_every", "spectrum", "probe.epochs", "probe.labelled"),
    *("data.source", "data.storage", "data.workers", "data.max_error_fraction"),
    *("data.reading.follow_links", "data.reading.max_pixels", "data.reading.max_expansion"),
    *("machine.accelerator", "machine.devices", "machine.micro_batch", "machine.ghost_batchnorm", "machine.compile"),
    "machine.channels_last",
)

# Objective, or "" for all → its fields that came after the first stored fingerprints, with the value that changes
# nothing. At this value they are left out of the fingerprint, so checkpoints and rows of earlier versions keep theirs.
LATER_FIELDS: Mapping[str, dict[str, Any]] = {
    "": {"projector.output_iternorm": 0},
    "wmse": {"hyper.whitening": "cholesky"},
    "ivne": {"hyper.full": 2},
    "visreg": {"hyper.full": None},
}


def decides_weights(name: str) -> bool:
    """Return whether a field, by its dotted name, decides the weights of a run, up to rounding (with BatchNorm,
    `machine.micro_batch` decides them too; a resumed run says so).

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
    """Return whether a name is that of one folder on every system, not a path."""
    return bool(re.fullmatch(FOLDER_NAME, name)) and len(name.encode(errors="replace")) <= 200


def view_sizes(recipe: Recipe) -> dict[int, int]:
    """Return the number of views of each size, largest size first.

    >>> view_sizes(Recipe(views=(ViewConfig(size=24, count=6), ViewConfig(size=32, count=2))))
    {32: 2, 24: 6}
    """
    sizes = sorted({view.size for view in recipe.views}, reverse=True)
    return {size: sum(view.count for view in recipe.views if view.size == size) for size in sizes}


def code_names(recipe: Recipe) -> tuple[str, ...]:
    """Return the names of the user's functions in a recipe: code that must be imported before the recipe is trained.

    >>> code_names(Recipe(objective="my_module:my_loss", custom_transforms=("my_module:invert",)))
    ('my_module:my_loss', 'my_module:invert')
    """
    own = [name for name in (recipe.objective, recipe.method_builder) if ":" in name]
    return tuple(dict.fromkeys((*own, *recipe.custom_transforms)))


def import_code(recipe: Recipe, trust: bool | Collection[str] = False, notify: Notify = silent) -> Recipe:
    """Import the user's functions that a recipe names, and return the recipe with all its hyperparameters.

    Args:
        recipe: any recipe.
        trust: True: import all functions. A collection of names: import these. What was imported before in this process
            counts as trusted.
        notify: is called with one line for each import.

    Raises:
        UserError: the recipe names a function that is not trusted, the import fails, or `trust` has another type.

    >>> import_code(Recipe(), trust=False) == Recipe()
    True
    """
    if isinstance(trust, str) or not isinstance(trust, bool | Collection):
        raise UserError(f"trust is {trust!r}, expected True, False, or a list of names such as ['my_module:my_loss']")
    for name in code_names(recipe):
        if trust if isinstance(trust, bool) else name in trust:
            user_code.import_function(name, notify=notify)
        else:
            user_code.imported_function(name)
    return replace(recipe)


def to_dict(recipe: Recipe) -> dict[str, Any]:
    """Return the recipe as a JSON object, the content of recipe.json.

    >>> to_dict(Recipe())["schedule"]["milestones"]
    [60.0, 80.0]
    """
    return json.loads(json.dumps(asdict(recipe)))


def from_dict(values: Any) -> Recipe:
    """Build a recipe from the result of `to_dict`; a missing field takes its default.

    Raises:
        UserError: a field does not exist or has the wrong type.

    >>> from_dict({"epochs": 3}) == Recipe(epochs=3)
    True
    """
    return from_json(Recipe, values, "recipe")


def read_recipe(path: Path) -> Recipe:
    """Read `recipe.json`. Nothing that it names is imported.

    Raises:
        UserError: the file is missing, damaged, or not a recipe.
    """
    try:
        text = read_text(path)
    except FileNotFoundError:
        remedy = "give the folder that `fullrank pretrain` wrote"
        raise UserError(f"no run at {path.parent}: it has no {path.name}; {remedy}") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}); restore it, or start a new run") from error
    return from_json(Recipe, text, str(path))


def flatten(tree: Any, prefix: str = "", separator: str = ".") -> dict[str, Any]:
    """Return the leaves of a nested JSON object: joined names → value; a list of numbers or words is one leaf.

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
        for name, leaf in flatten(branch, f"{prefix}{separator}{key}" if prefix else str(key), separator).items()
    }
