"""Metrics of a classifier beside accuracy: functions of labels, predictions and probabilities, from scikit-learn."""

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int64

LARGEST_CONFUSION = 30
"""With more classes than this, the confusion matrix is not stored."""


@dataclass(frozen=True)
class ClassMetrics:
    """What an accuracy hides when classes have different sizes."""

    balanced_accuracy: float
    """Mean over the classes of the share of their test images that are classified correctly (recall)."""
    auroc: float | None
    """Mean over the classes of the area under the ROC curve, one class against the others; None if all images have one
    class."""
    per_class: dict[int, float]
    """The recall of each class with test images."""
    confusion: tuple[tuple[int, ...], ...]
    """Number of test images by true class (row) and predicted class (column), of all classes; () for more than 30
    classes."""


def class_metrics(
    y: Int64[np.ndarray, " n"], predictions: Int64[np.ndarray, " n"], probabilities: Float[np.ndarray, "n K"] | None
) -> ClassMetrics:
    """Compute the metrics of labelled test images.

    Args:
        y: the labels.
        predictions: the predicted classes.
        probabilities: the predicted probabilities of the classes, whose order decides the AUROC; None: no AUROC.

    >>> y, p = np.array([0, 0, 0, 1]), np.array([[0.9, 0.1], [0.8, 0.2], [0.4, 0.6], [0.3, 0.7]])
    >>> metrics = class_metrics(y, p.argmax(1), p)
    >>> round(metrics.balanced_accuracy, 3), metrics.auroc, metrics.confusion
    (0.833, 1.0, ((2, 1), (0, 1)))
    """
    from sklearn.metrics import confusion_matrix, recall_score, roc_auc_score  # here, because it takes a second

    present = np.unique(y)
    each: Any = None  # one recall for each class; scikit-learn's annotation lacks it
    recalls: Any = recall_score(y, predictions, labels=present, average=each)
    auroc = None
    if probabilities is not None and len(present) > 1 and np.isfinite(probabilities).all():
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            auroc = float(np.mean([roc_auc_score(y == label, probabilities[:, label]) for label in present]))
    classes = max(int(max(y.max(), predictions.max())) + 1, 0 if probabilities is None else probabilities.shape[1])
    matrix = (
        confusion_matrix(y, predictions, labels=range(classes))
        if classes <= LARGEST_CONFUSION
        else np.zeros((0, 0), int)
    )
    return ClassMetrics(
        balanced_accuracy=float(np.mean(recalls)),
        auroc=auroc,
        per_class={int(label): float(recall) for label, recall in zip(present, recalls, strict=True)},
        confusion=tuple(tuple(map(int, row)) for row in matrix),
    )
