"""One cell of a sweep: a recipe to train, how its network is evaluated, and the settings that distinguish it from the
other cells.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from fullrank.errors import UserError
from fullrank.recipes import Recipe
from fullrank.recipes.recipe import is_folder_name
from fullrank.structure import PathText, Requirement, Text, validate

Setting = str | int | float | bool
CellName = Annotated[Text, Requirement("that is the name of one folder", is_folder_name)]
RESERVED = ("logs", "rows.jsonl", "table.md", "table.csv", "accuracy.svg", "accuracy.png", "report.html")
"""Names in the folder of a sweep that no cell may have."""


@dataclass(frozen=True, kw_only=True)
class EvaluationPlan:
    """What is measured on the frozen backbone after training, by the function of `fullrank evaluate`.

    >>> EvaluationPlan(probes=("knn",)).transfer
    ()
    """

    probes: tuple[Text, ...] = ("linear", "knn")
    """Names in `fullrank.evaluation.PROBES`. Empty: nothing is evaluated after training."""
    transfer: tuple[PathText, ...] = ()
    """Sources of other labelled data sets, on which the same probes are trained and scored."""
    all_images: bool = False
    """Train the probes on all training images although the network was trained on `data.subset`. By default they are
    trained on the images of the subset, and on other data sets on at most as many."""

    def __post_init__(self) -> None:
        validate(self, "evaluate.")

    def covers(self, other: "EvaluationPlan") -> bool:
        """Return whether everything in another plan is measured by this one.

        >>> EvaluationPlan().covers(EvaluationPlan(probes=("knn",))), EvaluationPlan().covers(EvaluationPlan(transfer=("digits",)))
        (True, False)
        """
        same = self.all_images == other.all_images
        return same and set(self.probes) >= set(other.probes) and set(self.transfer) >= set(other.transfer)

    def joined(self, other: "EvaluationPlan") -> "EvaluationPlan":
        """Return the plan that measures what this one or the other measures."""
        probes, transfer = (
            tuple(dict.fromkeys(a + b)) for a, b in ((self.probes, other.probes), (self.transfer, other.transfer))
        )
        return EvaluationPlan(probes=probes, transfer=transfer, all_images=other.all_images)


@dataclass(frozen=True)
class Cell:
    """One run of a sweep. Its run directory is the folder of this name in the folder of the sweep.

    Raises:
        UserError: the name is not that of one folder.

    >>> Cell("vicreg-lr0.001-seed0", Recipe(objective="vicreg"), {"objective": "vicreg", "optimizer.lr": 0.001}).recipe.objective
    'vicreg'
    """

    name: CellName
    recipe: Recipe
    settings: Mapping[str, Setting] = field(default_factory=dict)
    """The values in which the cells of a sweep differ, by the name of the flag, such as optimizer.lr; the seed is not
    one of them."""
    evaluate: EvaluationPlan = field(default_factory=EvaluationPlan)

    def __post_init__(self) -> None:
        if not is_folder_name(self.name) or self.name in RESERVED:
            raise UserError(
                f"the cell is called '{self.name}', expected the name of one folder, not {' or '.join(RESERVED)}; rename it"
            )
