"""From predictions to scores: metrics, their 95 % intervals, and paired comparisons of feature sets."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.stats import sem, t
from torch import Tensor

from fullrank.errors import UserError
from fullrank.evaluation.bootstrap import (
    RESAMPLES,
    Statistic,
    area,
    average_precision,
    interval,
    mean_of_classes,
    recall,
    resample,
    units,
    weighted_mean,
)
from fullrank.evaluation.score import (
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

# Top-5 accuracy is reported for more classes than this: with 10 classes, chance alone gives 50 %.
MANY_CLASSES = 10
# With more test images times classes, the AUROC has no interval: its resamples would take longer than the probe.
LARGEST_AUROC = 250_000
# With more test images times classes, an interval of the mean average precision has a fifth of the resamples.
LARGEST_MAP = 1_000_000


class Prediction(NamedTuple):
    """What a probe says about the labelled test images.

    Attributes:
        logits: The score of each class; for several labels an image, only the order of the images in a class counts.
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
    """

    labels: np.ndarray
    groups: np.ndarray
    classes: tuple[str, ...] = ()

    @property
    def chance(self) -> float:
        """The share of the most frequent class, or for several labels an image the mean average precision of equal
        scores: the mean share of positives over the classes with one.
        """
        if self.labels.ndim == 1:
            return float(np.bincount(self.labels).max() / len(self.labels))
        shares = self.labels.mean(0)
        return float(shares[shares > 0].mean())

    def name(self, k: int) -> str:
        """Return the name of a class."""
        return self.classes[k] if k < len(self.classes) else str(k)


class Outcome(NamedTuple):
    """A score with what its interval needs.

    Attributes:
        statistic: The score as a function of the weights of the test images; None for a score without an interval.
        repetitions: The value of each repetition.
    """

    score: Score
    statistic: Statistic | None = None
    repetitions: tuple[float, ...] = ()


@dataclass
class _Sums:
    """The metrics of the repetitions of one probe."""

    values: dict[str, list[float]] = field(default_factory=dict)
    hits: list[np.ndarray] = field(default_factory=list)
    recalls: list[np.ndarray] = field(default_factory=list)


def accuracy(logits: Float[Tensor, "m K"], labels: Tensor, *, top: int = 1) -> float:
    """Return the share of the labelled images whose class is among the `top` highest logits.

    >>> import torch
    >>> accuracy(torch.eye(3), torch.tensor([0, 2, -1]))
    0.5
    """
    best = logits.topk(min(top, logits.shape[1]), dim=1).indices
    return (best == labels[:, None])[labels >= 0].any(1).double().mean().item()


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
    if target.labels.ndim == 2:
        return _several(
            Score(features=features, probe=probe, settings=settings, metric=MAP, value=0), predictions, target
        )
    y, sums, last = target.labels, _Sums(), None
    present = np.unique(y)
    is_class = y[:, None] == present
    for last in predictions:
        logits = last.logits.cpu().double().numpy()
        classes = max(logits.shape[1], y.max() + 1)
        logits = np.pad(logits, ((0, 0), (0, classes - logits.shape[1])), constant_values=-np.inf)
        best = last.logits.topk(min(5, last.logits.shape[1]), dim=1).indices.cpu().numpy() == y[:, None]
        sums.hits.append(best[:, 0].astype(float))
        sums.values.setdefault("accuracy", []).append(float(best[:, 0].mean()))
        if classes > MANY_CLASSES:
            sums.values.setdefault(TOP5, []).append(float(best.any(1).mean()))
        if by_class:
            sums.recalls.append(sums.hits[-1] @ is_class / is_class.sum(0))
            sums.values.setdefault(BALANCED, []).append(float(sums.recalls[-1].mean()))
            odds = np.exp(logits - logits.max(1, keepdims=True))
            shares = (odds / odds.sum(1, keepdims=True))[:, present]
            if len(present) > 1 and np.isfinite(shares).all():
                one = mean_of_classes(area, is_class, shares)(np.ones((1, len(y))))
                sums.values.setdefault(AUROC, []).append(float(one[0]))
    assert last is not None, "a probe has a prediction"
    hits = np.mean(sums.hits, axis=0)
    statistics: dict[str, Statistic] = {"accuracy": weighted_mean(hits)}
    details: dict[str, Any] = {}
    if by_class:
        recalls = np.mean(sums.recalls, axis=0).tolist()
        details["per_class"] = {target.name(k): value for k, value in zip(present.tolist(), recalls, strict=True)}
        statistics[BALANCED] = mean_of_classes(recall, is_class, np.repeat(hits[:, None], len(present), 1))
    if by_class and len(sums.hits) == 1:
        if classes <= LARGEST_CONFUSION:
            confusion = np.zeros((classes, classes), int)
            np.add.at(confusion, (y, last.logits.argmax(1).cpu().numpy()), 1)
            details["confusion"] = tuple(map(tuple, confusion.tolist()))
        if shares.size <= LARGEST_AUROC:
            statistics[AUROC] = mean_of_classes(area, is_class, shares)
    about = {"features": features, "probe": probe, "settings": settings, "n": len(sums.hits)}
    outcomes = []
    for metric, values in sums.values.items():
        sd = float(np.std(values, ddof=1)) if len(values) > 1 else None
        extra = {"chosen": last.chosen, "note": last.note} | details if metric == "accuracy" else {}
        score = Score(**about, metric=metric, value=float(np.mean(values)), sd=sd, **extra)
        outcomes.append(Outcome(score, statistics.get(metric), tuple(values)))
    return outcomes


def _several(score: Score, predictions: Iterable[Prediction], target: Target) -> list[Outcome]:
    """Return mean average precision and AUROC of one prediction of several labels an image."""
    (prediction,), positive = predictions, target.labels
    logits, ones = prediction.logits.cpu().double().numpy(), np.ones((1, len(positive)))
    present = np.flatnonzero(positive.any(0)).tolist()
    statistic = mean_of_classes(average_precision, positive[:, present], logits[:, present])
    precisions = {k: float(average_precision(ones, positive[:, k], logits[:, k])[0]) for k in present}
    main = replace(
        score,
        value=float(np.mean(list(precisions.values()))),
        chosen=prediction.chosen,
        note=prediction.note,
        per_class={target.name(k): value for k, value in precisions.items()},
        positives={target.name(k): int(positive[:, k].sum()) for k in present},
    )
    outcomes = [Outcome(main, statistic, (main.value,))]
    if both := [k for k in present if not positive[:, k].all()]:
        areas = mean_of_classes(area, positive[:, both], logits[:, both])
        outcomes.append(Outcome(replace(score, metric=AUROC, value=float(areas(ones)[0]))))
    return outcomes


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
    scores = [outcome.score for outcome in outcomes]
    main = main_score(scores)
    assert main is not None, "at least one probe is scored"
    alike = [s.probe == "supervised" or (s.probe, s.settings) == (main.probe, main.settings) for s in scores]
    rated = [
        i
        for i, outcome in enumerate(outcomes)
        if outcome.statistic is not None and (scores[i].metric in MAIN_METRICS or alike[i])
    ]
    few = main.metric == MAP and target.labels.size > LARGEST_MAP
    statistics = [statistic for i in rated if (statistic := outcomes[i].statistic)]
    values = resample(statistics, target.groups, resamples=RESAMPLES // 5 if few else RESAMPLES, seed=seed)
    for i, column in zip(rated, values.T, strict=True):
        if np.isfinite(column).any():
            scores[i] = replace(scores[i], **dict(zip(("low", "high"), interval(column), strict=True)))
    compared = {
        scores[i].features: column for column, i in enumerate(rated) if alike[i] and scores[i].metric == main.metric
    }
    first, *others = compared
    comparisons = []
    for name in others:
        ours, theirs = (outcomes[rated[compared[each]]] for each in (first, name))
        difference = ours.score.value - theirs.score.value
        half = seed_half_width(np.subtract(ours.repetitions, theirs.repetitions)) if seeds else 0.0
        ends = interval(values[:, compared[first]] - values[:, compared[name]])
        below, above = (math.hypot(end - difference, half) for end in ends)
        comparisons.append(
            Comparison(
                probe=main.probe,
                settings=main.settings,
                metric=main.metric,
                against=name,
                value=ours.score.value,
                reference=theirs.score.value,
                difference=difference,
                low=difference - below if half else ends[0],
                high=difference + above if half else ends[1],
                units=int(units(target.groups).max()) + 1,
                grouped=bool((target.groups >= 0).any()),
                seeds=ours.score.n if seeds else 1,
                seed_half_width=half,
            )
        )
    return tuple(scores), tuple(comparisons)


def seed_half_width(differences: Float[np.ndarray, " S"]) -> float:
    """Return half the width of the 95 % interval of the mean of paired differences, t(0.975, S − 1) · sd/√S; 0 for one
    seed.

    >>> round(seed_half_width(np.array([0.01, 0.02, 0.03])), 4)
    0.0248
    """
    S = len(differences)
    return 0.0 if S < 2 else float(t.ppf(0.975, S - 1) * sem(differences))


def check_same_images(targets: Sequence[Target]) -> None:
    """Check that all feature sets have the same test images.

    Raises:
        UserError: a model could not read some of them.
    """
    if len({len(target.labels) for target in targets}) > 1:
        remedy = "remove the unreadable images"
        raise UserError(f"the models cannot read the same test images, so they cannot be compared; {remedy}")
