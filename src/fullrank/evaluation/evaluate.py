"""Evaluation of a frozen backbone: each probe is scored on its features, on raw pixels and on the features of the untrained network."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from rich.table import Column, Table
from torch import nn

from fullrank.errors import pick
from fullrank.evaluation.baselines import calibrate_batchnorm, raw_pixels
from fullrank.evaluation.features import Features, extract_features, format_slice, standardize
from fullrank.evaluation.few_shot import few_shot
from fullrank.evaluation.knn import knn
from fullrank.evaluation.linear import linear_probe, linear_probe_sgd
from fullrank.evaluation.result import Evaluation, ProbeResult, ProbeScore, count_classes
from fullrank.images import DecodeErrors, Images, MemoryImages, Preprocess


@dataclass(frozen=True)
class FeatureSet:
    """The features of the training and the test images under one name, such as 'raw pixels'."""

    name: str
    train: Features
    test: Features

    def tensors(self, device: torch.device | str) -> tuple[torch.Tensor, ...]:
        """Return X, y, X_test, y_test on the device."""
        return tuple(tensor.to(device) for split in (self.train, self.test) for tensor in (split.X, split.labels))

    def standardized(self, device: torch.device | str) -> tuple[torch.Tensor, ...]:
        """Return X, y, X_test, y_test, standardised by the statistics of all training images, labelled or not."""
        X, y, X_test, y_test = self.tensors(device)
        X, X_test = standardize(X, X_test)
        return X, y, X_test, y_test


Probe = Callable[[FeatureSet, torch.device | str, int], list[ProbeScore]]
"""A function of a feature set, a device and a seed that returns the scores of a probe."""


def _linear(features: FeatureSet, device: torch.device | str, seed: int) -> list[ProbeScore]:
    return _scores(features.name, "linear (full batch)", linear_probe(*features.standardized(device), seed=seed))


def _linear_sgd(features: FeatureSet, device: torch.device | str, seed: int) -> list[ProbeScore]:
    classes = count_classes(features.train.labels, features.test.labels)
    generator = torch.Generator().manual_seed(seed)
    return _scores(features.name, "linear (SGD)", linear_probe_sgd(*features.standardized(device), classes=classes, generator=generator))


def _knn(features: FeatureSet, device: torch.device | str, seed: int) -> list[ProbeScore]:
    return _scores(features.name, "kNN", knn(*features.tensors(device)))


def _few_shot(features: FeatureSet, device: torch.device | str, seed: int) -> list[ProbeScore]:
    result = few_shot(*features.standardized(device), seed=seed)
    score = ProbeScore(
        features=features.name, probe="linear, 2 labels a class", accuracy=result.mean, sd=result.sd, n=len(result.accuracies)
    )
    return [score]


def _scores(features: str, probe: str, result: ProbeResult) -> list[ProbeScore]:
    accuracies = {probe: result.accuracy, f"{probe}, top 5": result.top5}
    return [ProbeScore(features=features, probe=name, accuracy=value) for name, value in accuracies.items() if value is not None]


PROBES: dict[str, Probe] = {"linear": _linear, "linear-sgd": _linear_sgd, "knn": _knn, "few-shot": _few_shot}
"""Each probe by its name on the command line."""


def evaluate(
    backbone: nn.Module,
    untrained: nn.Module | None,
    preprocess: Preprocess,
    train: Images | MemoryImages,
    test: Images | MemoryImages,
    *,
    device: torch.device | str = "cpu",
    seed: int = 0,
    probes: Sequence[str] = ("linear", "linear-sgd", "knn", "few-shot"),
    baselines: bool = True,
    dimensions: slice = slice(None),
    model: str = "",
    statement: str = "",
    batch_size: int = 512,
    workers: int = 0,
    decode_errors: DecodeErrors | None = None,
    progress: Callable[[str], Any] = lambda line: None,
) -> Evaluation:
    """Score every probe on the features of a backbone, on raw pixels and on the features of the same network untrained.

    Unlabelled images never count as errors: they are left out, and `Evaluation.left_out` lists them with everything else that is
    not scored, and the reason.

    Args:
        backbone: maps float32 images (n, C, S, S) to features (n, D); its weights are verified to be unchanged afterwards.
        untrained: the same network with fresh weights; its BatchNorm is calibrated on training images here. None if not available.
        preprocess: the preprocessing of the backbone.
        train: images that the probes are trained on.
        test: images that the probes are scored on.
        device: where backbone and probes run.
        seed: the seed of every random draw.
        probes: names in `PROBES`.
        baselines: False leaves out raw pixels and the untrained backbone.
        dimensions: the feature dimensions that are scored, of the backbone and of the untrained one: `slice(360)`, `slice(360, None)`.
        model: the MODEL, as the user wrote it.
        statement: one sentence that names the training and the test images.
        batch_size: images per forward pass.
        workers: processes that decode images; 0 decodes in this process.
        decode_errors: records images that cannot be read; by default a new one, which stops when more than a tenth fail.
        progress: called with a short description of each part as it begins.

    Raises:
        AssertionError: the backbone changed during the evaluation.
        UserError: a probe is unknown, the features do not have these dimensions, or images cannot be read.
    """
    selected = [pick(name, PROBES, "probe") for name in probes]
    decode_errors = DecodeErrors() if decode_errors is None else decode_errors
    counts, scores = (len(train), len(test)), []
    left_out = [*report_unlabelled(train, "training"), *report_unlabelled(test, "test")]
    if reason := reason_not_to_score(train, test):
        left_out = [f"all scores: {reason}"]
    else:
        if baselines and untrained is None:
            left_out.append("untrained backbone: it is not known how to build the model with fresh weights")
        progress("features of the backbone")
        reading: dict[str, Any] = {"batch_size": batch_size, "workers": workers, "decode_errors": decode_errors}
        options: dict[str, Any] = {"baselines": baselines, "dimensions": dimensions, "device": device, "seed": seed}
        for features in feature_sets(backbone, untrained, preprocess, train, test, **options, **reading):
            counts = len(features.train.X), len(features.test.X)
            for name, probe in zip(probes, selected, strict=True):
                progress(f"{name}: {features.name}")
                scores += probe(features, device, seed)
        if decode_errors.reasons:
            left_out.append(f"{len(decode_errors.reasons)} images: they cannot be read")
    return Evaluation(
        model=model,
        train_images=counts[0],
        test_images=counts[1],
        statement=statement,
        scores=tuple(scores),
        left_out=tuple(left_out),
    )


def feature_sets(
    backbone: nn.Module,
    untrained: nn.Module | None,
    preprocess: Preprocess,
    train: Images | MemoryImages,
    test: Images | MemoryImages,
    *,
    baselines: bool,
    dimensions: slice,
    device: torch.device | str,
    seed: int,
    **reading: Any,
) -> Iterator[FeatureSet]:
    """Yield the feature sets that probes are compared on; `reading` goes to `extract_features`."""
    reading = {"preprocess": preprocess, **reading}
    of_network = {"dimensions": dimensions, "device": device, **reading}
    suffix = "" if dimensions == slice(None) else f"[{format_slice(dimensions)}]"
    yield FeatureSet(f"backbone{suffix}", *(extract_features(backbone, images, **of_network) for images in (train, test)))
    if not baselines:
        return
    X, X_test = (raw_pixels(images, **reading) for images in (train, test))
    side = math.isqrt(X.X.shape[1] // preprocess.channels)
    yield FeatureSet("raw pixels" if side == preprocess.size else f"raw pixels ({side} px)", X, X_test)
    if untrained is not None:
        calibrate_batchnorm(untrained, train, device=device, generator=torch.Generator().manual_seed(seed), **reading)
        yield FeatureSet(f"untrained backbone{suffix}", *(extract_features(untrained, images, **of_network) for images in (train, test)))


def report_unlabelled(images: Images | MemoryImages, split: str) -> list[str]:
    """Return a line with the number of images without a label, if there are any."""
    missing = int((torch.as_tensor(images.labels) < 0).sum())
    return [f"{missing} of {len(images)} {split} images: they have no label"] if missing else []


def reason_not_to_score(train: Images | MemoryImages, test: Images | MemoryImages) -> str:
    """Return why no probe can be scored, or an empty string."""
    y, y_test = (torch.as_tensor(images.labels) for images in (train, test))
    classes = len(y[y >= 0].unique())
    if classes == 0:
        return "the training images have no labels"
    if classes == 1:
        return "the training images are all of one class, and a probe needs two or more"
    return "" if (y_test >= 0).any() else "the test images have no labels"


def table(evaluation: Evaluation) -> Table:
    """Build a table for the terminal: one row per probe, one column per feature set.

    >>> score = ProbeScore(features="backbone", probe="kNN", accuracy=0.5)
    >>> table(Evaluation(model="", train_images=8, test_images=2, statement="", scores=(score,))).row_count
    1
    """
    cells = {(score.probe, score.features): _cell(score) for score in evaluation.scores}
    columns = dict.fromkeys(features for _, features in cells)
    draws = {score.n for score in evaluation.scores if score.sd is not None}
    caption = f"±: standard deviation of n = {', '.join(map(str, sorted(draws)))} draws" if draws else None
    grid = Table("probe", *(Column(name, justify="right") for name in columns), caption=caption, caption_justify="left")
    for probe in dict.fromkeys(probe for probe, _ in cells):
        grid.add_row(probe, *(cells.get((probe, features), "") for features in columns))
    return grid


def _cell(score: ProbeScore) -> str:
    spread = "" if score.sd is None else f" ± {score.sd:.1%}"
    return f"{score.accuracy:.1%}{spread}"
