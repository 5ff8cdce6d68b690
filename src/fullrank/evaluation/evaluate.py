"""Evaluation of a frozen backbone: each probe is scored on the features of the backbone, on raw pixels and on the features of the untrained
network.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.table import Column, Table
from rich.text import Text
from torch import nn

from fullrank.config import DEFAULT_PROBES, Protocols, resolve_protocols
from fullrank.config.protocol import (
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
from fullrank.errors import UserError, pick, printable
from fullrank.evaluation.augmented import Augmentation, augmented_features, keep_decoded
from fullrank.evaluation.baselines import calibrate_batchnorm, raw_pixels
from fullrank.evaluation.bootstrap import interval, resampled_class_means, resampled_means, units
from fullrank.evaluation.features import Features, extract_features, format_slice, standardize
from fullrank.evaluation.few_shot import FewShot, few_shot, label_fraction
from fullrank.evaluation.knn import knn
from fullrank.evaluation.linear import Passes, linear_probe, linear_probe_adam, linear_probe_sgd
from fullrank.evaluation.metrics import LARGEST_CONFUSION, class_metrics
from fullrank.evaluation.names import LINEAR, SCORE_NAMES, TOP5, few_shot_name, fraction_name, is_linear
from fullrank.evaluation.result import Comparison, Evaluation, ProbeResult, ProbeScore, count_classes, majority_rate
from fullrank.evaluation.supervised import FINE_TUNING, FROM_SCRATCH, SUPERVISED, Supervised, train_supervised
from fullrank.evaluation.svm import linear_svm
from fullrank.evaluation.verdict import verdict
from fullrank.images import DecodeErrors, Images, MemoryImages, Preprocess
from fullrank.images.splits import TRAIN


@dataclass(frozen=True)
class FeatureSet:
    """The features of the training and the test images, with a name such as 'raw pixels'."""

    name: str
    train: Features
    test: Features
    augmented: Callable[[Augmentation, int], torch.Tensor]
    """(augmentation, number of the pass) → features of the augmented training images."""

    def tensors(self, device: torch.device | str, *, standardized: bool = False) -> tuple[torch.Tensor, ...]:
        """Return X, y, X_test, y_test on the device, on request standardised by the statistics of all training images, labelled or not."""
        X, y, X_test, y_test = (tensor.to(device) for split in (self.train, self.test) for tensor in (split.X, split.labels))
        if standardized:
            X, X_test = standardize(X, X_test)
        return X, y, X_test, y_test

    def passes(self, protocol: GradientProtocol, device: torch.device | str) -> Passes | None:
        """Return the function epoch → features of augmented training images, None without augmentation.

        Each pass over the images is computed when its first epoch begins, and is kept if it has several epochs. The statistics of the
        images without augmentation standardise all passes.
        """
        if not protocol.views:
            return None
        augmentation, kept = Augmentation(protocol.crop, protocol.flip), {}

        def features(epoch: int) -> torch.Tensor:
            number = epoch % protocol.views
            X = kept[number] if number in kept else self.augmented(augmentation, number)
            if len(X) != len(self.train.X):
                raise UserError(f"{len(X)} of {len(self.train.X)} images could be read again; the images changed during the evaluation")
            if protocol.views < protocol.epochs:
                kept[number] = X
            return (standardize(self.train.X, X)[1] if protocol.standardize else X).to(device)

        return features


class Outcome(NamedTuple):
    """A score, with what the bootstrap needs of each test image."""

    score: ProbeScore
    hits: np.ndarray | None
    """(n,) For each labelled test image, 1 if it is classified correctly, or the share of repetitions in which it is; None for top 5."""
    y: np.ndarray | None = None
    """(n,) The labels of these images; None for a mean over repetitions."""
    probabilities: np.ndarray | None = None
    """(n, K) The predicted probabilities of the classes."""


LARGEST_AUROC = 250_000
"""With more test images times classes, the AUROC has no interval: its resamples would take longer than the probe."""
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


def _gradient_options(features: FeatureSet, device: torch.device | str, seed: int, protocol: GradientProtocol) -> dict[str, Any]:
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
    return _scores(features, SCORE_NAMES["svm"], linear_svm(*data, C=protocol.C, iterations=protocol.iterations, seed=seed), protocol)


def _few_shot(features: FeatureSet, device: torch.device | str, seed: int, protocol: FewShotProtocol) -> list[Outcome]:
    data, scores = features.tensors(device, standardized=protocol.standardize), []
    for labels in protocol.labels:
        result = few_shot(*data, labels=labels, draws=protocol.draws, penalty=protocol.penalty, seed=seed)
        scores += _mean_scores(features, few_shot_name(labels), result, protocol, labels=labels)
    return scores


def _fractions(features: FeatureSet, device: torch.device | str, seed: int, protocol: FractionsProtocol) -> list[Outcome]:
    data, scores = features.tensors(device, standardized=protocol.standardize), []
    options = {"draws": protocol.draws, "penalties": protocol.penalties, "iterations": protocol.iterations, "seed": seed}
    for fraction in protocol.fractions:
        result = label_fraction(*data, fraction=fraction, **options)
        scores += _mean_scores(features, fraction_name(fraction), result, protocol, fractions=fraction)
    return scores


def _scores(features: FeatureSet, probe: str, result: ProbeResult, protocol: Protocol) -> list[Outcome]:
    """Return the scores of one classifier; the name of the probe has the numbers that are not the defaults."""
    named = probe + changed_numbers(protocol)
    return _outcomes(features.name, named, result, protocol_numbers(protocol), features.test.labels, features.test.classes)


def _outcomes(
    features: str, probe: str, result: ProbeResult, numbers: dict[str, Any], labels: torch.Tensor, classes: tuple[str, ...]
) -> list[Outcome]:
    """Return the scores of one classifier of test images with these labels."""
    labelled = (labels >= 0).cpu()
    y, predictions = (tensor.cpu()[labelled].numpy() for tensor in (labels, result.predictions))
    probabilities = None if result.probabilities is None else result.probabilities.cpu()[labelled].double().numpy()
    metrics = class_metrics(y, predictions, probabilities)
    score = ProbeScore(features=features, probe=probe, accuracy=result.accuracy, protocol=numbers, chosen=result.chosen, note=result.note)
    detailed = replace(
        score,
        balanced_accuracy=metrics.balanced_accuracy,
        auroc=metrics.auroc,
        per_class={classes[k] if k < len(classes) else str(k): recall for k, recall in metrics.per_class.items()},
        confusion=metrics.confusion,
    )
    top5 = [] if result.top5 is None else [Outcome(replace(score, probe=probe + TOP5, accuracy=result.top5, note=""), None)]
    return [Outcome(detailed, (predictions == y).astype(float), y, probabilities), *top5]


def _mean_scores(features: FeatureSet, probe: str, result: FewShot, protocol: Protocol, **number: Any) -> list[Outcome]:
    """Return the mean scores over random choices of labels; `number` is the entry of the protocol's list that they belong to."""
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
    further = [Outcome(replace(score, probe=score.probe + TOP5, accuracy=top5.mean, sd=top5.sd), None)] if result.top5 else []
    return [Outcome(score, None if result.hits is None else result.hits.numpy()), *further]


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


def evaluate_backbone(
    backbone: nn.Module,
    untrained: nn.Module | None,
    preprocess: Preprocess,
    train: Images | MemoryImages,
    test: Images | MemoryImages,
    *,
    device: torch.device | str = "cpu",
    seed: int = 0,
    probes: Sequence[str] = DEFAULT_PROBES,
    protocols: Mapping[str, Any] | Protocols | None = None,
    baselines: bool = True,
    references: Mapping[str, tuple[nn.Module, Preprocess]] | None = None,
    supervised: Supervised | None = None,
    training: Mapping[float, float] | None = None,
    dimensions: slice = slice(None),
    model: str = "",
    data: str | None = None,
    step: int | None = None,
    statement: str = "",
    batch_size: int = 512,
    workers: int = 0,
    decode_errors: DecodeErrors | None = None,
    progress: Callable[[str], Any] = lambda line: None,
) -> Evaluation:
    """Score every probe on the features of a backbone, on raw pixels and on the features of the same network untrained.

    Unlabelled images never count as errors. `Evaluation.left_out` lists their number, and everything else that is not scored, with the
    reason.

    Args:
        backbone: maps float32 images (n, C, S, S) to features (n, D); the function verifies that the weights do not change.
        untrained: the same network with untrained weights, or None; the function calibrates BatchNorm on training images.
        preprocess: the preprocessing of the backbone.
        train: images for training the probes.
        test: images for scoring the probes.
        device: device of the backbone and of the probes.
        seed: seed of every random draw.
        probes: names in `PROBES`.
        protocols: probe → its protocol, or some of its numbers: `{"knn": {"k": 200}}` (see `fullrank.config.PROTOCOLS`).
        baselines: whether to score raw pixels and the untrained backbone too.
        references: name → another network and its preprocessing, which are scored and compared with the backbone too.
        supervised: a network that is trained with the labels alone, and compared with the backbone; None: none.
        training: epoch of pretraining → accuracy of a probe after this epoch, from which the verdict says whether more epochs may help.
        dimensions: dimensions of the backbone and of the untrained backbone that are scored: `slice(360)`, `slice(360, None)`.
        model: the model argument of the command line.
        data: name of the data set, the key of its scores; by default `name_data(train, test)`.
        step: step of the checkpoint.
        statement: one sentence that describes the training and the test images.
        batch_size: images per forward pass.
        workers: number of processes that decode images; 0 decodes in this process.
        decode_errors: records images that cannot be read; the default stops the evaluation if more than 10 % are unreadable.
        progress: receives a short description of each step when the step begins.

    Raises:
        AssertionError: the backbone changed during the evaluation.
        UserError: a probe or a number of a protocol is unknown, the images lack the labels for a score, the features do not have these
            dimensions, or too many images are unreadable.
    """
    selected, numbers = [pick(name, PROBES, "probe") for name in probes], resolve_protocols(protocols)
    if not selected:
        raise UserError(f"no probe, expected at least one of {', '.join(PROBES)}")
    if reason := why_not_scorable(train, test):
        raise UserError(f"nothing can be scored: {reason}")
    decode_errors = DecodeErrors() if decode_errors is None else decode_errors
    counts, outcomes, majority, groups, test_features = (len(train), len(test)), [], None, None, None
    left_out = [*report_unlabelled(train, "training"), *report_unlabelled(test, "test")]
    if baselines and untrained is None:
        left_out.append("untrained backbone: the model cannot be re-initialised")
    progress("features of the backbone")
    extract_options: dict[str, Any] = {"batch_size": batch_size, "workers": workers, "decode_errors": decode_errors}
    options: dict[str, Any] = {"baselines": baselines, "dimensions": dimensions, "device": device, "seed": seed, "progress": progress}
    sets = feature_sets(backbone, untrained, preprocess, train, test, references=references or {}, **options, **extract_options)
    for features in sets:
        counts, majority = (len(features.train.X), len(features.test.X)), majority_rate(features.test.labels)
        for name, probe in zip(probes, selected, strict=True):
            progress(f"{name}: {features.name}")
            outcomes += probe(features, device, seed, numbers[name])
        groups, test_features = groups_of(test, features.test), features.test
    if supervised is not None and test_features is not None:
        progress(f"{SUPERVISED}: {supervised.epochs} epochs")
        again: dict[str, Any] = {**extract_options, "decode_errors": _fresh(decode_errors)}
        result = train_supervised(supervised, preprocess, train, test, seed=seed, device=device, **again)
        outcomes += _outcomes(SUPERVISED, FROM_SCRATCH, result, supervised.numbers(), test_features.labels, test_features.classes)
    scores, comparisons = judge(outcomes, groups, seed=seed)
    if decode_errors.reasons:
        left_out.append(f"{len(decode_errors.reasons)} images: unreadable")
    return Evaluation(
        model=model,
        data=name_data(train, test) if data is None else data,
        step=step,
        train_images=counts[0],
        test_images=counts[1],
        majority=majority,
        statement=statement,
        scores=scores,
        left_out=tuple(left_out),
        comparisons=comparisons,
        verdict=verdict(comparisons, few_shot_curve(scores), training),
    )


def groups_of(images: Images | MemoryImages, features: Features) -> np.ndarray | None:
    """Return the groups of the labelled images whose features are known, None if the images have no groups."""
    groups = torch.as_tensor(images.groups).cpu().numpy()
    if (groups < 0).all():
        return None
    if len(groups) != len(features.names):  # some images were unreadable
        names = [images.name(row) for row in range(len(images))] if isinstance(images, Images) else images.names
        known = dict(zip(names, groups.tolist(), strict=True))
        groups = np.array([known[name] for name in features.names])
    return groups[features.labels.cpu().numpy() >= 0]


def judge(outcomes: Sequence[Outcome], groups: np.ndarray | None, *, seed: int) -> tuple[tuple[ProbeScore, ...], tuple[Comparison, ...]]:
    """Return the scores with their 95 % intervals, and the comparisons of the first feature set with the others by the main probe.

    All intervals come from the same resamples of the test images, so a difference is paired.
    """
    rated = [(position, outcome) for position, outcome in enumerate(outcomes) if outcome.hits is not None]
    scores = [outcome.score for outcome in outcomes]
    if len({len(outcome.hits) for _, outcome in rated if outcome.hits is not None}) > 1:
        raise UserError("the models cannot read the same test images, so they cannot be compared; remove the unreadable images")
    values = np.stack([outcome.hits for _, outcome in rated if outcome.hits is not None], axis=1)  # (n, scores)
    means = resampled_means(values, groups, seed=seed)
    ends = zip(*interval(means), strict=True)
    for (position, _), (low, high) in zip(rated, ends, strict=True):
        scores[position] = replace(scores[position], low=float(low), high=float(high))
    probe, first = main_probe(scores), scores[0].features
    compared = (probe, FROM_SCRATCH)
    column = {outcome.score.features: number for number, (_, outcome) in enumerate(rated) if outcome.score.probe in compared}
    for position, outcome in (rated[number] for number in column.values()):
        scores[position] = replace(scores[position], **class_intervals(outcome, groups, seed=seed))
    comparisons = []
    for name in (name for name in column if name != first):
        low, high = interval(means[:, [column[first]]] - means[:, [column[name]]])
        ours, theirs = (float(values[:, column[key]].mean()) for key in (first, name))
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
        )
        comparisons.append(comparison)
    return tuple(scores), tuple(comparisons)


def class_intervals(outcome: Outcome, groups: np.ndarray | None, *, seed: int) -> dict[str, tuple[float, float]]:
    """Return the 95 % intervals of balanced accuracy and AUROC by the name of their field; those that are unknown are left out."""
    _, hits, y, probabilities = outcome
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


def feature_sets(
    backbone: nn.Module,
    untrained: nn.Module | None,
    preprocess: Preprocess,
    train: Images | MemoryImages,
    test: Images | MemoryImages,
    *,
    baselines: bool,
    references: Mapping[str, tuple[nn.Module, Preprocess]],
    dimensions: slice,
    device: torch.device | str,
    seed: int,
    progress: Callable[[str], Any] = lambda line: None,
    **extract_options: Any,
) -> Iterator[FeatureSet]:
    """Yield the feature sets on which probes are compared; `extract_features` receives `extract_options`."""
    decoded: list[Images | MemoryImages] = []  # the training images for passes with augmentation, once they are needed

    def augmented(
        name: str, network: nn.Module, preprocess: Preprocess, augmentation: Augmentation, number: int, **options: Any
    ) -> torch.Tensor:
        again = {"workers": extract_options.get("workers", 0), "decode_errors": _fresh(extract_options.get("decode_errors"))}
        if not decoded:
            decoded.append(keep_decoded(train, preprocess, **again))
        progress(f"features of augmented images: {name}, pass {number + 1}")
        options |= again | {"batch_size": extract_options.get("batch_size", 512), "device": device, "seed": seed}
        return augmented_features(network, decoded[0], preprocess, augmentation, number, **options)

    backbone_options = {"preprocess": preprocess, "dimensions": dimensions, "device": device, **extract_options}
    suffix = "" if dimensions == slice(None) else f"[{format_slice(dimensions)}]"

    def features_of(network: nn.Module, name: str, **other: Any) -> FeatureSet:
        options = backbone_options | other
        X, X_test = (extract_features(network, images, **options) for images in (train, test))
        return FeatureSet(name, X, X_test, partial(augmented, name, network, options["preprocess"], dimensions=options["dimensions"]))

    yield features_of(backbone, f"backbone{suffix}")
    for name, (network, own) in references.items():
        yield features_of(network, name, preprocess=own, dimensions=slice(None))
    if not baselines:
        return
    X, X_test = (raw_pixels(images, preprocess, **extract_options) for images in (train, test))
    side = math.isqrt(X.X.shape[1] // preprocess.channels)
    name = "raw pixels" if side == preprocess.size else f"raw pixels ({side} px)"
    yield FeatureSet(name, X, X_test, partial(augmented, name, nn.Flatten(), preprocess.at_most(side)))
    if untrained is not None:
        generator = torch.Generator().manual_seed(seed)
        calibrate_batchnorm(untrained, train, preprocess, device=device, generator=generator, **extract_options)
        yield features_of(untrained, f"untrained backbone{suffix}")


def _fresh(decode_errors: DecodeErrors | None) -> DecodeErrors:
    """Return a new count of unreadable images, because a second pass over the images does not make more of them."""
    return DecodeErrors() if decode_errors is None else DecodeErrors(max_error_fraction=decode_errors.max_error_fraction)


def name_data(train: Images | MemoryImages, test: Images | MemoryImages) -> str:
    """Return the name of a data set: the source of the test images, and that of the training images if it is not the usual one.

    >>> from fullrank.images import train_and_test
    >>> splits = train_and_test("digits")
    >>> name_data(splits.train, splits.test)
    'digits (held out)'
    """
    train_source, test_source = getattr(train, "source", "memory"), getattr(test, "source", "memory")
    if train_source == test_source:
        return test_source if train is test else f"{test_source} (held out)"
    data, _, split = train_source.rstrip("]").rpartition("[")
    usual = split.lower() in TRAIN and test_source.startswith(f"{data}[")
    return test_source if usual else f"{test_source} (trained on {train_source})"


def report_unlabelled(images: Images | MemoryImages, split: str) -> list[str]:
    """Return a list with one line, the number of unlabelled images, or an empty list if all images have labels."""
    missing = int((torch.as_tensor(images.labels) < 0).sum())
    return [f"{missing} of {len(images)} {split} images: unlabelled"] if missing else []


def why_not_scorable(train: Images | MemoryImages, test: Images | MemoryImages) -> str:
    """Return the reason why no probe can be scored, or an empty string."""
    y, y_test = (torch.as_tensor(images.labels) for images in (train, test))
    classes = len(y[y >= 0].unique())
    if classes == 0:
        remedy = "name labelled images with --labelled SOURCE: class folders, or a table with a label column"
        return f"the training images{_source(train)} have no labels; {remedy}"
    if classes == 1:
        return f"all labelled training images{_source(train)} have the same class, but a probe needs at least two classes"
    return "" if (y_test >= 0).any() else f"the test images{_source(test)} have no labels; name another test split"


def _source(images: Images | MemoryImages) -> str:
    return f" of {source}" if (source := getattr(images, "source", "")) else ""


def table(evaluation: Evaluation) -> Table:
    """Build a table for the terminal: one row per probe, one column per feature set; the last row is the majority rate.

    >>> score = ProbeScore(features="backbone", probe="kNN", accuracy=0.5)
    >>> table(Evaluation(model="", train_images=8, test_images=2, statement="", scores=(score,))).row_count
    1
    """
    cells = {
        (score.probe, score.features): f"{score.accuracy:.1%}" + ("" if score.sd is None else f" ± {score.sd:.1%}") + _interval(score)
        for score in evaluation.scores
    }
    columns = dict.fromkeys(features for _, features in cells)
    draws = {score.n for score in evaluation.scores if score.sd is not None}
    notes = [f"±: standard deviation of n = {', '.join(map(str, sorted(draws)))} repetitions"] if draws else []
    notes += ["[ ]: 95 % interval over the test images"] if any(map(_interval, evaluation.scores)) else []
    trained = {score.probe: score.protocol["epochs"] for score in evaluation.scores if score.probe in (FROM_SCRATCH, FINE_TUNING)}
    notes += [f"{probe}: {epochs} epochs" for probe, epochs in trained.items()]
    caption = "; ".join(notes) or None
    title = Text(printable(evaluation.data)) if evaluation.data else None
    grid = Table("probe", *(Column(name, justify="right") for name in columns), title=title, caption=caption)
    grid.title_justify = grid.caption_justify = "left"
    for probe in dict.fromkeys(probe for probe, _ in cells):
        grid.add_row(probe, *(cells.get((probe, features), "") for features in columns))
    if evaluation.majority is not None:
        grid.add_section()
        grid.add_row("majority class", *(f"{evaluation.majority:.1%}" for _ in columns))
    return grid


def _interval(score: ProbeScore) -> str:
    """Return the interval of a score without repetitions, as a second line of its cell; those with repetitions show their deviation."""
    return "" if score.low is None or score.high is None or score.sd is not None else f"\n[{100 * score.low:.1f} {100 * score.high:.1f}]"


def class_table(evaluation: Evaluation) -> Table | None:
    """Build the table of balanced accuracy, AUROC and recall by the main probe, a column for each feature set; None without them."""
    if not evaluation.scores:
        return None
    probe = main_probe(evaluation.scores)
    scores = [score for score in evaluation.scores if score.probe in (probe, FROM_SCRATCH) and score.balanced_accuracy is not None]
    if not scores:
        return None
    grid = Table(probe, *(Column(Text(printable(score.features)), justify="right") for score in scores))
    balanced, areas = [], []
    for score in scores:
        ends = score.balanced_accuracy_interval
        balanced.append(_share(score.balanced_accuracy) + (f"\n[{100 * ends[0]:.1f} {100 * ends[1]:.1f}]" if ends else ""))
        ends = score.auroc_interval
        areas.append(("–" if score.auroc is None else f"{score.auroc:.3f}") + (f"\n[{ends[0]:.3f} {ends[1]:.3f}]" if ends else ""))
    grid.add_row("balanced accuracy", *balanced)
    grid.add_row("AUROC", *areas)
    names = list(dict.fromkeys(name for score in scores for name in score.per_class))
    if len(names) <= LARGEST_CONFUSION:
        grid.add_section()
        for name in names:
            grid.add_row(Text(f"recall, {printable(name)}"), *(_share(score.per_class.get(name)) for score in scores))
    return grid


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"
