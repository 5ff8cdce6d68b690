"""The result of `choose`: values with intervals, ranks that abstain where intervals overlap, and the sentence."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

import numpy as np
from jaxtyping import Float

from fullrank.evaluation.choosing.halves import margin
from fullrank.evaluation.choosing.labelled import LabelledOrder
from fullrank.evaluation.choosing.measures import MEASURES
from fullrank.spectrum import Spectrum

ROUNDING = 1e-5
"""Relative difference of two values that rounding can cause."""
LIMITS = (
    "No measure without labels knows your task. A network that sees only colour or texture can have stable neighbours and a full spectrum.",
    "An interval says how much a value depends on which images were drawn. It does not say how well the measure predicts accuracy.",
    "A measure of views rewards a network for what its training made invariant. If the classes differ in colour, orientation or scale, "
    "which the views change, the order can be wrong.",
    "Compare models of different families, sizes or numbers of dimensions with care: the study compares runs of one network.",
    "A few hundred labels decide better: fullrank choose … --labelled SOURCE, or fullrank evaluate.",
)
"""What no measure without labels can do."""


@dataclass(frozen=True)
class Candidate:
    """One model: its measures on the images, and how they vary over random halves of the images."""

    name: str
    size: int
    """Side of the images that the network receives, in pixels."""
    values: dict[str, float]
    """Measure → value on all images."""
    deviations: dict[str, Float[np.ndarray, " halves"]] = field(repr=False)
    """Measure → its value on each random half of the images minus the mean over the halves. The halves are the same for
    all models."""
    spectrum: Spectrum = field(repr=False)

    @property
    def dimensions(self) -> int:
        """The number of features D."""
        return self.spectrum.D

    def interval(self, measure: str) -> tuple[float, float]:
        """Return the 95 % interval of a measure."""
        half = margin(self.deviations[measure])
        return self.values[measure] - half, self.values[measure] + half


@dataclass(frozen=True)
class Choice:
    """The comparison of models on the same images."""

    source: str
    images: int
    """Number of images that were measured."""
    candidates: tuple[Candidate, ...]
    labelled: LabelledOrder | None = None
    skipped: tuple[str, ...] = ()
    """Names of the images that cannot be read."""

    @property
    def names(self) -> list[str]:
        """The names of the models."""
        return [candidate.name for candidate in self.candidates]

    @property
    def short_names(self) -> list[str]:
        """The names of the models in tables and sentences: without the folders that all of them begin with."""
        return short_names(self.names)

    @property
    def decisive(self) -> str:
        """The key of the measure that decides."""
        return next(key for key, measure in MEASURES.items() if measure.decides)

    def difference(self, measure: str, a: int, b: int) -> tuple[float, float]:
        """Return the 95 % interval of the value of model a minus that of model b, on the same images and halves."""
        first, second = self.candidates[a], self.candidates[b]
        half = margin(first.deviations[measure] - second.deviations[measure])
        middle = first.values[measure] - second.values[measure] if np.isfinite(half) else np.nan
        return middle - half, middle + half

    def better(self, measure: str, a: int, b: int) -> bool:
        """Return whether model a is better than model b by a measure: the interval of the difference does not contain
        0.

        A difference that rounding can cause, a relative 10⁻⁵ of float32 features, is none.
        """
        low, high = self.difference(measure, a, b)
        rounding = ROUNDING * max(abs(self.candidates[i].values[measure]) for i in (a, b))
        return low > rounding if MEASURES[measure].sign > 0 else high < -rounding

    def ranks(self, measure: str) -> list[tuple[int, int]]:
        """Return the best and the worst rank that each model can have; models that are not told apart share ranks."""
        count = len(self.candidates)
        others = [[other for other in range(count) if other != i] for i in range(count)]
        return [
            (
                1 + sum(self.better(measure, j, i) for j in others[i]),
                count - sum(self.better(measure, i, j) for j in others[i]),
            )
            for i in range(count)
        ]

    def order(self, measure: str) -> list[int]:
        """Return the indices of the models, the best value first; values that are no number come last."""
        sign = MEASURES[measure].sign
        keys = [sign * candidate.values[measure] for candidate in self.candidates]
        return sorted(range(len(keys)), key=lambda i: -keys[i] if np.isfinite(keys[i]) else np.inf)

    @property
    def chosen(self) -> str | None:
        """The model that is better than every other by the decisive measure; None if there is no such model."""
        first, *others = self.order(self.decisive)
        return (
            self.candidates[first].name if all(self.better(self.decisive, first, other) for other in others) else None
        )

    @property
    def verdict(self) -> str:
        """One sentence: the chosen model, or the models that are tied."""
        measure, key, names = MEASURES[self.decisive], self.decisive, self.short_names
        first, *others = self.order(key)
        best = self.candidates[first]
        if self.chosen:
            low, high = sorted(measure.sign * bound for bound in self.difference(key, first, others[0]))
            behind = f"the next, {names[others[0]]}, is {low:.2g} to {high:.2g} behind"
            return f"{names[first]} has the best {measure.name} ({best.values[key]:.3g}); {behind}."
        tied = [names[i] for i in others if not self.better(key, first, i)]
        return (
            f"Undecided: by {measure.name}, {names[first]} ({best.values[key]:.3g}) is not told apart from {_listed(tied)}; "
            f"more images narrow the intervals{', labels decide' if self.labelled is None else ''}."
        )

    @property
    def remarks(self) -> list[str]:
        """What a reader of the verdict must know: measures that prefer another model, different dimensions, too few
        images.
        """
        remarks = []
        if self.chosen:
            leader = self.names.index(self.chosen)
            against = {
                measure.name: self.short_names[i]
                for key, measure in MEASURES.items()
                if not measure.decides and self.better(key, i := self.order(key)[0], leader)
            }
            remarks += [f"By {name}, {model} is better." for name, model in against.items()]
        dimensions = sorted({candidate.dimensions for candidate in self.candidates})
        if len(dimensions) > 1:
            span = f"between {dimensions[0]:,} and {dimensions[-1]:,} dimensions"
            remarks.append(f"The models have {span}, so their ranks and spectra are not comparable.")
        if self.images < 2 * dimensions[-1]:
            remarks.append(
                f"{self.images:,} images are few for {dimensions[-1]:,} dimensions: the ranks are too low, of all models."
            )
        return remarks

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON: values, intervals, ranks, eigenvalues, and the order by labels."""
        ranks = {key: self.ranks(key) for key in MEASURES}
        models = [
            {
                "model": candidate.name,
                "dimensions": candidate.dimensions,
                "size": candidate.size,
                "measures": {
                    key: {
                        "value": _number(candidate.values[key]),
                        "interval": [_number(bound) for bound in candidate.interval(key)],
                        "ranks": list(ranks[key][i]),
                    }
                    for key in MEASURES
                },
                "eigenvalues": [_number(value) for value in candidate.spectrum.eigenvalues.tolist()],
            }
            for i, candidate in enumerate(self.candidates)
        ]
        return {
            "source": self.source,
            "images": self.images,
            "decided by": self.decisive,
            "chosen": self.chosen,
            "verdict": self.verdict,
            "remarks": self.remarks,
            "models": models,
            "labelled": self.labelled.to_dict(self) if self.labelled else None,
            "skipped": list(self.skipped),
        }

    def to_csv(self) -> str:
        """Return a row for each model and measure: model, dimensions, measure, value, low, high, best rank, worst
        rank.
        """
        stream = io.StringIO()
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(["model", "dimensions", "measure", "value", "low", "high", "best_rank", "worst_rank"])
        for key in MEASURES:
            for candidate, rank in zip(self.candidates, self.ranks(key), strict=True):
                writer.writerow(
                    [candidate.name, candidate.dimensions, key, candidate.values[key], *candidate.interval(key), *rank]
                )
        return stream.getvalue()


def short_names(names: Sequence[str]) -> list[str]:
    """Return the names without the folders that all of them begin with.

    >>> short_names(["runs/photos/a", "runs/photos/b@100"]), short_names(["runs/a", "timm:resnet18"])
    (['a', 'b@100'], ['runs/a', 'timm:resnet18'])
    """
    parts = [name.split("/") for name in names]
    folders = zip(*(part[:-1] for part in parts), strict=False)
    shared = len(list(takewhile(lambda level: len(set(level)) == 1, folders)))
    return ["/".join(part[shared:]) for part in parts]


def _number(value: float) -> float | None:
    return float(f"{value:.6g}") if np.isfinite(value) else None


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
