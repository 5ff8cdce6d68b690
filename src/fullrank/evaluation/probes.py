"""The probes by name: each is a function of a feature set and a protocol that returns scores."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from fullrank.evaluation.feature_sets import FeatureSet
from fullrank.evaluation.features import Features
from fullrank.evaluation.few_shot import FewShot, few_shot, label_fraction
from fullrank.evaluation.knn import knn
from fullrank.evaluation.linear import linear_probe, linear_probe_adam, linear_probe_sgd
from fullrank.evaluation.metrics import class_metrics
from fullrank.evaluation.multi_label import (
    METRIC,
    MultiLabelResult,
    multi_label_knn,
    multi_label_linear,
    multi_label_metrics,
)
from fullrank.evaluation.names import LINEAR, MAP, SCORE_NAMES, TOP5, few_shot_name, fraction_name
from fullrank.evaluation.outcomes import Outcome
from fullrank.evaluation.protocol import (
    AdamProtocol,
    FewShotProtocol,
    FractionsProtocol,
    GradientProtocol,
    KnnProtocol,
    LinearProtocol,
    Protocol,
    SgdProtocol,
    SvmProtocol,
    changed_numbers,
    protocol_numbers,
)
from fullrank.evaluation.result import ProbeResult, ProbeScore, count_classes
from fullrank.evaluation.svm import linear_svm

Probe = Callable[[FeatureSet, torch.device | str, int, Any], list[Outcome]]
"""A function (feature set, device, seed, protocol) → scores of a probe."""


def _linear(features: FeatureSet, device: torch.device | str, seed: int, protocol: LinearProtocol) -> list[Outcome]:
    data = features.tensors(device, standardized=protocol.standardize)
    result = linear_probe(*data, penalties=protocol.penalties, iterations=protocol.iterations, seed=seed)
    return _scores(features, LINEAR["linear"], result, protocol)


def _linear_sgd(features: FeatureSet, device: torch.device | str, seed: int, protocol: SgdProtocol) -> list[Outcome]:
    options = _gradient_options(features, device, seed, protocol)
    options |= {"momentum": protocol.momentum, "limit_lr": protocol.limits_lr}
    result = linear_probe_sgd(*features.tensors(device, standardized=protocol.standardize), **options)
    return _scores(features, LINEAR["linear-sgd"], result, protocol)


def _linear_adam(features: FeatureSet, device: torch.device | str, seed: int, protocol: AdamProtocol) -> list[Outcome]:
    options = _gradient_options(features, device, seed, protocol) | {"betas": protocol.betas}
    result = linear_probe_adam(*features.tensors(device, standardized=protocol.standardize), **options)
    return _scores(features, LINEAR["linear-imagenet"], result, protocol)


def _gradient_options(
    features: FeatureSet, device: torch.device | str, seed: int, protocol: GradientProtocol
) -> dict[str, Any]:
    names = ("lr", "epochs", "decay", "decay_factor", "batch_size", "weight_decay")
    return {name: getattr(protocol, name) for name in names} | {
        "classes": count_classes(features.train.labels, features.test.labels),
        "passes": features.passes(protocol, device),
        "generator": torch.Generator().manual_seed(seed),
    }


def _knn(features: FeatureSet, device: torch.device | str, seed: int, protocol: KnnProtocol) -> list[Outcome]:
    result = knn(*features.tensors(device), k=protocol.k, temperature=protocol.temperature)
    return _scores(features, SCORE_NAMES["knn"], result, protocol)


def _svm(features: FeatureSet, device: torch.device | str, seed: int, protocol: SvmProtocol) -> list[Outcome]:
    data = features.tensors(device, standardized=protocol.standardize)
    return _scores(
        features,
        SCORE_NAMES["svm"],
        linear_svm(*data, C=protocol.C, iterations=protocol.iterations, seed=seed),
        protocol,
    )


def _few_shot(features: FeatureSet, device: torch.device | str, seed: int, protocol: FewShotProtocol) -> list[Outcome]:
    data, scores = features.tensors(device, standardized=protocol.standardize), []
    for labels in protocol.labels:
        result = few_shot(*data, labels=labels, draws=protocol.draws, penalty=protocol.penalty, seed=seed)
        scores += _mean_scores(features, few_shot_name(labels), result, protocol, labels=labels)
    return scores


def _fractions(
    features: FeatureSet, device: torch.device | str, seed: int, protocol: FractionsProtocol
) -> list[Outcome]:
    data, scores = features.tensors(device, standardized=protocol.standardize), []
    options = {
        "draws": protocol.draws,
        "penalties": protocol.penalties,
        "iterations": protocol.iterations,
        "seed": seed,
    }
    for fraction in protocol.fractions:
        result = label_fraction(*data, fraction=fraction, **options)
        scores += _mean_scores(features, fraction_name(fraction), result, protocol, fractions=fraction)
    return scores


def _scores(features: FeatureSet, probe: str, result: ProbeResult, protocol: Protocol) -> list[Outcome]:
    """Return the scores of one classifier; the name of the probe has the numbers that are not the defaults."""
    named = probe + changed_numbers(protocol)
    return score_result(
        features.name, named, result, protocol_numbers(protocol), features.test.labels, features.test.classes
    )


def score_result(
    features: str,
    probe: str,
    result: ProbeResult,
    numbers: dict[str, Any],
    labels: torch.Tensor,
    classes: tuple[str, ...],
) -> list[Outcome]:
    """Return the scores of one classifier of test images with these labels."""
    labelled = (labels >= 0).cpu()
    y, predictions = (tensor.cpu()[labelled].numpy() for tensor in (labels, result.predictions))
    probabilities = None if result.probabilities is None else result.probabilities.cpu()[labelled].double().numpy()
    metrics = class_metrics(y, predictions, probabilities)
    score = ProbeScore(
        features=features,
        probe=probe,
        accuracy=result.accuracy,
        protocol=numbers,
        chosen=result.chosen,
        note=result.note,
    )
    detailed = replace(
        score,
        balanced_accuracy=metrics.balanced_accuracy,
        auroc=metrics.auroc,
        per_class={classes[k] if k < len(classes) else str(k): recall for k, recall in metrics.per_class.items()},
        confusion=metrics.confusion,
    )
    top5 = (
        []
        if result.top5 is None
        else [Outcome(replace(score, probe=probe + TOP5, accuracy=result.top5, note=""), None)]
    )
    return [Outcome(detailed, (predictions == y).astype(float), y, probabilities), *top5]


def _mean_scores(features: FeatureSet, probe: str, result: FewShot, protocol: Protocol, **number: Any) -> list[Outcome]:
    """Return the mean scores over random choices of labels; `number` is the entry of the protocol's list that they
    belong to.
    """
    (listed,) = number
    score = ProbeScore(
        features=features.name,
        probe=probe + changed_numbers(protocol, except_for=listed),
        accuracy=result.mean,
        sd=result.sd,
        n=len(result.accuracies),
        protocol=protocol_numbers(protocol, **number),
    )
    top5 = FewShot(result.top5)
    further = (
        [Outcome(replace(score, probe=score.probe + TOP5, accuracy=top5.mean, sd=top5.sd), None)] if result.top5 else []
    )
    return [Outcome(score, None if result.hits is None else result.hits.numpy()), *further]


def _multi_linear(
    features: FeatureSet, device: torch.device | str, seed: int, protocol: LinearProtocol
) -> list[Outcome]:
    X, Y, X_test = features.several(device, standardized=protocol.standardize)
    result = multi_label_linear(X, Y, X_test, penalties=protocol.penalties, iterations=protocol.iterations, seed=seed)
    return [_named(features, LINEAR["linear"], result, protocol)]


def _multi_knn(features: FeatureSet, device: torch.device | str, seed: int, protocol: KnnProtocol) -> list[Outcome]:
    result = multi_label_knn(*features.several(device), k=protocol.k, temperature=protocol.temperature)
    return [_named(features, SCORE_NAMES["knn"], result, protocol)]


def _named(features: FeatureSet, probe: str, result: MultiLabelResult, protocol: Protocol) -> Outcome:
    return score_several(
        features.name, probe + changed_numbers(protocol), result, protocol_numbers(protocol), features.test
    )


def score_several(
    features: str, probe: str, result: MultiLabelResult, numbers: dict[str, Any], test: Features
) -> Outcome:
    """Return the score of one classifier of test images with several labels each; the name of its probe ends in the
    metric.
    """
    assert test.multi_labels is not None
    labelled = test.labelled
    Y, probabilities = test.multi_labels[labelled].numpy() == 1, result.scores.cpu()[labelled].double().numpy()
    metrics = multi_label_metrics(Y, probabilities)
    names = dict(enumerate(test.classes)) if test.classes else {k: str(k) for k in range(Y.shape[1])}
    score = ProbeScore(
        features=features,
        probe=probe + MAP,
        accuracy=metrics.mean_average_precision,
        metric=METRIC,
        protocol=numbers,
        chosen=result.chosen,
        note=result.note,
        auroc=metrics.auroc,
        per_class={names[k]: value for k, value in metrics.average_precision.items()},
        positives={names[k]: value for k, value in metrics.positives.items()},
    )
    return Outcome(score, np.zeros(len(Y)), probabilities=probabilities, several=Y)


PROBES: dict[str, Probe] = {
    "linear": _linear,
    "linear-sgd": _linear_sgd,
    "linear-imagenet": _linear_adam,
    "knn": _knn,
    "svm": _svm,
    "few-shot": _few_shot,
    "fractions": _fractions,
}
"""Probes, by name on the command line."""
MULTI_LABEL_PROBES: dict[str, Probe] = {"linear": _multi_linear, "knn": _multi_knn}
"""The probes of images with several labels."""
