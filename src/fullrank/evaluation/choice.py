"""The measures of a model that need no labels, and the comparison of models by them."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from rich import box
from rich.console import Console, ConsoleOptions
from rich.table import Column, Table
from rich.text import Text
from torch import Tensor

from fullrank.errors import UserError, printable
from fullrank.evaluation.nearest import nearest
from fullrank.evaluation.score import Score
from fullrank.files import atomic_write, check_suffix
from fullrank.spectrum import Spectrum, intraclass_correlation
from fullrank.spectrum.hypersphere import normalize_rows

SUFFIXES = (".json", ".csv")  # of the files of `Choice.save`
# Relative difference of two values that rounding can cause.
ROUNDING = 1e-5


class Sample(NamedTuple):
    """The features of the same n images: of each image, and of two augmented views of it."""

    X: Float[Tensor, "n D"]
    first: Float[Tensor, "n D"]
    second: Float[Tensor, "n D"]


def graph_stability(X: Float[Tensor, "n D"], Y: Float[Tensor, "n D"], *, k: int = 10) -> float:
    """Return the mean share of the k nearest neighbours of an image that its two views have in common, in [0, 1].

        mean_i |N_X(i) ∩ N_Y(i)| / k

    X and Y are embeddings of two views of the same images. Neighbours are sought by cosine similarity among the
    embeddings of the same view. Independent graphs share k/(n − 1), so compare values of the same n and k. A network
    that knows only the colour of an image can be stable: the value does not say what is similar. Ties are broken at
    random for each image and each view, so a network whose embeddings are all equal has the value of independent
    graphs.

    Args:
        X: embeddings of one view of n images.
        Y: embeddings of another view.
        k: number of neighbours, less than n.

    Raises:
        UserError: the shapes differ, k is not between 1 and n − 1, or an embedding is not finite.

    Source: the overlap of neighbourhoods of Huh et al. 2024, The Platonic Representation Hypothesis (mutual k-nearest
    neighbours), there of two networks on one image, here of one network on two views.

    >>> X = torch.randn(20, 3)
    >>> graph_stability(X, 2 * X, k=5)
    1.0
    """
    if X.shape != Y.shape or not 1 <= k < len(X):
        shapes = f"X {tuple(X.shape)}, Y {tuple(Y.shape)}, k = {k}"
        raise UserError(f"got {shapes}, expected two views (n, D) of the same images, and 1 ≤ k < n")
    ties = torch.Generator().manual_seed(0)
    first, second = (nearest(normalize_rows(each), k, ties=ties)[1] for each in (X, Y))
    return (first[:, :, None] == second[:, None, :]).any(2).double().mean().item()


class Measure(NamedTuple):
    """A number that is computed from features without labels; higher is better."""

    name: str
    compute: Callable[[Sample], float]


# The measures, by their key in tables and files. The first one decides; `docs/choose.md` says how well each ordered
# runs of known accuracy. LiDAR ordered them almost as well as graph stability, but needs 50 views of each image and
# more images than dimensions, so it is not among them.
MEASURES: dict[str, Measure] = {
    "graph_stability": Measure("kNN-graph stability", lambda s: graph_stability(s.first, s.second)),
    "agreement": Measure(
        "agreement of the views", lambda s: intraclass_correlation(torch.stack([s.first, s.second])) or 0.0
    ),
    "rank_me": Measure("RankMe", lambda s: Spectrum.from_embeddings(s.X).rank_me()),
    "participation_ratio": Measure(
        "participation ratio", lambda s: Spectrum.from_embeddings(s.X).participation_ratio()
    ),
}
DECISIVE = next(iter(MEASURES))


@dataclass(frozen=True)
class Candidate:
    """One model: its measures on the images, and how they vary over random halves of the images.

    Attributes:
        values: Measure → value on all images.
        deviations: Measure → its value on each random half of the images minus the mean over the halves. The halves are
            the same for all models.
    """

    name: str
    dimensions: int
    values: dict[str, float]
    deviations: dict[str, Float[np.ndarray, " halves"]] = field(repr=False)


@dataclass(frozen=True)
class LabelledOrder:
    """The accuracies of the models on the same labelled test images, and how well the order without labels agrees.

    Attributes:
        scores: The accuracy of a linear probe and of kNN for each model, the most accurate model first.
        best: The models that are not clearly less accurate than the most accurate one by the linear probe.
        tau: Kendall's τ of the decisive measure and the linear accuracy: the share of pairs of models in the same order
            minus that of pairs in the other order.
        chance: Probability of a τ at least as large if all orders are equally likely.
    """

    data: str
    scores: tuple[Score, ...]
    best: tuple[str, ...]
    tau: float
    chance: float


@dataclass(frozen=True)
class Choice:
    """The comparison of models on the same images. `print` of rich shows it, and `save` writes JSON or CSV.

    Attributes:
        images: Number of images that were measured.
        skipped: Names of the images that cannot be read.
    """

    source: str
    images: int
    candidates: tuple[Candidate, ...]
    labelled: LabelledOrder | None = None
    skipped: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        """The names of the models."""
        return [candidate.name for candidate in self.candidates]

    def better(self, measure: str, a: int, b: int) -> bool:
        """Return whether model a is better than model b: the 95 % interval of the difference, on the same images and
        halves, does not contain 0. A difference that rounding can cause, a relative 10⁻⁵ of float32 features, is none.
        """
        first, second = self.candidates[a], self.candidates[b]
        half = margin(first.deviations[measure] - second.deviations[measure])
        rounding = ROUNDING * max(abs(first.values[measure]), abs(second.values[measure]))
        return first.values[measure] - second.values[measure] - half > rounding  # False for NaN

    def ranks(self, measure: str = DECISIVE) -> list[tuple[int, int]]:
        """Return the best and the worst rank that each model can have; models that do not differ share ranks."""
        models = range(len(self.candidates))
        ahead = [sum(self.better(measure, j, i) for j in models) for i in models]
        behind = [sum(self.better(measure, i, j) for j in models) for i in models]
        return [(1 + a, len(models) - b) for a, b in zip(ahead, behind, strict=True)]

    def order(self, measure: str = DECISIVE) -> list[int]:
        """Return the indices of the models, the best value first."""
        return sorted(range(len(self.candidates)), key=lambda i: -self.candidates[i].values[measure])

    @property
    def chosen(self) -> str | None:
        """The model that is better than every other by the decisive measure; None if there is no such model."""
        first, *others = self.order()
        return self.names[first] if all(self.better(DECISIVE, first, other) for other in others) else None

    @property
    def verdict(self) -> str:
        """One sentence: the chosen model, or the models that are tied; and whether the labels agree."""
        first, *others = self.order()
        what = f"{MEASURES[DECISIVE].name} ({self.candidates[first].values[DECISIVE]:.3g})"
        if self.chosen:
            text = f"{self.chosen} has the best {what}; the next is {self.names[others[0]]}."
        else:
            tied = ", ".join(self.names[i] for i in others if not self.better(DECISIVE, first, i))
            text = f"Not significant: by {what}, {self.names[first]} does not differ from {tied}; more images may help."
        text += " The intervals are over images, not over seeds of training."
        if found := self.labelled:
            text += f" By the labels, the best are {', '.join(found.best)}; Kendall's τ is {found.tau:.2f}"
            text += f"; of random orders, {found.chance:.0%} are as good."
        return text

    @property
    def remarks(self) -> list[str]:
        """What a reader of the verdict must know: measures that prefer another model, different dimensions, too few
        images.
        """
        remarks = []
        for key, measure in MEASURES.items() if self.chosen else ():
            if self.better(key, first := self.order(key)[0], self.names.index(str(self.chosen))):
                remarks.append(f"By {measure.name}, {self.names[first]} is better.")
        dimensions = sorted({candidate.dimensions for candidate in self.candidates})
        if len(dimensions) > 1:
            span = f"between {dimensions[0]:,} and {dimensions[-1]:,} dimensions"
            remarks.append(f"The models have {span}, so their ranks are not comparable.")
        if self.images < 2 * dimensions[-1]:
            few = f"{self.images:,} images are few for {dimensions[-1]:,} dimensions"
            remarks.append(f"{few}: the ranks are too low, of all models.")
        return remarks

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each measure and model."""
        rows = []
        for key in MEASURES:
            for each, (best, worst) in zip(self.candidates, self.ranks(key), strict=True):
                value, half = each.values[key], margin(each.deviations[key])
                row = {"model": each.name, "dimensions": each.dimensions, "measure": key, "value": value}
                rows.append(row | {"low": value - half, "high": value + half, "best_rank": best, "worst_rank": worst})
        return rows

    def save(self, path: Path | str, *, overwrite: bool = False) -> None:
        """Write all numbers to FILE.json, or the rows to FILE.csv.

        Raises:
            UserError: the suffix is another one, the file exists, or it cannot be written.
        """
        import pandas  # takes a second to import

        suffix, rows = check_suffix(path, SUFFIXES), self.rows()
        with atomic_write(Path(path), overwrite=overwrite) as draft, draft.open("w", newline="") as file:
            if suffix == ".csv":
                return pandas.DataFrame(rows).to_csv(file, index=False, lineterminator="\n")
            content = {"source": self.source, "images": self.images, "chosen": self.chosen, "verdict": self.verdict}
            content |= {"remarks": self.remarks, "measures": rows, "labelled": self.labelled, "skipped": self.skipped}
            file.write(json.dumps(content, indent=2, default=vars) + "\n")

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Any]:
        accuracies = self.labelled.scores if self.labelled else ()
        heads = ["rank", *(measure.name for measure in MEASURES.values())]
        heads += dict.fromkeys(f"{score.name}, %" for score in accuracies)
        table = Table(Column("model", overflow="fold"), *heads, box=box.SIMPLE_HEAD)
        ranks = self.ranks()
        for i in self.order():
            (best, worst), model = ranks[i], self.candidates[i]
            cells = [f"{best}" if best == worst else f"{best}–{worst}"]
            cells += [f"{model.values[key]:.3g}\n±{margin(model.deviations[key]):.2g}" for key in MEASURES]
            own = (score for score in accuracies if score.features == model.name)
            cells += [f"{100 * s.value:.1f}\n{100 * (s.low or 0):.0f}–{100 * (s.high or 0):.0f}" for s in own]
            table.add_row(Text(printable(model.name)), *cells)
        yield Text(printable(f"{self.images:,} images of {self.source}; below the values, their 95 % intervals"))
        yield table
        yield from (Text(printable(line)) for line in (self.verdict, *self.remarks))


def margin(deviation: Float[np.ndarray, " halves"]) -> float:
    """Return half the width of the 95 % interval."""
    return 1.96 * float(deviation.std(ddof=1))
