"""How a published configuration becomes a recipe, and the conventions that all of them share.

A table of methods has one line a method, `method(…)`, with the numbers of its publication, and `entries` gives it a
data set. The learning rates of solo-learn and of the FroSSL authors' fork are those of 256 images, so a recipe has
the rate times batch size / 256. Their LARS has the clip of LARC and leaves out biases and norms (the default of
`OptimizerConfig`); their SGD and Adam decay all parameters.

What differs from the public configurations on purpose, in every recipe:

- The small stem is a 3×3 convolution with padding 1, which keeps 32 pixels. solo-learn's has padding 2, which makes 34.
- The warm-up of solo-learn's recipes starts at 0. Its own starts at 3e-5; `schedule.warmup_start` sets another start.
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
from dataclasses import dataclass, replace
from typing import Any, Literal

from fullrank.methods.config import BackboneConfig, ProjectorConfig
from fullrank.objectives.signature import hyperparameters
from fullrank.recipes.augmentations import AugmentationSets
from fullrank.recipes.recipe import Recipe
from fullrank.recipes.user_code import find_objective
from fullrank.training.config import OptimizerConfig

SOLO_LEARN = "solo-learn's configuration"
FORK = "the configuration of FroSSL's authors"
RECIPE_FIELDS = ("backbone", "batch_size", "epochs", "machine", "projector", "schedule")
# The configuration of a method, see `method`.
Method = dict[str, Any]


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


def resnet(name: str, stem: Literal["standard", "small"] = "standard", *, zero_last: bool = False) -> BackboneConfig:
    """Return a ResNet with the initial weights of torchvision's, which solo-learn trains.

    Args:
        name: the name of the network.
        stem: its stem.
        zero_last: whether the last scale of each block starts at 0, so that the block is the identity.
    """
    return BackboneConfig(name=name, arguments={"zero_init_last": zero_last}, stem=stem)


def mlp(*widths: int, **others: Any) -> ProjectorConfig:
    """Return an MLP with these widths, and BatchNorm in its hidden layers."""
    return ProjectorConfig(widths=widths, **others)


def method(
    optimizer: OptimizerConfig, projector: ProjectorConfig, views: str, source: str = SOLO_LEARN, **numbers: Any
) -> Method:
    """Return the published configuration of a method, without its data set; `|` changes some of its values.

    Args:
        optimizer: the optimizer; its learning rate is that of 256 images.
        projector: the projector.
        views: the name of an augmentation set.
        source: whose configuration it is.
        **numbers: hyperparameters of the objective and of the method, and other fields of the recipe (`RECIPE_FIELDS`).
    """
    return {"optimizer": optimizer, "projector": projector, "views": views, "source": source, **numbers}


def entries(
    base: Recipe, table: Mapping[str, Method], sets: AugmentationSets, *, remark: str = "{source}"
) -> Iterator[Entry]:
    """Yield the recipes of a data set, BASE-OBJECTIVE or BASE-OBJECTIVE-VARIANT for the keys OBJECTIVE and
    OBJECTIVE-VARIANT of the table.

    Args:
        base: data, size of the views, and what a method does not set of `RECIPE_FIELDS`. Its name is the family.
        table: the methods.
        sets: the augmentation sets of the data set.
        remark: the origin; {source} stands for the source of the method.

    >>> from fullrank.recipes.augmentations import SMALL_IMAGES
    >>> table = {"simclr": method(lars(0.4), mlp(2048, 256), "symmetric", temperature=0.5)}
    >>> (simclr,) = entries(Recipe(name="mine", batch_size=512), table, SMALL_IMAGES)
    >>> simclr.origin, simclr.name, simclr.recipe.optimizer.lr, simclr.recipe.hyper
    ("solo-learn's configuration", 'mine-simclr', 0.8, {'temperature': 0.5})
    """
    for key, values in table.items():
        numbers, objective = dict(values), key.partition("-")[0]
        optimizer, views, source = (numbers.pop(name) for name in ("optimizer", "views", "source"))
        fields = {name: numbers.pop(name) for name in RECIPE_FIELDS if name in numbers}
        of_the_loss = hyperparameters(find_objective(objective))
        recipe = replace(
            base,
            name=f"{base.name}-{key}",
            objective=objective,
            hyper={name: value for name, value in numbers.items() if name in of_the_loss},
            method={name: value for name, value in numbers.items() if name not in of_the_loss},
            views=sets[views](base.views[0].size),
            optimizer=replace(optimizer, lr=optimizer.lr * fields.get("batch_size", base.batch_size) / 256),
            **fields,
        )
        yield Entry(recipe, remark.format(source=source), base.name)
