"""Few-shot evaluation: train a linear probe on a few labels per class, and average over random choices of the labelled images."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from fullrank.errors import UserError
from fullrank.evaluation.logistic import LogisticRegression
from fullrank.evaluation.result import count_classes, drop_unlabelled, topk_accuracy


@dataclass(frozen=True)
class FewShot:
    """The accuracies over several random choices of labels."""

    accuracies: tuple[float, ...]

    @property
    def mean(self) -> float:
        return float(np.mean(self.accuracies))

    @property
    def sd(self) -> float:
        """The sample standard deviation over the choices."""
        return float(np.std(self.accuracies, ddof=1))


def few_shot(
    X: Float[Tensor, "n D"],
    y: Int64[Tensor, " n"],
    X_test: Float[Tensor, "m D"],
    y_test: Int64[Tensor, " m"],
    *,
    labels: int = 2,
    draws: int = 20,
    penalty: float = 1e-2,
    seed: int = 0,
) -> FewShot:
    """Fit a logistic regression to `labels` random training images per class, and repeat this `draws` times.

    Features should be standardised by the statistics of all training images, labelled or not. With so few labels, classes can usually be
    separated perfectly, so `penalty` only selects a wide margin.

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
    X, y = drop_unlabelled(X, y)
    if len(y.unique()) < 2:
        raise UserError(f"a linear probe needs labels of two or more classes, got {len(y.unique())}; label more images")
    classes = count_classes(y, y_test)
    generator = torch.Generator().manual_seed(seed)
    accuracies = []
    for _ in range(draws):
        rows = draw_labels(y, labels=labels, generator=generator)
        model = LogisticRegression(X[rows], y[rows]).fit(penalty)
        accuracies.append(topk_accuracy(model.logits(X_test, classes=classes), y_test).accuracy)
    return FewShot(tuple(accuracies))


def draw_labels(y: Int64[Tensor, " n"], *, labels: int, generator: torch.Generator) -> Int64[Tensor, " m"]:
    """Draw up to `labels` rows of each class, uniformly and without replacement.

    >>> rows = draw_labels(torch.tensor([0, 0, 0, 1]), labels=2, generator=torch.Generator().manual_seed(0))
    >>> len(rows), 3 in rows
    (3, True)
    """
    order = torch.randperm(len(y), generator=generator).to(y.device)
    order = order[y[order].argsort(stable=True)]  # sorted by class, in random order within a class
    counts = y.bincount()
    first = counts.cumsum(0) - counts  # position of the first row of each class in `order`
    rank = torch.arange(len(y), device=y.device) - first[y[order]]
    return order[rank < labels]
