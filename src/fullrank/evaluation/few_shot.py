"""What a handful of labels is worth, averaged over which images happen to be labelled."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from fullrank.errors import UserError
from fullrank.evaluation.linear import fit_logistic, logits
from fullrank.evaluation.result import count_classes, drop_unlabelled, topk_accuracy


@dataclass(frozen=True)
class FewShot:
    """The accuracies of several draws of labels."""

    accuracies: tuple[float, ...]

    @property
    def mean(self) -> float:
        return float(np.mean(self.accuracies))

    @property
    def sd(self) -> float:
        """The sample standard deviation, which estimates that of a single draw."""
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
    """Fit a logistic regression to `labels` training images a class, `draws` times, each on its own random choice.

    Features should be standardised by the statistics of all training images, which need no label. With so few labels the classes can
    be separated perfectly, and `penalty` only picks a wide margin.

    Args:
        X: standardised training features.
        y: their labels, -1 for none.
        X_test: test features, standardised likewise.
        y_test: their labels, -1 for none.
        labels: labels a class; all of them in a class that has fewer.
        draws: how often images are chosen.
        penalty: of ½‖W‖² beside the mean loss.
        seed: the draws are a function of it.

    Raises:
        UserError: fewer than two classes are labelled.

    >>> X, y = torch.tensor([[-1.0], [-2], [1], [2]]), torch.tensor([0, 0, 1, 1])
    >>> few = few_shot(X, y, X, y, labels=1)
    >>> few.mean, few.sd, len(few.accuracies)
    (1.0, 0.0, 20)
    """
    X, y = drop_unlabelled(X, y)
    if len(y.unique()) < 2:
        raise UserError(f"a linear probe tells classes apart, and {len(y.unique())} of them is labelled; label images of two or more")
    classes = count_classes(y, y_test)
    generator = torch.Generator().manual_seed(seed)
    accuracies = []
    for _ in range(draws):
        rows = draw_labels(y, labels=labels, generator=generator)
        model = fit_logistic(X[rows], y[rows], penalty=penalty)
        accuracies.append(topk_accuracy(logits(model, X_test, classes=classes), y_test).accuracy)
    return FewShot(tuple(accuracies))


def draw_labels(y: Int64[Tensor, " n"], *, labels: int, generator: torch.Generator) -> Int64[Tensor, " few"]:
    """Choose up to `labels` rows of each class, uniformly and without replacement.

    >>> rows = draw_labels(torch.tensor([0, 0, 0, 1]), labels=2, generator=torch.Generator().manual_seed(0))
    >>> len(rows), 3 in rows
    (3, True)
    """
    order = torch.randperm(len(y), generator=generator).to(y.device)
    order = order[y[order].argsort(stable=True)]  # by class, at random within a class
    counts = y.bincount()
    first = counts.cumsum(0) - counts  # where each class begins in that order
    rank = torch.arange(len(y), device=y.device) - first[y[order]]
    return order[rank < labels]
