"""Evaluation of a frozen backbone: each probe is scored on the features of the backbone, on raw pixels and on the features of the untrained
network.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from rich.table import Column, Table
from rich.text import Text
from torch import nn

from fullrank.errors import UserError, pick, printable
from fullrank.evaluation.baselines import calibrate_batchnorm, raw_pixels
from fullrank.evaluation.features import Features, extract_features, format_slice, standardize
from fullrank.evaluation.few_shot import few_shot
from fullrank.evaluation.knn import knn
from fullrank.evaluation.linear import linear_probe, linear_probe_sgd
from fullrank.evaluation.result import Evaluation, ProbeResult, ProbeScore, count_classes, majority_rate
from fullrank.images import DecodeErrors, Images, MemoryImages, Preprocess
from fullrank.images.splits import TRAIN


@dataclass(frozen=True)
class FeatureSet:
    """The features of the training and the test images, with a name such as 'raw pixels'."""

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
"""A function (feature set, device, seed) → scores of a probe."""


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
        features=features.name, probe="linear, 2 labels per class", accuracy=result.mean, sd=result.sd, n=len(result.accuracies)
    )
    return [score]


def _scores(features: str, probe: str, result: ProbeResult) -> list[ProbeScore]:
    accuracies = {probe: result.accuracy, f"{probe}, top 5": result.top5}
    return [ProbeScore(features=features, probe=name, accuracy=value) for name, value in accuracies.items() if value is not None]


PROBES: dict[str, Probe] = {"linear": _linear, "linear-sgd": _linear_sgd, "knn": _knn, "few-shot": _few_shot}
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
    probes: Sequence[str] = ("linear", "linear-sgd", "knn", "few-shot"),
    baselines: bool = True,
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
        baselines: whether to score raw pixels and the untrained backbone too.
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
        UserError: a probe is unknown, the images lack the labels for a score, the features do not have these dimensions, or too many images
            are unreadable.
    """
    selected = [pick(name, PROBES, "probe") for name in probes]
    if not selected:
        raise UserError(f"no probe, expected at least one of {', '.join(PROBES)}")
    if reason := why_not_scorable(train, test):
        raise UserError(f"nothing can be scored: {reason}")
    decode_errors = DecodeErrors() if decode_errors is None else decode_errors
    counts, scores, majority = (len(train), len(test)), [], None
    left_out = [*report_unlabelled(train, "training"), *report_unlabelled(test, "test")]
    if baselines and untrained is None:
        left_out.append("untrained backbone: the model cannot be re-initialised")
    progress("features of the backbone")
    extract_options: dict[str, Any] = {"batch_size": batch_size, "workers": workers, "decode_errors": decode_errors}
    options: dict[str, Any] = {"baselines": baselines, "dimensions": dimensions, "device": device, "seed": seed}
    for features in feature_sets(backbone, untrained, preprocess, train, test, **options, **extract_options):
        counts, majority = (len(features.train.X), len(features.test.X)), majority_rate(features.test.labels)
        for name, probe in zip(probes, selected, strict=True):
            progress(f"{name}: {features.name}")
            scores += probe(features, device, seed)
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
    **extract_options: Any,
) -> Iterator[FeatureSet]:
    """Yield the feature sets on which probes are compared; `extract_features` receives `extract_options`."""
    extract_options = {"preprocess": preprocess, **extract_options}
    backbone_options = {"dimensions": dimensions, "device": device, **extract_options}
    suffix = "" if dimensions == slice(None) else f"[{format_slice(dimensions)}]"
    yield FeatureSet(f"backbone{suffix}", *(extract_features(backbone, images, **backbone_options) for images in (train, test)))
    if not baselines:
        return
    X, X_test = (raw_pixels(images, **extract_options) for images in (train, test))
    side = math.isqrt(X.X.shape[1] // preprocess.channels)
    yield FeatureSet("raw pixels" if side == preprocess.size else f"raw pixels ({side} px)", X, X_test)
    if untrained is not None:
        calibrate_batchnorm(untrained, train, device=device, generator=torch.Generator().manual_seed(seed), **extract_options)
        yield FeatureSet(
            f"untrained backbone{suffix}", *(extract_features(untrained, images, **backbone_options) for images in (train, test))
        )


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
        return f"the training images{_source(train)} have no labels; give images in class folders, or a table with a label column"
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
        (score.probe, score.features): f"{score.accuracy:.1%}" + ("" if score.sd is None else f" ± {score.sd:.1%}")
        for score in evaluation.scores
    }
    columns = dict.fromkeys(features for _, features in cells)
    draws = {score.n for score in evaluation.scores if score.sd is not None}
    caption = f"±: standard deviation of n = {', '.join(map(str, sorted(draws)))} draws" if draws else None
    title = Text(printable(evaluation.data)) if evaluation.data else None
    grid = Table("probe", *(Column(name, justify="right") for name in columns), title=title, caption=caption)
    grid.title_justify = grid.caption_justify = "left"
    for probe in dict.fromkeys(probe for probe, _ in cells):
        grid.add_row(probe, *(cells.get((probe, features), "") for features in columns))
    if evaluation.majority is not None:
        grid.add_section()
        grid.add_row("majority class", *(f"{evaluation.majority:.1%}" for _ in columns))
    return grid
