"""The methods that the FroSSL paper's tables compare, and those that it does not name."""

from dataclasses import dataclass, replace
from typing import Literal

from fullrank.errors import pick
from fullrank.recipes import RECIPES, Recipe, resolve
from fullrank.recipes.cifar import without_logarithms

# The first three are the groups of the paper's Tables 2 and 3.
Family = Literal[
    "sample-contrastive", "asymmetric", "dimension-contrastive", "kernel or entropy", "without a projector"
]


@dataclass(frozen=True)
class Contender:
    """A method: its name in tables, and its family."""

    label: str
    family: Family


# Objective → method, in the order of the paper's tables with the methods that they lack in between. 'nologs' is FroSSL
# without logarithms.
CONTENDERS: dict[str, Contender] = {
    "simclr": Contender("SimCLR", "sample-contrastive"),
    "swav": Contender("SwAV", "sample-contrastive"),
    "moco": Contender("MoCo v2", "sample-contrastive"),
    "spectral_contrastive": Contender("spectral contrastive", "sample-contrastive"),
    "simsiam": Contender("SimSiam", "asymmetric"),
    "byol": Contender("BYOL", "asymmetric"),
    "dino": Contender("DINO", "asymmetric"),
    "vicreg": Contender("VICReg", "dimension-contrastive"),
    "barlow_twins": Contender("Barlow Twins", "dimension-contrastive"),
    "wmse": Contender("W-MSE 2", "dimension-contrastive"),
    "corinfomax": Contender("CorInfoMax", "dimension-contrastive"),
    "corinfomax_batch": Contender("CorInfoMax (batch)", "dimension-contrastive"),
    "tico": Contender("TiCo", "dimension-contrastive"),
    "nologs": Contender("FroSSL (no logs)", "dimension-contrastive"),
    "frossl": Contender("FroSSL", "dimension-contrastive"),
    "ssl_hsic": Contender("SSL-HSIC", "kernel or entropy"),
    "ivne": Contender("I-VNE+", "kernel or entropy"),
    "simmer": Contender("SimMER", "kernel or entropy"),
    "directclr": Contender("DirectCLR", "without a projector"),
    "directclr_paper": Contender("DirectCLR (as printed)", "without a projector"),
}

LABELS = {name: contender.label for name, contender in CONTENDERS.items()}
LABELS |= {"moco_v3": "MoCo v3", "vibcreg": "VIbCReg", "lejepa": "LeJEPA", "visreg": "VISReg", "mmcr": "MMCR"}
LABELS |= {"rdmreg": "Rectified LpJEPA", "emp_ssl": "EMP-SSL"}
"""Name → label, also of objectives that came after the tables."""


def own_recipe(recipe: Recipe, name: str, epochs: int) -> Recipe:
    """Return the published recipe of a method on the data set of `recipe`, for `epochs` epochs.

    Of lightly's benchmark, it is the method's recipe there. Elsewhere, where a method has none, it is FroSSL's with the
    method's objective (`resolve`), and has the name of FroSSL's.
    """
    if recipe.name.endswith("-lightly"):
        return pick(recipe.name.replace("frossl", name), RECIPES, "recipe")
    found = resolve(recipe, {"objective": "frossl" if name == "nologs" else name})
    if name == "nologs":
        found = replace(without_logarithms(found), name=f"{found.name}-nologs")
    return resolve(found, {"epochs": epochs}) if epochs != found.epochs else found
