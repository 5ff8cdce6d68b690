"""Probes of images with several labels: a logistic regression for each class, kNN, and the mean average precision of
their scores.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Bool, Float, Int8
from torch import Tensor
from torch.nn.functional import normalize

from fullrank.errors import UserError
from fullrank.evaluation.bootstrap import RESAMPLES, draws, units
from fullrank.evaluation.features import Features
from fullrank.evaluation.linear import FEW_LABELS
from fullrank.evaluation.logistic import Logistic, LogisticRegression
from fullrank.evaluation.protocol import KnnProtocol, LinearProtocol

METRIC = "mean average precision"
"""The main metric of several labels an image, as a score names it."""
CELLS = 2**23
"""Numbers in memory at the same time."""
LARGEST = 1_000_000
"""With more test images times classes, an interval has `FEW_RESAMPLES` resamples, because it would take longer than the
probe."""
FEW_RESAMPLES = 400


@dataclass(frozen=True)
class MultiLabelResult:
    """The scores of the classes for each test image."""

    scores: Float[Tensor, "m K"]
    """Predicted probability of each class, by itself; only its order in a class counts."""
    chosen: dict[str, float] = field(default_factory=dict)
    """What was chosen on held-out training features: `{"penalty": 1e-3}`."""
    note: str = ""
    """What a reader of the score must know."""


@dataclass(frozen=True)
class MultiLabelMetrics:
    """Metrics of scores of several labels an image."""

    mean_average_precision: float
    """Mean of the average precision over the classes with a positive image."""
    auroc: float | None
    """Mean of the area under the ROC curve over the classes with a positive and a negative image; None without such a
    class."""
    average_precision: dict[int, float]
    """Class → average precision, of the classes with a positive image."""
    positives: dict[int, int]
    """Class → number of positive images, of the same classes."""


def multi_label_metrics(Y: Bool[np.ndarray, "n K"], scores: Float[np.ndarray, "n K"]) -> MultiLabelMetrics:
    """Compute the metrics of labelled test images.

        AP = Σₜ (Rₜ − Rₜ₋₁) Pₜ

    with precision P and recall R of the images whose score is at least the t-th highest; equal scores count together.
    Source: `sklearn.metrics.average_precision_score`; the mean over classes is that of Everingham et al. 2015, The
    PASCAL Visual Object Classes
    Challenge: A Retrospective, without interpolation.

    Args:
        Y: which image has which class.
        scores: the score of each class.

    >>> metrics = multi_label_metrics(np.eye(3, 2) > 0, np.array([[0.9, 0.1], [0.5, 0.2], [0.4, 0.3]]))
    >>> round(metrics.mean_average_precision, 3), metrics.auroc, metrics.positives
    (0.75, 0.75, {0: 1, 1: 1})
    """
    from sklearn.metrics import average_precision_score, roc_auc_score  # here, because it takes a second

    present = np.flatnonzero(Y.any(0)).tolist()
    both = [k for k in present if not Y[:, k].all()]
    precision = {k: float(average_precision_score(Y[:, k], scores[:, k])) for k in present}
    return MultiLabelMetrics(
        mean_average_precision=float(np.mean(list(precision.values()))),
        auroc=float(np.mean([roc_auc_score(Y[:, k], scores[:, k]) for k in both])) if both else None,
        average_precision=precision,
        positives={k: int(Y[:, k].sum()) for k in present},
    )


def chance_precision(features: Features) -> float | None:
    """Return the mean average precision of equal scores, the mean share of positives over classes with one; None for
    one label an image.

    >>> Y = torch.tensor([[1, 0, 0], [1, 1, 0], [0, 0, 0], [0, 0, 0]], dtype=torch.int8)
    >>> features = Features(torch.zeros(4, 1), torch.full((4,), -1), [], (), Y)
    >>> chance_precision(features)
    0.375
    """
    if features.multi_labels is None:
        return None
    shares = (features.multi_labels[features.labelled] == 1).double().mean(0)
    return float(shares[shares > 0].mean())


def resampled_precisions(
    Y: Bool[np.ndarray, "n K"],
    scores: Float[np.ndarray, "n K"],
    groups: np.ndarray | None = None,
    *,
    resamples: int | None = None,
    seed: int = 0,
) -> Float[np.ndarray, " resamples"]:
    """Return the mean average precision in random resamples of the rows; the draws of a seed are those of
    `resampled_means`.

    A class without a positive image in a resample is left out of its mean; without any, the mean is NaN.

    Args:
        Y: which image has which class.
        scores: the score of each class.
        groups: the group of each row, see `resampled_means`.
        resamples: number of resamples; None: 2000, or 400 for more than a million images times classes.
        seed: seed of the resamples.

    >>> Y = np.array([[True], [False], [True], [False]])
    >>> float(np.nanmin(resampled_precisions(Y, Y.astype(float), resamples=50)))
    1.0
    """
    n, unit = len(Y), units(groups, len(Y))
    resamples = (RESAMPLES if Y.size <= LARGEST else FEW_RESAMPLES) if resamples is None else resamples
    order = np.argsort(-scores, axis=0, kind="stable")  # (n, K), the highest score first
    ends = [
        np.append(np.flatnonzero(np.diff(scores[rows, k])), n - 1) for k, rows in enumerate(order.T)
    ]  # the last row of each value
    means = []
    for times in draws(int(unit.max()) + 1, resamples, np.random.default_rng(seed), rows_of_memory=n):
        weights, total, count = times[:, unit], 0.0, 0.0
        for k in np.flatnonzero(Y.any(0)):
            drawn, last = weights[:, order[:, k]], ends[k]
            found, seen = (drawn * Y[order[:, k], k]).cumsum(1)[:, last], drawn.cumsum(1)[:, last]
            gained = np.diff(found, axis=1, prepend=0.0)
            with np.errstate(
                invalid="ignore", divide="ignore"
            ):  # nothing may be drawn of the highest scores, nor of the class
                precision = np.where(seen > 0, gained * found / seen, 0.0).sum(1) / found[:, -1]
            total, count = total + np.nan_to_num(precision), count + (found[:, -1] > 0)
        means.append(np.where(count > 0, total / np.maximum(count, 1), np.nan))
    return np.concatenate(means)


def multi_label_linear(
    X: Float[Tensor, "n D"],
    Y: Int8[Tensor, "n K"],
    X_test: Float[Tensor, "m D"],
    *,
    penalties: Sequence[float] = LinearProtocol.penalties,
    iterations: int = LinearProtocol.iterations,
    seed: int = 0,
) -> MultiLabelResult:
    """Fit one logistic regression for each class by L-BFGS. Held-out training features select one L2 penalty for all
    classes.

        min_w,b  (1/n) Σᵢ log(1 + exp(−sᵢ (w·xᵢ + b))) + ½ penalty ‖w‖²,    sᵢ = ±1

    The penalty has the highest mean average precision on a random tenth of the features that are held out; with fewer
    than 1000 images, on all images, each of which is held out once. For ties, it is the largest.

    Args:
        X: standardised training features.
        Y: labels of X: 1 has the class, 0 lacks it; rows of -1 have no labels.
        X_test: test features, standardised in the same way.
        penalties: candidates in descending order; each fit starts from the previous solution.
        iterations: maximum number of iterations per fit.
        seed: seed of the choice of the held-out features.

    Raises:
        UserError: no class has both an image with it and one without it.

    >>> X, Y = torch.tensor([[-1.0, 1], [1, 1], [1, -1]]), torch.tensor([[0, 1], [1, 1], [1, 0]], dtype=torch.int8)
    >>> (multi_label_linear(X, Y, X).scores > 0.5).int().tolist()
    [[0, 1], [1, 1], [1, 0]]
    """
    labelled = Y[:, 0] >= 0
    X, positive = X[labelled], Y[labelled].to(X.device) == 1
    if not _learnable(positive).any():
        raise UserError(
            "a linear probe needs a class with images that have it and images that lack it; label more images"
        )
    problem = LogisticRegression(X, positive[:, 0].long())
    penalty = _choose_penalty(problem, positive, penalties=penalties, iterations=iterations, seed=seed)
    logits, _ = _fit(problem, positive, X_test, penalty, iterations=iterations)
    return MultiLabelResult(logits.sigmoid(), {"penalty": penalty}, _note(positive))


def multi_label_knn(
    X: Float[Tensor, "n D"],
    Y: Int8[Tensor, "n K"],
    X_test: Float[Tensor, "m D"],
    *,
    k: int = KnnProtocol.k,
    temperature: float = KnnProtocol.temperature,
) -> MultiLabelResult:
    """Score each class by the weighted share of the k nearest training images that have it, with weights exp(cos /
    temperature).

    The arguments are those of `knn`; Y is that of `multi_label_linear`.

    >>> X, Y = torch.tensor([[1.0, 0], [0, 1]]), torch.tensor([[1, 0], [1, 1]], dtype=torch.int8)
    >>> multi_label_knn(X, Y, torch.tensor([[0.0, 2]]), k=1).scores.tolist()
    [[1.0, 1.0]]
    """
    labelled = Y[:, 0] >= 0
    X, positive = X[labelled], (Y[labelled] == 1).to(X)
    keys, k = normalize(X).mT, min(k, int(labelled.sum()))
    shares = []
    for Q in X_test.split(max(CELLS // max(len(X), k * positive.shape[1]), 1)):
        nearest = (normalize(Q) @ keys).topk(k, dim=1)
        weights = (nearest.values / temperature).softmax(1)
        shares.append(torch.einsum("mk,mkc->mc", weights, positive[nearest.indices]))
    return MultiLabelResult(torch.cat(shares), note=_note(positive == 1))


def _learnable(positive: Bool[Tensor, "n K"]) -> Bool[Tensor, " K"]:
    return positive.any(0) & ~positive.all(0)


def _note(positive: Bool[Tensor, "n K"]) -> str:
    missing = int((~positive.any(0)).sum())
    return (
        f"{missing} of {positive.shape[1]} classes have no training image, so their scores are equal for all test images"
        if missing
        else ""
    )


def _fit(
    problem: LogisticRegression,
    positive: Bool[Tensor, "n K"],
    X_test: Float[Tensor, "m D"],
    penalty: float,
    *,
    iterations: int,
    rows: Bool[Tensor, " n"] | None = None,
    start: dict[int, Logistic] | None = None,
    tolerance: float = 1e-7,
) -> tuple[Float[Tensor, "m K"], dict[int, Logistic]]:
    """Return the logits of the classes, 0 for classes that cannot be learned from the rows, and the fitted
    classifiers.
    """
    logits, models = X_test.new_zeros(len(X_test), positive.shape[1]), {}
    for k in _learnable(positive if rows is None else positive[rows]).nonzero().flatten().tolist():
        fit = {"rows": rows, "start": (start or {}).get(k), "iterations": iterations, "tolerance": tolerance}
        models[k] = problem.with_labels(positive[:, k].long()).fit(penalty, **fit)
        logits[:, k] = models[k].logits(X_test, classes=2).diff(dim=1).flatten()
    return logits, models


def _choose_penalty(
    problem: LogisticRegression,
    positive: Bool[Tensor, "n K"],
    *,
    penalties: Sequence[float],
    iterations: int,
    seed: int,
) -> float:
    """Return the penalty with the highest mean average precision on held-out rows; with fewer than 10 rows, the middle
    one.
    """
    n = len(positive)
    if n < 10 or len(penalties) == 1:
        return penalties[len(penalties) // 2]
    tenths = np.random.default_rng(seed).permutation(n) * 10 // n
    used = range(10 if n < FEW_LABELS else 1)
    held_out = [torch.from_numpy(tenths == tenth).to(positive.device) for tenth in used]
    starts: list[dict[int, Logistic]] = [{} for _ in used]
    Y, precisions = torch.cat([positive[held] for held in held_out]).cpu().numpy(), []
    if not Y.any():
        return penalties[len(penalties) // 2]
    for penalty in penalties:
        parts = []
        for tenth, held in enumerate(held_out):
            options = {"rows": ~held, "start": starts[tenth], "iterations": iterations, "tolerance": 1e-5}
            logits, starts[tenth] = _fit(problem, positive, problem.features[held], penalty, **options)
            parts.append(logits)
        precisions.append(multi_label_metrics(Y, torch.cat(parts).double().cpu().numpy()).mean_average_precision)
        if max(precisions[-2:]) < max(
            precisions
        ):  # two in a row are worse than the best one: weaker penalties overfit more
            break
    return penalties[int(np.argmax(precisions))]
