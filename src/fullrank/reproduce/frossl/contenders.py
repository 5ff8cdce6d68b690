"""The methods that the FroSSL paper's tables compare, and those that it does not name: all objectives of the library.

Under their published recipes each method has its own optimizer, views and heads (`method_recipe`). In a common recipe all have the same
views, backbone, projector, optimizer and number of epochs; the numbers of a method here are then those of its loss and of the parts that
only it has. A published size that grows with the data set (prototypes, queue) is a tenth of the published one, because the common recipe
of size small has a tenth of the images.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from fullrank.errors import UserError
from fullrank.recipes import Recipe, method_recipe, with_choices, with_objective

Family = Literal["sample-contrastive", "asymmetric", "dimension-contrastive", "kernel or entropy", "without a projector"]
"""The first three are the groups of the paper's Tables 2 and 3."""


@dataclass(frozen=True)
class Contender:
    """A method: its name in tables, its objective, and the numbers that only it has in a common recipe."""

    label: str
    family: Family
    objective: str
    hyper: Mapping[str, Any] = field(default_factory=dict)
    """Hyperparameters of the objective in a common recipe; for the objective of that recipe its own come first."""
    method: Mapping[str, Any] = field(default_factory=dict)
    """Hyperparameters of the method's own parts in a common recipe."""


DIRECTCLR_SHARE = 360 / 2048
"""Share of the dimensions of r that DirectCLR's loss sees (Jing et al. 2022)."""

# Published values of the losses on CIFAR-10: solo-learn's configurations; for VICReg the values of its authors (half of solo-learn's
# variance weight on our scale); for CorInfoMax and I-VNE+ those of the FroSSL authors' fork.
# The defaults of the library are the published ones where nothing stands here. The predictors have the published share of the projector's
# width: as wide as its hidden layer for BYOL, a quarter of D for SimSiam. DINO's published momentum 0.9995 needs 2,000 steps to move the
# teacher, more than a short run has, so it is BYOL's here.
CONTENDERS: dict[str, Contender] = {
    "simclr": Contender("SimCLR", "sample-contrastive", "simclr", {"temperature": 0.2}),
    "swav": Contender("SwAV", "sample-contrastive", "swav", {"temperature": 0.1, "epsilon": 0.05, "iterations": 3}, {"prototypes": 300}),
    "moco": Contender("MoCo v2", "sample-contrastive", "moco", {"temperature": 0.2}, {"queue": 3200, "momentum": (0.99, 0.999)}),
    "spectral_contrastive": Contender("spectral contrastive", "sample-contrastive", "spectral_contrastive"),
    "simsiam": Contender("SimSiam", "asymmetric", "simsiam", {}, {"predictor": 64}),
    "byol": Contender("BYOL", "asymmetric", "byol", {}, {"predictor": 256, "momentum": (0.99, 1.0)}),
    "dino": Contender(
        "DINO",
        "asymmetric",
        "dino",
        {"student_temperature": 0.1, "teacher_temperature": 0.07},
        {"prototypes": 410, "freeze": 1.0, "momentum": (0.99, 1.0)},
    ),
    "vicreg": Contender("VICReg", "dimension-contrastive", "vicreg", {"invariance": 25.0, "variance": 25.0, "covariance": 1.0}),
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
"""Name → method, in the order of the paper's tables with the methods that they lack in between. 'nologs' is FroSSL without logarithms."""


def common_recipe(recipe: Recipe, name: str) -> Recipe:
    """Return a recipe of FroSSL for another method, with everything else that can be equal left equal.

    >>> from fullrank.recipes import RECIPES
    >>> [common_recipe(RECIPES["cifar10-small"], name).projector.widths for name in ("vicreg", "wmse", "directclr")]
    [(512, 256), (512, 64), ()]
    """
    contender = CONTENDERS[name]
    if contender.objective == recipe.objective:
        return without_logs(recipe) if name == "nologs" else recipe
    found = with_objective(recipe, contender.objective)
    hyper = dict(contender.hyper)
    if contender.objective.startswith("directclr"):
        hyper["d0"] = max(1, round(DIRECTCLR_SHARE * representation_width(recipe)))
    if contender.objective == "wmse":
        hyper["slice_size"] = min(int(hyper["slice_size"]), recipe.batch_size)
    return replace(found, hyper=found.hyper | hyper, method=found.method | dict(contender.method))


def own_recipe(recipe: Recipe, name: str, epochs: int) -> Recipe:
    """Return the published recipe of a method on the data set of `recipe`, for `epochs` epochs.

    Where a method has none, it is FroSSL's with the method's objective (`method_recipe`).
    """
    found, _ = method_recipe(recipe, CONTENDERS[name].objective)
    found = without_logs(found) if name == "nologs" else found
    return with_choices(found, epochs=epochs) if epochs != found.epochs else found


def without_logs(recipe: Recipe) -> Recipe:
    """Return a recipe of FroSSL without the logarithms.

    The logarithm divides the gradient of f = ‖ZᵀZ‖_F² by f, which is D²/min(D, N − 1) for decorrelated columns of unit norm. Without it, a
    variance weight of min(D, N − 1)/D² gives the two terms the balance that they have with it.

    >>> from fullrank.recipes import RECIPES
    >>> without_logs(RECIPES["cifar10-small"]).hyper["variance"] == 127 / 256**2
    True
    """
    D = recipe.projector.dimensions(0)
    return replace(recipe, hyper=recipe.hyper | {"log": False, "variance": min(D, recipe.batch_size - 1) / D**2})


def representation_width(recipe: Recipe) -> int:
    """Return the dimension D_b of the representation of a ResNet of timm whose channels the recipe gives.

    Raises:
        UserError: the recipe does not give them.
    """
    channels = recipe.backbone.arguments.get("channels")
    if not channels:
        raise UserError(f"recipe {recipe.name} has no backbone.arguments.channels, expected the widths of a common recipe; give them")
    return int(channels[-1])
