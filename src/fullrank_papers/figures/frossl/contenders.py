"""The methods that the FroSSL paper's tables compare, and those that it does not name: all objectives of the library.

Under their published recipes each method has its own optimizer, views and heads (`resolve`). In a common recipe
all have the same views, backbone, projector, optimizer and number of epochs; the numbers of a method here are then
those of its loss and of the parts that only it has.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from fullrank.recipes import Recipe, resolve, with_objective
from fullrank.recipes.cifar import without_logarithms

# The first three are the groups of the paper's Tables 2 and 3.
Family = Literal[
    "sample-contrastive", "asymmetric", "dimension-contrastive", "kernel or entropy", "without a projector"
]


@dataclass(frozen=True)
class Contender:
    """A method: its name in tables, its objective, and the numbers that only it has in a common recipe.

    Attributes:
        hyper: Hyperparameters of the objective in a common recipe; for the objective of that recipe its own come first.
        method: Hyperparameters of the method's own parts in a common recipe.
    """

    label: str
    family: Family
    objective: str
    hyper: Mapping[str, Any] = field(default_factory=dict)
    method: Mapping[str, Any] = field(default_factory=dict)


CIFAR10_IMAGES = 50_000

# Published values of the losses on CIFAR-10: solo-learn's configurations; for Barlow Twins and VICReg those of their
# authors (VICReg's variance weight is half of solo-learn's on our scale); for CorInfoMax and I-VNE+ those of the FroSSL
# authors' fork. Where nothing stands here, the default of the library is the published value. `scaled_parts` has the
# sizes that follow the data set or the projector. DINO's published momentum 0.9995 needs 2,000 steps to move the
# teacher, more than a short run has, so it is BYOL's here.
# Name → method, in the order of the paper's tables with the methods that they lack in between. 'nologs' is FroSSL
# without logarithms.
CONTENDERS: dict[str, Contender] = {
    "simclr": Contender("SimCLR", "sample-contrastive", "simclr", {"temperature": 0.2}),
    "swav": Contender("SwAV", "sample-contrastive", "swav", {"temperature": 0.1, "epsilon": 0.05, "iterations": 3}),
    "moco": Contender("MoCo v2", "sample-contrastive", "moco", {"temperature": 0.2}, {"momentum": (0.99, 0.999)}),
    "spectral_contrastive": Contender("spectral contrastive", "sample-contrastive", "spectral_contrastive"),
    "simsiam": Contender("SimSiam", "asymmetric", "simsiam"),
    "byol": Contender("BYOL", "asymmetric", "byol", {}, {"momentum": (0.99, 1.0)}),
    "dino": Contender(
        "DINO",
        "asymmetric",
        "dino",
        {"student_temperature": 0.1, "teacher_temperature": 0.07},
        {"freeze": 1.0, "momentum": (0.99, 1.0)},
    ),
    "vicreg": Contender(
        "VICReg", "dimension-contrastive", "vicreg", {"invariance": 25.0, "variance": 25.0, "covariance": 1.0}
    ),
    "barlow_twins": Contender("Barlow Twins", "dimension-contrastive", "barlow_twins", {"redundancy": 5e-3}),
    "wmse": Contender("W-MSE 2", "dimension-contrastive", "wmse", {"slice_size": 128, "epsilon": 0.0}),
    "corinfomax": Contender(
        "CorInfoMax", "dimension-contrastive", "corinfomax", {"invariance": 250.0, "epsilon": 1e-6, "forgetting": 0.01}
    ),
    "corinfomax_batch": Contender("CorInfoMax (batch)", "dimension-contrastive", "corinfomax_batch"),
    "tico": Contender("TiCo", "dimension-contrastive", "tico"),
    "nologs": Contender("FroSSL (no logs)", "dimension-contrastive", "frossl"),
    "frossl": Contender("FroSSL", "dimension-contrastive", "frossl"),
    "ssl_hsic": Contender("SSL-HSIC", "kernel or entropy", "ssl_hsic"),
    "ivne": Contender("I-VNE+", "kernel or entropy", "ivne", {"alignment": 4.16, "entropy": 1.0}),
    "simmer": Contender("SimMER", "kernel or entropy", "simmer"),
    "directclr": Contender("DirectCLR", "without a projector", "directclr", {"temperature": 0.1}),
    "directclr_paper": Contender("DirectCLR (as printed)", "without a projector", "directclr_paper"),
}


def common_recipe(recipe: Recipe, name: str) -> Recipe:
    """Return a recipe of FroSSL for another method, with everything else that can be equal left equal.

    >>> from fullrank.recipes import RECIPES
    >>> [common_recipe(RECIPES["cifar10-small"], name).projector.widths for name in ("vicreg", "wmse", "directclr")]
    [(512, 256), (512, 64), ()]
    """
    contender = CONTENDERS[name]
    if contender.objective == recipe.objective:
        return without_logarithms(recipe) if name == "nologs" else recipe
    found = with_objective(recipe, contender.objective)
    hyper = dict(contender.hyper)
    if contender.objective == "wmse":
        hyper["slice_size"] = min(int(hyper["slice_size"]), recipe.batch_size)
    return replace(
        found, hyper=found.hyper | hyper, method=found.method | dict(contender.method) | scaled_parts(recipe, name)
    )


def scaled_parts(recipe: Recipe, name: str) -> dict[str, int]:
    """Return the sizes of a method's own parts that follow the data set or the projector.

    Numbers of prototypes and the queue are the published ones times the number of images, divided by CIFAR-10's 50,000;
    the queue holds whole batches. A predictor has the published share of the projector: as wide as its hidden layer for
    BYOL, a quarter of D for SimSiam.

    >>> from fullrank_papers.figures.frossl.sizes import SMALL
    >>> [scaled_parts(SMALL, name) for name in ("swav", "moco", "byol")]
    [{'prototypes': 300}, {'queue': 3200}, {'predictor': 256}]
    """
    share = (recipe.data.subset or CIFAR10_IMAGES) / CIFAR10_IMAGES
    batches = max(1, int(32768 * share) // recipe.batch_size)
    parts = {
        "swav": {"prototypes": round(3000 * share)},
        "dino": {"prototypes": round(4096 * share)},
        "moco": {"queue": batches * recipe.batch_size},
        "byol": {"predictor": recipe.projector.widths[0]},
        "simsiam": {"predictor": recipe.projector.widths[-1] // 4},
    }
    return parts.get(name, {})


def own_recipe(recipe: Recipe, name: str, epochs: int) -> Recipe:
    """Return the published recipe of a method on the data set of `recipe`, for `epochs` epochs.

    Where a method has none, it is FroSSL's with the method's objective (`resolve`), and has the name of FroSSL's.
    """
    found = resolve(recipe, {"objective": CONTENDERS[name].objective})
    if name == "nologs":
        found = replace(without_logarithms(found), name=f"{found.name}-nologs")
    return resolve(found, {"epochs": epochs}) if epochs != found.epochs else found
