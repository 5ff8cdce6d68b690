"""How a published configuration becomes a recipe, and the conventions that all of them share.

A table of methods has one `Configuration` a method, with the numbers of its publication. `entries` gives it a data set: the learning rate
of solo-learn and of the FroSSL authors' fork is that of 256 images, and is multiplied by batch size / 256. Their LARS has the clip of LARC and
adapts no biases and norms (the default of `OptimizerConfig`); their SGD and Adam decay all parameters.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fullrank.config import OptimizerConfig, ProjectorConfig
from fullrank.recipes.augmentations import Views
from fullrank.recipes.functions import fill_defaults
from fullrank.recipes.recipe import Recipe
from fullrank.signatures import declared_objective

KEPT_DIFFERENCES = (
    "The small stem is a 3×3 convolution with padding 1, which keeps the 32 pixels. solo-learn's has padding 2, which makes 34 of them.",
    "The warm-up starts at 0. solo-learn's starts at 3e-5; `schedule.warmup_start` sets another start.",
    "MoCo has one queue for the keys of both views. solo-learn's has one for each view.",
    "The online probe has an optimizer of its own (`probe.lr`). solo-learn's has that of the backbone, with LARS where the backbone has it.",
    "The losses are those of the papers and of `docs/objectives.md`. solo-learn's VICReg adds the hinge of both views instead of taking the "
    "mean (`hyper.variance` 50 gives its loss), and its W-MSE sends no gradient through one of the two views.",
    "Statistics of a batch are those of the whole batch on any number of devices: BatchNorm, and each loss. In solo-learn some are local.",
    "The precision is chosen for the machine (`machine.precision`), except where a fork's file asks for float32; solo-learn's is float16.",
)
"""What differs from the public configurations on purpose, in every recipe."""

SOLO_LEARN = "solo-learn's configuration"
FORK = "the configuration of FroSSL's authors"

RECIPE_FIELDS = ("backbone", "batch_size", "epochs", "machine", "schedule")


def lars(lr: float, weight_decay: float = 1e-4, **others: Any) -> OptimizerConfig:
    """Return LARS with the clip of LARC."""
    return OptimizerConfig(name="lars", lr=lr, weight_decay=weight_decay, **others)


def sgd(lr: float, weight_decay: float, **others: Any) -> OptimizerConfig:
    """Return SGD with weight decay of all parameters."""
    return OptimizerConfig(name="sgd", lr=lr, weight_decay=weight_decay, decay_all=True, **others)


def adam(lr: float, weight_decay: float) -> OptimizerConfig:
    """Return Adam with weight decay of all parameters."""
    return OptimizerConfig(name="adam", lr=lr, weight_decay=weight_decay, decay_all=True)


def mlp(*widths: int, **others: Any) -> ProjectorConfig:
    """Return an MLP with these widths, and BatchNorm in its hidden layers."""
    return ProjectorConfig(widths=widths, **others)


@dataclass(frozen=True)
class Configuration:
    """The published configuration of a method, without its data set."""

    optimizer: OptimizerConfig
    """Optimizer; its learning rate is that of 256 images."""
    projector: ProjectorConfig
    views: str
    """Name of an augmentation set."""
    source: str = SOLO_LEARN
    """Whose configuration it is."""
    numbers: Mapping[str, Any] = field(default_factory=dict)
    """Hyperparameters of the objective and of the method, and other fields of the recipe (`RECIPE_FIELDS`)."""

    def but(self, **changes: Any) -> "Configuration":
        """Return the configuration with changes: of `optimizer`, `projector`, `views`, `source`, or of a number.

        >>> configuration(lars(0.4), mlp(2048, 256), "symmetric", temperature=0.2).but(temperature=0.5).numbers
        {'temperature': 0.5}
        """
        own = {name: changes.pop(name) for name in ("optimizer", "projector", "views", "source") if name in changes}
        return replace(self, **own, numbers={**self.numbers, **changes})


def configuration(
    optimizer: OptimizerConfig, projector: ProjectorConfig, views: str, source: str = SOLO_LEARN, **numbers: Any
) -> Configuration:
    """Return the configuration of a method in one line of a table."""
    return Configuration(optimizer, projector, views, source, numbers)


@dataclass(frozen=True)
class Entry:
    """A recipe of the library, and where it comes from."""

    recipe: Recipe
    origin: str
    """Whose recipe it is, and in what it differs from the publication, besides `KEPT_DIFFERENCES`."""
    family: str = ""
    """Name of the recipe of FroSSL on this data set, the first of the recipes that `--objective` chooses from; empty: none."""


def entries(
    base: Recipe, table: Mapping[str, Configuration], views: Mapping[str, Views], *, remark: str = "{source}", family: str = ""
) -> Iterator[Entry]:
    """Yield the recipes of a data set, BASE-OBJECTIVE or BASE-OBJECTIVE-VARIANT for the keys OBJECTIVE and OBJECTIVE-VARIANT of the table.

    Args:
        base: data, backbone, schedule, epochs and batch size, unless a configuration has its own.
        table: the methods.
        views: the augmentation sets of the data set.
        remark: the origin; {source} stands for the source of the configuration.
        family: name of the family, if it is not `base.name`.

    >>> from fullrank.recipes.augmentations import small_image_views
    >>> table = {"simclr": configuration(lars(0.4), mlp(2048, 256), "symmetric", temperature=0.5)}
    >>> (entry,) = entries(Recipe(name="mine", batch_size=512), table, small_image_views(32))
    >>> entry.recipe.name, entry.recipe.optimizer.lr, entry.recipe.hyper, entry.origin
    ('mine-simclr', 0.8, {'temperature': 0.5}, "solo-learn's configuration")
    """
    for key, found in table.items():
        objective = key.partition("-")[0]
        hyper_names = fill_defaults(declared_objective(objective), {}, objective)
        fields = {name: value for name, value in found.numbers.items() if name in RECIPE_FIELDS}
        numbers = {name: value for name, value in found.numbers.items() if name not in RECIPE_FIELDS}
        batch_size = fields.get("batch_size", base.batch_size)
        recipe = replace(
            base,
            name=f"{base.name}-{key}",
            objective=objective,
            hyper={name: value for name, value in numbers.items() if name in hyper_names},
            method={name: value for name, value in numbers.items() if name not in hyper_names},
            views=views[found.views],
            projector=found.projector,
            optimizer=replace(found.optimizer, lr=found.optimizer.lr * batch_size / 256),
            **fields,
        )
        yield Entry(recipe, remark.format(source=found.source), family or base.name)
