"""How a published configuration becomes a recipe, and the conventions that all of them share.

A table of methods has one line a method, `configuration(…)`, with the numbers of its publication, and `entries` gives
it a data set. The learning rates of solo-learn and of the FroSSL authors' fork are those of 256 images, so a recipe has
the rate times batch size / 256. Their LARS has the clip of LARC and leaves out biases and norms (the default of
`OptimizerConfig`); their SGD and Adam decay all parameters.

What differs from the public configurations on purpose, in every recipe:

- The small stem is a 3×3 convolution with padding 1, which keeps 32 pixels. solo-learn's has padding 2, which makes 34.
- The warm-up starts at 0. solo-learn's starts at 3e-5; `schedule.warmup_start` sets another start.
- MoCo has one queue for the keys of both views. solo-learn's has one for each view.
- The online classifier has its own SGD and standardised features (`probe`). solo-learn's has the optimizer of the
  backbone, also LARS.
- The losses are those of the papers. solo-learn's W-MSE sends no gradient through one of the two views, and FroSSL in
  its authors' fork has not centred the embeddings since August 2024 (`hyper.center`).
- DINO's head starts from PyTorch's initial weights. solo-learn's starts from a normal distribution of deviation 0.02.
- BatchNorm and every loss see the whole batch on any number of devices. Some of solo-learn's losses see the images of
  one device.
- The precision is chosen for the machine (`machine.precision`), except where a file asks for float32; solo-learn's is
  float16.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from fullrank.methods.config import BackboneConfig, ProjectorConfig
from fullrank.objectives.signature import hyperparameters
from fullrank.recipes.augmentations import AugmentationSets
from fullrank.recipes.recipe import Recipe
from fullrank.recipes.user_code import find_objective
from fullrank.training.config import OptimizerConfig

SOLO_LEARN = "solo-learn's configuration"
FORK = "the configuration of FroSSL's authors"
RECIPE_FIELDS = ("backbone", "batch_size", "epochs", "machine", "schedule")


@dataclass(frozen=True)
class Entry:
    """A recipe of the library, and where it comes from.

    Attributes:
        origin: Whose recipe it is, and in what it differs from the publication, besides the differences above.
        family: Name of the recipe of FroSSL on this data set, the first of the recipes that `--objective` chooses from;
            empty: none.
    """

    recipe: Recipe
    origin: str
    family: str = ""

    @property
    def name(self) -> str:
        """The name of the recipe."""
        return self.recipe.name


def lars(lr: float, weight_decay: float = 1e-4, **others: Any) -> OptimizerConfig:
    """Return LARS with the clip of LARC."""
    return OptimizerConfig(name="lars", lr=lr, weight_decay=weight_decay, **others)


def sgd(lr: float, weight_decay: float, **others: Any) -> OptimizerConfig:
    """Return SGD with weight decay of all parameters."""
    return OptimizerConfig(name="sgd", lr=lr, weight_decay=weight_decay, decay_all=True, **others)


def adam(lr: float, weight_decay: float) -> OptimizerConfig:
    """Return Adam with weight decay of all parameters."""
    return OptimizerConfig(name="adam", lr=lr, weight_decay=weight_decay, decay_all=True)


def resnet(name: str, stem: Literal["standard", "small"] = "standard") -> BackboneConfig:
    """Return a ResNet with the initial weights of torchvision's, which solo-learn trains: timm's sets the last scale of
    each block to 0.
    """
    return BackboneConfig(name=name, arguments={"zero_init_last": False}, stem=stem)


def mlp(*widths: int, **others: Any) -> ProjectorConfig:
    """Return an MLP with these widths, and BatchNorm in its hidden layers."""
    return ProjectorConfig(widths=widths, **others)


@dataclass(frozen=True)
class Configuration:
    """The published configuration of a method, without its data set.

    Attributes:
        optimizer: Optimizer; its learning rate is that of 256 images.
        views: Name of an augmentation set.
        source: Whose configuration it is.
        numbers: Hyperparameters of the objective and of the method, and other fields of the recipe (`RECIPE_FIELDS`).
    """

    optimizer: OptimizerConfig
    projector: ProjectorConfig
    views: str
    source: str = SOLO_LEARN
    numbers: Mapping[str, Any] = field(default_factory=dict)

    def but(self, **changes: Any) -> "Configuration":
        """Return the configuration with changes: of `optimizer`, `projector`, `views`, `source`, or of a number.

        >>> configuration(lars(0.4), mlp(2048, 256), "symmetric", temperature=0.2).but(temperature=0.5).numbers
        {'temperature': 0.5}
        """
        own = {name: changes.pop(name) for name in ("optimizer", "projector", "views", "source") if name in changes}
        return replace(self, **own, numbers={**self.numbers, **changes})


def configuration(
    optimizer: OptimizerConfig, projector: ProjectorConfig, views: str, source: str = SOLO_LEARN, /, **numbers: Any
) -> Configuration:
    """Return the configuration of a method in one line of a table; `numbers` are those of `Configuration`."""
    return Configuration(optimizer, projector, views, source, numbers)


def entries(
    base: Recipe, table: Mapping[str, Configuration], sets: AugmentationSets, *, remark: str = "{source}"
) -> Iterator[Entry]:
    """Yield the recipes of a data set, BASE-OBJECTIVE or BASE-OBJECTIVE-VARIANT for the keys OBJECTIVE and
    OBJECTIVE-VARIANT of the table.

    Args:
        base: data, size of the views, and what a configuration does not set of `RECIPE_FIELDS`. Its name is the family.
        table: the methods.
        sets: the augmentation sets of the data set.
        remark: the origin; {source} stands for the source of the configuration.

    >>> from fullrank.recipes.augmentations import SMALL_IMAGES
    >>> table = {"simclr": configuration(lars(0.4), mlp(2048, 256), "symmetric", temperature=0.5)}
    >>> (simclr,) = entries(Recipe(name="mine", batch_size=512), table, SMALL_IMAGES)
    >>> simclr.origin, simclr.name, simclr.recipe.optimizer.lr, simclr.recipe.hyper
    ("solo-learn's configuration", 'mine-simclr', 0.8, {'temperature': 0.5})
    """
    for key, found in table.items():
        objective = key.partition("-")[0]
        of_the_loss = hyperparameters(find_objective(objective))
        fields = {name: value for name, value in found.numbers.items() if name in RECIPE_FIELDS}
        numbers = {name: value for name, value in found.numbers.items() if name not in RECIPE_FIELDS}
        recipe = replace(
            base,
            name=f"{base.name}-{key}",
            objective=objective,
            hyper={name: value for name, value in numbers.items() if name in of_the_loss},
            method={name: value for name, value in numbers.items() if name not in of_the_loss},
            views=sets[found.views](base.views[0].size),
            projector=found.projector,
            optimizer=replace(found.optimizer, lr=found.optimizer.lr * fields.get("batch_size", base.batch_size) / 256),
            **fields,
        )
        yield Entry(recipe, remark.format(source=found.source), base.name)
