"""The scores of probes with their 95 % intervals, and the comparisons of the backbone with the other feature sets."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch

from fullrank.errors import UserError
from fullrank.evaluation.bootstrap import interval, resampled_class_means, resampled_means, units
from fullrank.evaluation.features import Features
from fullrank.evaluation.multi_label import resampled_precisions
from fullrank.evaluation.names import MAP, is_linear
from fullrank.evaluation.result import Comparison, ProbeScore
from fullrank.evaluation.supervised import FROM_SCRATCH
from fullrank.images import Images, MemoryImages


class Outcome(NamedTuple):
    """A score, with what the bootstrap needs of each test image."""

    score: ProbeScore
    hits: np.ndarray | None
    """(n,) For each labelled test image, 1 if it is classified correctly, or the share of repetitions in which it is;
    None for top 5."""
    y: np.ndarray | None = None
    """(n,) The labels of these images; None for a mean over repetitions."""
    probabilities: np.ndarray | None = None
    """(n, K) The predicted probabilities of the classes."""
    several: np.ndarray | None = None
    """(n, K) Which image has which class, for several labels an image; the score is then not a mean over images, and
    `hits` has zeros."""


LARGEST_AUROC = 250_000
"""With more test images times classes, the AUROC has no interval: its resamples would take longer than the probe."""


def groups_of(images: Images | MemoryImages, features: Features) -> np.ndarray | None:
    """Return the groups of the labelled images whose features are known, None if the images have no groups."""
    groups = torch.as_tensor(images.groups).cpu().numpy()
    if (groups < 0).all():
        return None
    if len(groups) != len(features.names):  # some images were unreadable
        names = [images.name(row) for row in range(len(images))] if isinstance(images, Images) else images.names
        known = dict(zip(names, groups.tolist(), strict=True))
        groups = np.array([known[name] for name in features.names])
    return groups[features.labelled.cpu().numpy()]


def judge(
    outcomes: Sequence[Outcome], groups: np.ndarray | None, *, seed: int
) -> tuple[tuple[ProbeScore, ...], tuple[Comparison, ...]]:
    """Return the scores with their 95 % intervals, and the comparisons of the first feature set with the others by the
    main probe.

    All intervals come from the same resamples of the test images, so a difference is paired.
    """
    rated = [(position, outcome) for position, outcome in enumerate(outcomes) if outcome.hits is not None]
    scores = [outcome.score for outcome in outcomes]
    if len({len(outcome.hits) for _, outcome in rated if outcome.hits is not None}) > 1:
        raise UserError(
            "the models cannot read the same test images, so they cannot be compared; remove the unreadable images"
        )
    values = np.stack([outcome.hits for _, outcome in rated if outcome.hits is not None], axis=1)  # (n, scores)
    points = values.mean(0)
    if any(outcome.several is not None for _, outcome in rated):
        points = np.array([outcome.score.accuracy for _, outcome in rated])
        means = np.stack([_resampled_precisions(outcome, groups, seed) for _, outcome in rated], axis=1)
        means = means[np.isfinite(means).all(1)]
    else:
        means = resampled_means(values, groups, seed=seed)
    ends = zip(*interval(means), strict=True)
    for (position, _), (low, high) in zip(rated, ends, strict=True):
        scores[position] = replace(scores[position], low=float(low), high=float(high))
    probe, first = main_probe(scores), scores[0].features
    compared = (probe, FROM_SCRATCH, FROM_SCRATCH + MAP)
    column = {
        outcome.score.features: number for number, (_, outcome) in enumerate(rated) if outcome.score.probe in compared
    }
    for position, outcome in (rated[number] for number in column.values()):
        scores[position] = replace(scores[position], **class_intervals(outcome, groups, seed=seed))
    comparisons = []
    for name in (name for name in column if name != first):
        low, high = interval(means[:, [column[first]]] - means[:, [column[name]]])
        ours, theirs = (float(points[column[key]]) for key in (first, name))
        comparison = Comparison(
            probe=probe,
            against=name,
            accuracy=ours,
            reference=theirs,
            difference=ours - theirs,
            low=float(low[0]),
            high=float(high[0]),
            units=int(units(groups, len(values)).max()) + 1,
            grouped=groups is not None,
            metric=scores[0].metric,
        )
        comparisons.append(comparison)
    return tuple(scores), tuple(comparisons)


def _resampled_precisions(outcome: Outcome, groups: np.ndarray | None, seed: int) -> np.ndarray:
    assert outcome.several is not None
    assert outcome.probabilities is not None
    return resampled_precisions(outcome.several, outcome.probabilities, groups, seed=seed)


def class_intervals(outcome: Outcome, groups: np.ndarray | None, *, seed: int) -> dict[str, tuple[float, float]]:
    """Return the 95 % intervals of balanced accuracy and AUROC by the name of their field; those that are unknown are
    left out.
    """
    _, hits, y, probabilities, _ = outcome
    if hits is None or y is None:
        return {}
    if probabilities is not None and (probabilities.size > LARGEST_AUROC or not np.isfinite(probabilities).all()):
        probabilities = None
    low, high = interval(resampled_class_means(y, hits, probabilities, groups, seed=seed))
    names = ("balanced_accuracy_interval", "auroc_interval")
    ends = zip(names, low.tolist(), high.tolist(), strict=True)
    return {name: (bottom, top) for name, bottom, top in ends if math.isfinite(bottom) and math.isfinite(top)}


def main_probe(scores: Sequence[ProbeScore]) -> str:
    """Return the probe of the verdict: the first linear probe on all labels, or else the first probe."""
    return next((score.probe for score in scores if is_linear(score.probe)), scores[0].probe)


def few_shot_curve(scores: Sequence[ProbeScore]) -> dict[int, float]:
    """Return the accuracy of the first feature set by the number of labels per class."""
    first = [score for score in scores if score.features == scores[0].features]
    return {
        score.protocol["labels"]: score.accuracy
        for score in first
        if isinstance(score.protocol.get("labels"), int) and score.low is not None
    }
