"""Whether labels agree with an order without labels: accuracies of the same models, and Kendall's τ with an
interval.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int64
from scipy.stats import kendalltau, spearmanr

from fullrank.evaluation.bootstrap import interval, resampled_means
from fullrank.evaluation.choosing.measures import MEASURES

if TYPE_CHECKING:
    from fullrank.evaluation.choosing.result import Choice


class Agreement(NamedTuple):
    """How well the order by a measure agrees with the order by accuracy."""

    tau: float
    """Kendall's τ: the share of pairs of models in the same order minus that of pairs in the other order."""
    interval: tuple[float, float]
    """95 % interval of τ over test images and random halves of the images."""
    rho: float
    """Spearman's ρ; NaN if all values or all accuracies are equal."""
    chance: float
    """Probability of a τ at least as large if all orders are equally likely."""


@dataclass(frozen=True)
class LabelledOrder:
    """The accuracies of the models on the same labelled test images."""

    data: str
    statement: str
    train_images: int
    right: dict[str, Bool[np.ndarray, "n models"]] = field(repr=False)
    """Probe → whether the model is right on each labelled test image."""
    groups: Int64[np.ndarray, " n"] = field(repr=False)
    """The group of each test image; images of one group are drawn together."""

    @property
    def test_images(self) -> int:
        """Number of labelled test images."""
        return len(self.groups)

    def accuracies(self, probe: str) -> Float[np.ndarray, " models"]:
        """Return the accuracy of each model."""
        return self.right[probe].mean(axis=0)

    @cached_property
    def _resampled(self) -> dict[str, Float[np.ndarray, "resamples models"]]:
        return {probe: resampled_means(right.astype(float), self.groups) for probe, right in self.right.items()}

    def intervals(self, probe: str) -> list[tuple[float, float]]:
        """Return the 95 % bootstrap interval of the accuracy of each model, over groups of test images."""
        low, high = interval(self._resampled[probe])
        return [(float(a), float(b)) for a, b in zip(low, high, strict=True)]

    def agreement(self, choice: "Choice", measure: str, probe: str) -> Agreement:
        """Compare the order of the models by a measure with that by the accuracy of a probe."""
        sign, candidates = MEASURES[measure].sign, choice.candidates
        values = sign * np.array([candidate.values[measure] for candidate in candidates])
        varied = values + sign * np.stack([candidate.deviations[measure] for candidate in candidates], axis=1)
        means = self._resampled[probe]
        drawn = varied[np.random.default_rng(0).integers(len(varied), size=len(means))]
        low, high = interval(concordance(drawn, means)[:, None])
        accuracies = self.accuracies(probe)
        tau = float(concordance(values[None], accuracies[None])[0])
        told_apart = len(set(values)) > 1 and len(set(accuracies)) > 1
        kendall: Any = kendalltau(values, accuracies, alternative="greater") if told_apart else None
        spearman: Any = spearmanr(values, accuracies) if told_apart else None
        rho, chance = (float(spearman.statistic), float(kendall.pvalue)) if told_apart else (np.nan, 1.0)
        return Agreement(tau, (float(low[0]), float(high[0])), rho, chance)

    def best(self, probe: str) -> list[int]:
        """Return the models that are not clearly less accurate than the most accurate one, the most accurate first."""
        accuracies, means = self.accuracies(probe), self._resampled[probe]
        first = int(accuracies.argmax())
        _, high = interval(means - means[:, [first]])
        return [first, *(int(i) for i in np.argsort(-accuracies, kind="stable") if i != first and high[i] >= 0)]

    def verdict(self, choice: "Choice") -> str:
        """Return one sentence: whether the order by the decisive measure holds for the labels."""
        probe, key = next(iter(self.right)), choice.decisive
        found, names, best = self.agreement(choice, key, probe), choice.short_names, self.best(probe)
        text = f"On the labels ({probe}), {names[best[0]]} is the most accurate ({self.accuracies(probe)[best[0]]:.1%})"
        if len(best) > 1:
            text += f", not told apart from {', '.join(names[i] for i in best[1:])}"
        if choice.chosen:
            holds = choice.names.index(choice.chosen) in best
            text += f"; the choice without labels is {'among' if holds else 'not among'} the best"
        low, high = found.interval
        return (
            f"{text}. Kendall's τ of {MEASURES[key].name} is {found.tau:.2f} [{low:.2f}, {high:.2f}] over {len(names)} models; "
            f"of random orders, {found.chance:.0%} are as good."
        )

    def to_dict(self, choice: "Choice") -> dict[str, Any]:
        """Return accuracies, intervals and agreements as JSON."""
        return {
            "data": self.data,
            "statement": self.statement,
            "train images": self.train_images,
            "test images": self.test_images,
            "verdict": self.verdict(choice),
            "probes": {
                probe: {
                    "accuracy": self.accuracies(probe).round(6).tolist(),
                    "interval": [[round(bound, 6) for bound in pair] for pair in self.intervals(probe)],
                    "agreement": {key: _rounded(self.agreement(choice, key, probe)) for key in MEASURES},
                }
                for probe in self.right
            },
        }


def concordance(x: Float[np.ndarray, "b n"], y: Float[np.ndarray, "b n"]) -> Float[np.ndarray, " b"]:
    """Return Kendall's τ_a of each pair of rows; a tie counts as neither order.

    >>> concordance(np.array([[1.0, 2, 3]]), np.array([[1.0, 3, 2]])).round(3).tolist()
    [0.333]
    """
    i, j = np.triu_indices(x.shape[1], 1)
    return (np.sign(x[:, i] - x[:, j]) * np.sign(y[:, i] - y[:, j])).mean(axis=1)


def _rounded(found: Agreement) -> dict[str, Any]:
    def number(value: float) -> float | None:
        return round(value, 4) if np.isfinite(value) else None

    low, high = found.interval
    return {
        "tau": number(found.tau),
        "interval": [number(low), number(high)],
        "rho": number(found.rho),
        "chance": number(found.chance),
    }
