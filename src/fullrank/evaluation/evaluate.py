"""The judgement of a frozen backbone: every probe, on its features and on those that it has to beat."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from rich.table import Column, Table
from torch import nn

from fullrank.errors import pick
from fullrank.evaluation.baselines import calibrate_batchnorm, raw_pixels
from fullrank.evaluation.features import Features, extract, in_words, standardize
from fullrank.evaluation.few_shot import few_shot
from fullrank.evaluation.knn import knn
from fullrank.evaluation.linear import linear_probe, linear_probe_sgd
from fullrank.evaluation.score import Score, count_classes
from fullrank.images import DecodeErrors, Images, MemoryImages, Preprocess


@dataclass(frozen=True)
class Task:
    """Features of training and test images, as they are and standardised."""

    train: Features
    test: Features
    seed: int
    device: torch.device | str

    def raw(self) -> tuple[torch.Tensor, ...]:
        """Return X, y, X_test, y_test on the device."""
        return tuple(tensor.to(self.device) for half in (self.train, self.test) for tensor in (half.X, half.labels))

    def standard(self) -> tuple[torch.Tensor, ...]:
        """Return them standardised by the statistics of all training images, labelled or not."""
        X, y, X_test, y_test = self.raw()
        X, X_test = standardize(X, X_test)
        return X, y, X_test, y_test


def _linear(task: Task) -> list[dict[str, Any]]:
    return _rows("linear (full batch)", linear_probe(*task.standard(), seed=task.seed))


def _linear_sgd(task: Task) -> list[dict[str, Any]]:
    classes = count_classes(task.train.labels, task.test.labels)
    generator = torch.Generator().manual_seed(task.seed)
    return _rows("linear (SGD)", linear_probe_sgd(*task.standard(), classes=classes, generator=generator))


def _knn(task: Task) -> list[dict[str, Any]]:
    return _rows("kNN", knn(*task.raw()))


def _few(task: Task) -> list[dict[str, Any]]:
    few = few_shot(*task.standard(), seed=task.seed)
    return [{"probe": "linear, 2 labels a class", "accuracy": few.mean, "sd": few.sd, "n": len(few.accuracies)}]


def _rows(probe: str, scored: Score) -> list[dict[str, Any]]:
    found = {probe: scored.accuracy, f"{probe}, top 5": scored.top5}
    return [{"probe": name, "accuracy": value, "sd": None, "n": 1} for name, value in found.items() if value is not None]


PROBES: dict[str, Callable[[Task], list[dict[str, Any]]]] = {"linear": _linear, "linear-sgd": _linear_sgd, "knn": _knn, "few": _few}
"""Each probe by its name on the command line; it returns the scores of one task."""


def evaluate(
    backbone: nn.Module,
    untrained: nn.Module | None,
    preprocess: Preprocess,
    train: Images | MemoryImages,
    test: Images | MemoryImages,
    *,
    device: torch.device | str = "cpu",
    seed: int = 0,
    probes: Sequence[str] = ("linear", "linear-sgd", "knn", "few"),
    baselines: bool = True,
    dimensions: slice = slice(None),
    model: str = "",
    statement: str = "",
    batch: int = 512,
    workers: int = 0,
    decode_errors: DecodeErrors | None = None,
    progress: Callable[[str], Any] = lambda line: None,
) -> dict[str, Any]:
    """Score a backbone by every probe, beside raw pixels and beside the same network untrained; the content of `evaluation.json`.

    Unlabelled images are never counted as wrong: they are left out, and "skipped" says so, as it says whatever else is left out and why.

    Args:
        backbone: maps float32 images (n, C, S, S) to features (n, D); proved frozen.
        untrained: the same network with fresh weights, whose BatchNorm is calibrated on training images here; None where there is none.
        preprocess: of the backbone.
        train: images that the probes learn from.
        test: images that they are scored on.
        device: where backbone and probes run.
        seed: of every draw.
        probes: names in `PROBES`.
        baselines: False leaves raw pixels and the untrained backbone out.
        dimensions: those of the features that are judged, of the backbone and of the untrained one: `slice(360)`, `slice(360, None)`.
        model: what is judged, as the user wrote it.
        statement: which images train and which test, in a sentence.
        batch: images a forward pass.
        workers: processes that decode; 0 is this one.
        decode_errors: records images that cannot be read; by default a new one, which stops past a tenth.
        progress: told in a few words what begins.

    Returns:
        {"model", "train_images", "test_images", "statement", "scores", "skipped"}; a score is {"features", "probe", "accuracy" in
        [0, 1], "sd" or None, "n"}: the mean and the standard deviation over n repetitions.

    Raises:
        AssertionError: the backbone changed while it was judged.
        UserError: an unknown probe, dimensions that the features have not, or images that cannot be read.
    """
    chosen = [pick(name, PROBES, "probe") for name in probes]
    decode_errors = DecodeErrors() if decode_errors is None else decode_errors
    notes = [*label_notes(train, "training"), *label_notes(test, "test")]
    result: dict[str, Any] = {"model": model, "train_images": len(train), "test_images": len(test), "statement": statement, "scores": []}
    if reason := why_not(train, test):
        return result | {"skipped": [f"all scores: {reason}"]}
    if baselines and untrained is None:
        notes.append("untrained backbone: the model does not say how it is built, so there is none to compare with")
    progress("features of the backbone")
    reading: dict[str, Any] = {"batch": batch, "workers": workers, "decode_errors": decode_errors}
    options: dict[str, Any] = {"baselines": baselines, "dimensions": dimensions, "device": device, "seed": seed}
    judged = subjects(backbone, untrained, preprocess, train, test, **options, **reading)
    for features, halves in judged:
        result |= {"train_images": len(halves[0].X), "test_images": len(halves[1].X)}
        task = Task(*halves, seed, device)
        for name, probe in zip(probes, chosen, strict=True):
            progress(f"{name}: {features}")
            result["scores"] += [{"features": features, **row} for row in probe(task)]
    if decode_errors.reasons:
        notes.append(f"{len(decode_errors.reasons)} images: they cannot be read")
    return result | {"skipped": notes}


def subjects(
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
) -> Iterator[tuple[str, tuple[Features, Features]]]:
    """Yield each kind of features by its name, of the training and of the test images; `reading` goes to `extract`."""

    def both(features: Callable[[Images | MemoryImages], Features]) -> tuple[Features, Features]:
        return features(train), features(test)

    def learnt(network: nn.Module) -> tuple[Features, Features]:
        return both(partial(extract, network, dimensions=dimensions, device=device, **reading))

    reading = {"preprocess": preprocess, **reading}
    which = "" if dimensions == slice(None) else f"[{in_words(dimensions)}]"
    yield f"backbone{which}", learnt(backbone)
    if baselines:
        pixels = both(partial(raw_pixels, **reading))
        side = math.isqrt(pixels[0].X.shape[1] // preprocess.channels)
        yield "raw pixels" if side == preprocess.size else f"raw pixels ({side} px)", pixels
    if baselines and untrained is not None:
        calibrate_batchnorm(untrained, train, device=device, generator=torch.Generator().manual_seed(seed), **reading)
        yield f"untrained backbone{which}", learnt(untrained)


def label_notes(images: Images | MemoryImages, what: str) -> list[str]:
    """Say how many images have no label."""
    missing = int((torch.as_tensor(images.labels) < 0).sum())
    return [f"{missing} of {len(images)} {what} images: they have no label"] if missing else []


def why_not(train: Images | MemoryImages, test: Images | MemoryImages) -> str:
    """Return why no probe can be scored, or an empty string."""
    y, y_test = (torch.as_tensor(images.labels) for images in (train, test))
    known = len(y[y >= 0].unique())
    if known == 0:
        return "the training images have no labels"
    if known == 1:
        return "the training images are all of one class, and a probe tells classes apart"
    return "" if (y_test >= 0).any() else "the test images have no labels"


def table(result: dict[str, Any]) -> Table:
    """Lay the scores out for a terminal: a row a probe, a column a kind of features.

    >>> row = {"features": "backbone", "probe": "kNN", "accuracy": 0.5, "sd": None, "n": 1}
    >>> table({"scores": [row]}).row_count
    1
    """
    cells = {(score["probe"], score["features"]): _cell(score) for score in result["scores"]}
    columns = dict.fromkeys(features for _, features in cells)
    draws = {score["n"] for score in result["scores"] if score["sd"] is not None}
    caption = f"±: standard deviation of n = {', '.join(map(str, sorted(draws)))} draws" if draws else None
    grid = Table("probe", *(Column(name, justify="right") for name in columns), caption=caption, caption_justify="left")
    for probe in dict.fromkeys(probe for probe, _ in cells):
        grid.add_row(probe, *(cells.get((probe, features), "") for features in columns))
    return grid


def _cell(score: dict[str, Any]) -> str:
    spread = "" if score["sd"] is None else f" ± {score['sd']:.1%}"
    return f"{score['accuracy']:.1%}{spread}"
