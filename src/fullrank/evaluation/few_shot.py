"""Evaluation with few labels: a linear probe on some labels per class or on a fraction of them, averaged over random
choices of images.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from fullrank.evaluation.linear import check_classes, choose_penalty
from fullrank.evaluation.logistic import LogisticRegression
from fullrank.evaluation.protocol import FewShotProtocol, FractionsProtocol
from fullrank.evaluation.result import count_classes, drop_unlabelled, topk_accuracy


@dataclass(frozen=True)
class FewShot:
    """The accuracies over several random choices of labels."""

    accuracies: tuple[float, ...]
    top5: tuple[float, ...] = ()
    """Shares with the correct class among the five highest logits; empty for 10 classes or fewer."""
    hits: Float[Tensor, " m"] | None = field(default=None, compare=False)
    """For each labelled test image, the share of the choices with a correct classification."""

    @property
    def mean(self) -> float:
        return float(np.mean(self.accuracies))

    @property
    def sd(self) -> float | None:
        """The sample standard deviation over the choices, None for one choice."""
        return float(np.std(self.accuracies, ddof=1)) if len(self.accuracies) > 1 else None


def few_shot(
    X: Float[Tensor, "n D"],
    y: Int64[Tensor, " n"],
    X_test: Float[Tensor, "m D"],
    y_test: Int64[Tensor, " m"],
    *,
    labels: int = FewShotProtocol.labels[0],
    draws: int = FewShotProtocol.draws,
    penalty: float = FewShotProtocol.penalty,
    seed: int = 0,
) -> FewShot:
    """Fit a logistic regression to `labels` random training images per class, and repeat this `draws` times.

    Features should be standardised by the statistics of all training images, labelled or not. With so few labels,
    classes can usually be separated perfectly, so `penalty` only selects a wide margin.

    Args:
        X: standardised training features.
        y: labels of X, -1 for none.
        X_test: test features, standardised in the same way.
        y_test: labels of X_test, -1 for none.
        labels: number of labels per class; a class with fewer labels uses all labels.
        draws: number of random choices.
        penalty: weight of ½‖W‖² relative to the mean loss.
        seed: seed of the random choices.

    Raises:
        UserError: fewer than two classes have labels.

    >>> X, y = torch.tensor([[-1.0], [-2], [1], [2]]), torch.tensor([0, 0, 1, 1])
    >>> result = few_shot(X, y, X, y, labels=1)
    >>> result.mean, result.sd, len(result.accuracies)
    (1.0, 0.0, 20)
    """
    return _average(
        X, y, X_test, y_test, count=lambda y: labels, choose=lambda problem: penalty, draws=draws, seed=seed
    )


def label_fraction(
    X: Float[Tensor, "n D"],
    y: Int64[Tensor, " n"],
    X_test: Float[Tensor, "m D"],
    y_test: Int64[Tensor, " m"],
    *,
    fraction: float,
    draws: int = FractionsProtocol.draws,
    penalties: Sequence[float] = FractionsProtocol.penalties,
    iterations: int = FractionsProtocol.iterations,
    seed: int = 0,
) -> FewShot:
    """Fit a logistic regression to a random share of the labels of each class, and repeat this `draws` times.

    Args:
        X: standardised training features.
        y: labels of X, -1 for none.
        X_test: test features, standardised in the same way.
        y_test: labels of X_test, -1 for none.
        fraction: share of the labels of each class, rounded; at least one label.
        draws: number of random choices.
        penalties: candidates for the weight of ½‖W‖²; a held-out tenth of the drawn images selects one, for each draw.
            With fewer than ten drawn images per class, it is the middle one.
        iterations: maximum number of iterations per fit.
        seed: seed of the random choices.

    Raises:
        UserError: fewer than two classes have labels.

    >>> X, y = torch.tensor([[-1.0], [-2], [1], [2]]), torch.tensor([0, 0, 1, 1])
    >>> label_fraction(X, y, X, y, fraction=0.5, draws=3).accuracies
    (1.0, 1.0, 1.0)
    """

    def choose(problem: LogisticRegression) -> float:
        return choose_penalty(problem, penalties=penalties, iterations=iterations, seed=seed)[0]

    def count(y: Tensor) -> Tensor:
        return (y.bincount() * fraction).round().long().clamp_min(1)

    return _average(X, y, X_test, y_test, count=count, choose=choose, draws=draws, seed=seed, iterations=iterations)


def _average(
    X: Tensor,
    y: Tensor,
    X_test: Tensor,
    y_test: Tensor,
    *,
    count: Callable[[Tensor], int | Tensor],
    choose: Callable[[LogisticRegression], float],
    draws: int,
    seed: int,
    iterations: int = 100,
) -> FewShot:
    """Return the accuracies of classifiers on random choices of `count(y)` labels of each class, with the penalty that
    `choose` returns.
    """
    X, y = drop_unlabelled(X, y)
    check_classes(y)
    classes = count_classes(y, y_test)
    generator = torch.Generator().manual_seed(seed)
    results = []
    for _ in range(draws):
        rows = draw_labels(y, labels=count(y), generator=generator)
        problem = LogisticRegression(X[rows], y[rows])
        model = problem.fit(choose(problem), iterations=iterations)
        results.append(topk_accuracy(model.logits(X_test, classes=classes), y_test))
    hits = torch.stack([(result.predictions == y_test)[y_test >= 0] for result in results]).cpu().double().mean(0)
    top5 = tuple(result.top5 for result in results if result.top5 is not None)
    return FewShot(tuple(result.accuracy for result in results), top5, hits)


def draw_labels(
    y: Int64[Tensor, " n"], *, labels: int | Int64[Tensor, " classes"], generator: torch.Generator
) -> Int64[Tensor, " m"]:
    """Draw up to `labels` rows of each class, or a number for each class, uniformly and without replacement.

    >>> rows = draw_labels(torch.tensor([0, 0, 0, 1]), labels=2, generator=torch.Generator().manual_seed(0))
    >>> len(rows), 3 in rows
    (3, True)
    """
    order = torch.randperm(len(y), generator=generator).to(y.device)
    order = order[y[order].argsort(stable=True)]  # sorted by class, in random order within a class
    counts = y.bincount()
    first = counts.cumsum(0) - counts  # position of the first row of each class in `order`
    rank = torch.arange(len(y), device=y.device) - first[y[order]]
    return order[rank < (labels if isinstance(labels, int) else labels[y[order]])]
