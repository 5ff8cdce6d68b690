"""From predictions to scores: metrics, their 95 % intervals, and paired comparisons of feature sets."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int64
from scipy.special import softmax
from torch import Tensor

from fullrank.evaluation import bootstrap
from fullrank.evaluation.paired import paired_difference
from fullrank.evaluation.score import (
    ACCURACY,
    AUROC,
    BALANCED,
    LARGEST_CONFUSION,
    MAIN_METRICS,
    MAP,
    TOP5,
    Comparison,
    Score,
    main_score,
)
from fullrank.images import Images, MemoryImages

# Top-5 accuracy is reported for more classes than this: with 10 classes, chance alone gives 50 %.
MANY_CLASSES = 10
# With more test images times classes, the AUROC has no interval: its resamples would take longer than the probe.
LARGEST_AUROC = 250_000
# With more test images times classes, an interval of the mean average precision has a fifth of the resamples.
LARGEST_MAP = 1_000_000


class Prediction(NamedTuple):
    """What a probe says about the labelled test images.

    Attributes:
        logits: The score of each class; for multi-label images, only the order of the images in a class counts.
        chosen: What was chosen on held-out training features: `{"penalty": 1e-3}`.
        note: What a reader of the score must know.
    """

    logits: Float[Tensor, "m K"]
    chosen: dict[str, float] = {}  # noqa: RUF012  never changed
    note: str = ""


@dataclass(frozen=True)
class Target:
    """The labels of the labelled test images.

    Attributes:
        labels: Class numbers (m,), or which image has which class (m, K), boolean.
        groups: (m,) The group of each image, -1 for an image of its own.
        classes: The names of the classes; a class without a name has its number.
    """

    labels: np.ndarray
    groups: np.ndarray
    classes: tuple[str, ...] = ()

    @classmethod
    def of(cls, images: Images | MemoryImages, rows: Int64[Tensor, " m"]) -> "Target":
        """Return the labels of some labelled images."""
        labels = images.labels if images.multi_labels is None else images.multi_labels == 1
        labels, groups = (torch.as_tensor(values).cpu()[rows].numpy() for values in (labels, images.groups))
        return cls(labels, groups, tuple(images.classes))

    @property
    def present(self) -> list[int]:
        """The classes with a test image."""
        return (np.unique(self.labels) if self.labels.ndim == 1 else np.flatnonzero(self.labels.any(0))).tolist()

    @property
    def positive(self) -> np.ndarray:
        """Which image has which of the classes that are present."""
        return self.labels[:, None] == self.present if self.labels.ndim == 1 else self.labels[:, self.present]

    @property
    def chance(self) -> float:
        """The share of the most frequent class, or for multi-label images the mean average precision of equal
        scores: the mean share of positives over the classes with one.
        """
        shares = self.positive.mean(0)
        return float(shares.max() if self.labels.ndim == 1 else shares.mean())

    def class_name(self, k: int) -> str:
        """Return the name of class k, or its number if it has none."""
        return self.classes[k] if k < len(self.classes) else str(k)

    def by_name(self, values: Iterable[Any]) -> dict[str, Any]:
        """Return the values of the classes that are present, by their names."""
        return dict(zip(map(self.class_name, self.present), values, strict=True))


class Outcome(NamedTuple):
    """A score with what its interval needs.

    Attributes:
        statistic: The score as a function of the weights of the test images.
        repetitions: The value of each repetition.
    """

    score: Score
    statistic: bootstrap.Statistic
    repetitions: tuple[float, ...]


def accuracy(logits: Float[Tensor, "m K"], labels: Tensor, *, top: int = 1) -> float:
    """Return the share of the labelled images whose class is among the `top` highest logits.

    >>> accuracy(torch.eye(3), torch.tensor([0, 2, -1]))
    0.5
    """
    best = logits.topk(min(top, logits.shape[1]), dim=1).indices
    return (best == labels[:, None])[labels >= 0].any(1).double().mean().item()


def metrics_of(logits: Float[Tensor, "m K"], target: Target, *, by_class: bool) -> dict[str, bootstrap.Statistic]:
    """Return metric → statistic of one prediction, the main metric first.

    Args:
        logits: the scores of the classes.
        target: the labels.
        by_class: also balanced accuracy and AUROC.
    """
    y, present, positive = target.labels, target.present, target.positive
    scores = logits.cpu().double().numpy()
    if y.ndim == 2:
        both = ~positive.all(0)  # a class that all images have divides nothing
        found: dict[str, bootstrap.Statistic] = {
            MAP: bootstrap.MeanOfClasses(bootstrap.average_precision, positive, scores[:, present])
        }
        areas = bootstrap.MeanOfClasses(bootstrap.area, positive[:, both], scores[:, present][:, both])
        return found | ({AUROC: areas} if both.any() else {})
    missing = max(y.max() + 1 - scores.shape[1], 0)  # classes that only test images have
    values, best = (each.cpu().numpy() for each in logits.topk(min(5, logits.shape[1]), dim=1))
    best = ((best == y[:, None]) & (values > -np.inf)).astype(float)  # kNN gives -inf to a class without a vote
    found = {ACCURACY: bootstrap.weighted_mean(best[:, 0])}
    if scores.shape[1] + missing > MANY_CLASSES:
        found[TOP5] = bootstrap.weighted_mean(best.max(1))
    if by_class:
        found[BALANCED] = bootstrap.MeanOfClasses(bootstrap.recall, positive, np.repeat(best[:, :1], len(present), 1))
        shares = softmax(np.pad(scores, ((0, 0), (0, missing)), constant_values=-np.inf), axis=1)[:, present]
        if len(present) > 1 and np.isfinite(shares).all():
            found[AUROC] = bootstrap.MeanOfClasses(bootstrap.area, positive, shares)
    return found


def score_predictions(
    features: str,
    probe: str,
    settings: dict[str, Any],
    predictions: Iterable[Prediction],
    target: Target,
    *,
    by_class: bool = True,
) -> list[Outcome]:
    """Return the scores of one probe: the mean over its predictions, each with other random draws.

    Args:
        features: name of the feature set.
        probe: name of the probe.
        settings: the numbers of the protocol.
        predictions: one, or one for each repetition.
        target: the labels.
        by_class: also score balanced accuracy, AUROC, recalls and the confusion matrix.
    """
    ones, multilabel, found, last = np.ones((1, len(target.labels))), target.labels.ndim == 2, [], None
    for last in predictions:  # one after the other: the logits of many draws may not fit in memory
        found.append(metrics_of(last.logits, target, by_class=by_class))
    assert last is not None, "a probe has a prediction"
    details: dict[str, Any] = {"chosen": last.chosen, "note": last.note}
    if multilabel or by_class:
        of_classes: list[Any] = [each[MAP if multilabel else BALANCED] for each in found]
        values = np.mean([each.by_class(ones)[0] for each in of_classes], axis=0)
        details["per_class"] = target.by_name(values.tolist())
        details["positives"] = target.by_name(target.positive.sum(0).tolist())
    if by_class and not multilabel and len(found) == 1:
        classes = int(max(last.logits.shape[1], target.labels.max() + 1))
        if classes <= LARGEST_CONFUSION:
            confusion = np.zeros((classes, classes), int)
            np.add.at(confusion, (target.labels, last.logits.argmax(1).cpu().numpy()), 1)
            details["confusion"] = tuple(map(tuple, confusion.tolist()))
            details["positives"] = {target.class_name(k): n for k, n in enumerate(confusion.sum(1).tolist())}
    outcomes = []
    for metric in found[0]:
        parts = [each[metric] for each in found if metric in each]
        values = [float(part(ones)[0]) for part in parts]
        score = Score(
            features=features,
            probe=probe,
            settings=settings,
            metric=metric,
            value=float(np.mean(values)),
            sd=float(np.std(values, ddof=1)) if len(values) > 1 else None,
            n=len(values),
            **(details if metric in MAIN_METRICS else {}),
        )
        outcomes.append(Outcome(score, _mean(parts), tuple(values)))
    return outcomes


def _mean(parts: Sequence[bootstrap.Statistic]) -> bootstrap.Statistic:
    return lambda weights: np.mean([part(weights) for part in parts], axis=0)


def judge(
    outcomes: Sequence[Outcome], target: Target, *, seed: int, seeds: bool = False
) -> tuple[tuple[Score, ...], tuple[Comparison, ...]]:
    """Return the scores with their 95 % intervals, and the comparisons of the first feature set with the others by the
    main probe.

    All intervals come from the same resamples of the test images, so a difference is paired. With `seeds`, the
    repetitions are trainings with the same seeds, and a difference has two independent errors: that of the images, and
    t(0.975, S − 1) · sd/√S of the S paired differences. The interval is d ± √(image² + seed²), for each end by itself.

    Args:
        outcomes: the scores.
        target: the labels and the groups of the test images.
        seed: seed of the resamples.
        seeds: whether the repetitions of a score are seeds.
    """
    scores, cells = [outcome.score for outcome in outcomes], target.positive.size
    main = main_score(scores)
    assert main is not None, "at least one probe is scored"
    alike = [s.probe == "supervised" or (s.probe, s.settings) == (main.probe, main.settings) for s in scores]
    with_interval = (BALANCED, AUROC) if cells <= LARGEST_AUROC else (BALANCED,)
    rated = [i for i, s in enumerate(scores) if s.metric in MAIN_METRICS or (alike[i] and s.metric in with_interval)]
    resamples = bootstrap.RESAMPLES // 5 if main.metric == MAP and cells > LARGEST_MAP else bootstrap.RESAMPLES
    drawn = bootstrap.resample([outcomes[i].statistic for i in rated], target.groups, resamples=resamples, seed=seed)
    values = dict(zip(rated, drawn.T, strict=True))
    for i, column in values.items():
        if np.isfinite(column).any():
            low, high = bootstrap.interval(column)
            scores[i] = replace(scores[i], low=low, high=high)
    first, *others = (i for i in rated if alike[i] and scores[i].metric == main.metric)
    comparisons = []
    for other in others:
        ours, theirs = outcomes[first], outcomes[other]
        difference = ours.score.value - theirs.score.value
        low, high = bootstrap.interval(values[first] - values[other])
        half = paired_difference(ours.repetitions, theirs.repetitions).half_width if seeds and ours.score.n > 1 else 0.0
        if half:
            below, above = (math.hypot(end - difference, half) for end in (low, high))
            low, high = difference - below, difference + above
        comparisons.append(
            Comparison(
                probe=main.probe,
                settings=main.settings,
                metric=main.metric,
                against=theirs.score.features,
                value=ours.score.value,
                reference=theirs.score.value,
                difference=difference,
                low=low,
                high=high,
                units=int(bootstrap.units(target.groups).max()) + 1,
                grouped=bool((target.groups >= 0).any()),
                seeds=ours.score.n if seeds else 1,
                seed_half_width=half,
            )
        )
    return tuple(scores), tuple(comparisons)
