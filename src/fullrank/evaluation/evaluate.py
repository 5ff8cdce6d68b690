"""`evaluate`: score the features of a MODEL by probes, beside raw pixels and the untrained network."""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
import tyro
from pydantic import Field

from fullrank.config import Count, config
from fullrank.errors import UserError
from fullrank.evaluation.features import FeatureSet, Network, calibrate_batchnorm, feature_sets, raw_pixels
from fullrank.evaluation.outcomes import Outcome, check_same_images, judge, score_predictions
from fullrank.evaluation.probes import PROBES, run_probe
from fullrank.evaluation.protocol import FewShotProtocol, Protocols, resolve_protocols, settings_of
from fullrank.evaluation.scorable import report_unlabelled, why_not_scorable
from fullrank.evaluation.score import Evaluation
from fullrank.evaluation.stored import FILE, add_evaluation, read_evaluations
from fullrank.evaluation.supervised import decode_labelled, flipped_like, predict, target_of, train_classifier
from fullrank.evaluation.verdict import verdict
from fullrank.images import DecodeErrors, Images, MemoryImages, Preprocess, decode
from fullrank.images.decode_errors import ImageDecodeError
from fullrank.images.reading import Device, Reading
from fullrank.models import Model, load, resolve_device
from fullrank.models.loading import find_checkpoint
from fullrank.models.model import HasPath, ModelLike, with_depth
from fullrank.models.model_images import Data, LabelledSplits, choose_splits

# Labels per class of the few-shot curve of `labelled`.
CURVE = (1, 2, 5, 10)
ProbeName = Literal["linear", "linear-sgd", "linear-imagenet", "knn", "svm", "few-shot", "fractions"]
# The feature set of the network that is trained with the labels alone.
SUPERVISED = "labels alone"


@config
class Scoring:
    """What is scored, and how.

    Attributes:
        probes: linear (full-batch logistic regression), linear-sgd (SGD as in the papers), linear-imagenet (Adam as in
            FroSSL's paper), knn, svm, few-shot (two labels per class), fractions (1 % and 10 % of the labels). The
            flags of each probe are its numbers.
        protocols: The numbers of the probes; in Python also a dict such as `{"knn": {"k": 200}}`.
        baselines: Also score raw pixels and the untrained network.
        supervised: Also train the network of the model from random weights with the labels alone, and compare.
        train_subset: Train the probes on the images of the run's data.subset, instead of all training images.
        resize: Shorter side of the images before the central square is cropped, such as 256 for a network of 224 px; by
            default that of the model.
        dimensions: Range of feature dimensions to score, such as :360 or 360: (not of raw pixels); such scores are not
            stored.
        seed: Seed of all random draws. If the images have no named splits, the seed of the run splits them.
    """

    probes: Annotated[tuple[ProbeName, ...], Field(min_length=1)] = ("linear", "linear-sgd", "knn", "few-shot")
    protocols: Annotated[Protocols, tyro.conf.arg(name="")] = field(default_factory=Protocols)
    baselines: bool = True
    supervised: bool = False
    train_subset: bool = False
    resize: Annotated[int, Field(ge=1)] | None = None
    dimensions: str = ":"
    seed: Count = 0

    @property
    def selected(self) -> slice:
        """The dimensions as a slice."""
        start, colon, stop = self.dimensions.partition(":")
        if not colon or not all(bound.isascii() and bound.isdecimal() for bound in (start, stop) if bound):
            raise UserError(f"dimensions is '{self.dimensions}', expected a range such as ':360' or '360:'")
        return slice(int(start) if start else None, int(stop) if stop else None)


def evaluate(
    model: ModelLike,
    data: Data | None = None,
    *,
    labelled: Data | None = None,
    against: Sequence[ModelLike] = (),
    reading: Reading | None = None,
    device: Device | None = None,
    store: bool = True,
    notify: Callable[[str], Any] = lambda line: None,
    **scoring: Any,
) -> Evaluation:
    """Score the features of a model by probes, and compare them with raw pixels and the untrained network.

    Images with several labels are scored by the linear probe and kNN; their metric is the mean average precision.
    Unlabelled images never count as errors. The scores of a run are added to its evaluation.json, which keeps the
    scores of all data sets, checkpoints and probes: a new score replaces only an old score of the same images,
    checkpoint, feature set, probe and settings. `Run.evaluations` reads them.

    Args:
        model: a MODEL (see `load`), a `Run`, or a loaded model.
        data: source of the labelled images; by default the source of the run. Without a test split, a fifth of the
            images is held out. A run with `data.validation` is scored on its validation images, unless `data` or a test
            split is given.
        labelled: labelled images from another place than the images of pretraining. This is `data` with two additions:
            the test images that are also images of pretraining are counted, by their pixels, and few-shot probes have
            1, 2, 5 and 10 labels per class.
        against: other models, which are scored on the same images and compared with the model.
        reading: how the images are read, with the names of the splits; by default as the run read them.
        device: where the networks run.
        store: add the scores to the evaluation.json of a run; other models and `RUN@STEP` have no such file.
        notify: receives a line for each step, on the images, and on replaced scores.
        **scoring: the fields of `Scoring`: `probes=["knn"]`, `protocols={"knn": {"k": 200}}`, `baselines=False` …

    Returns:
        The new scores, the value of guessing, comparisons with their intervals, a verdict, and what was left out.

    Raises:
        AssertionError: the backbone changed during the evaluation.
        UserError: the model or the images do not exist, the images have no labels, or an argument is wrong. Nothing is
            stored then.

    >>> class Circles(torch.utils.data.Dataset):
    ...     targets = [0, 1] * 20
    ...     __len__ = lambda self: 40
    ...     image = torch.ones(3, 8, 8, dtype=torch.uint8)
    ...     __getitem__ = lambda self, i: (self.image * 200 * self.targets[i], self.targets[i])
    >>> result = evaluate("timm-untrained:test_resnet", Circles(), probes=["knn"], baselines=False)
    >>> result.test_images, result.find("knn").name
    (8, 'kNN')
    """
    if isinstance(against, str | Path | HasPath | Model):
        raise UserError("against is one model, expected a list of models: against=[model]")
    if labelled is not None and data is not None:
        raise UserError("data and labelled both name the labelled images; give one of them")
    if isinstance(probes := scoring.get("probes"), str):
        raise UserError(f"probes is '{probes}', expected a list of names: probes=['{probes}']")
    given: dict[str, Any] = scoring | {"protocols": resolve_protocols(scoring.get("protocols"))}
    choices = Scoring(**given)
    if labelled is not None and choices.protocols.few_shot.labels == FewShotProtocol.labels:
        curve = replace(choices.protocols, few_shot=replace(choices.protocols.few_shot, labels=CURVE))
        choices = replace(choices, protocols=curve)
    loaded, others = load(model), [load(other) for other in against]
    names = [loaded.name, *(other.name for other in others)]
    if twice := {name for name in names if names.count(name) > 1}:
        raise UserError(f"model '{twice.pop()}' is given twice; give each model once")
    splits = scorable_splits(loaded, data if labelled is None else labelled, reading, choices)
    path = loaded.path / FILE if store and loaded.path and choices.selected == slice(None) else None
    if path:
        read_evaluations(path)  # before the work, because a damaged file is an error
    statement = "; ".join(
        filter(None, [splits.statement, overlap(loaded, splits.test) if labelled is not None else ""])
    )
    for line in filter(None, (unfinished(loaded), statement)):
        notify(line)
    evaluation = replace(
        score_model(loaded, others, splits, choices, device=device or Device(), notify=notify), statement=statement
    )
    if path:
        stored, replaced = add_evaluation(path, evaluation)
        evaluation = replace(evaluation, finetuned=stored.finetuned)
        if replaced:
            notify(f"{replaced} earlier scores of the same images, checkpoint and probes were replaced")
    return evaluation


def scorable_splits(
    model: Model, data: Data | None, reading: Reading | None, choices: Scoring, *, several: bool = True
) -> LabelledSplits:
    """Return the images for training and for scoring probes.

    Raises:
        UserError: the images do not exist, or lack labels.
    """
    seed = model.recipe.split_seed if model.recipe else choices.seed
    splits = choose_splits(model, data, reading, seed=seed, train_subset=choices.train_subset)
    if reason := why_not_scorable(splits.train, splits.test, several=several):
        raise UserError(f"nothing can be scored: {reason}")
    return splits


def score_networks(
    networks: Iterable[Network],
    train: Images | MemoryImages,
    test: Images | MemoryImages,
    choices: Scoring,
    *,
    device: Device | None = None,
    errors: DecodeErrors | None = None,
    notify: Callable[[str], Any] = lambda line: None,
) -> tuple[list[FeatureSet], list[Outcome]]:
    """Score the probes on the features of each network, and return the features with the scores, without intervals.

    >>> from fullrank.images import train_and_test
    >>> digits, pixels = train_and_test("digits"), raw_pixels(Preprocess(1, 8, (0.5,), (0.5,)))
    >>> _, (outcome, *_) = score_networks([pixels], digits.train, digits.test, Scoring(probes=("knn",)))
    >>> outcome.score.name, outcome.score.value > 0.9
    ('kNN', True)
    """
    device = device or Device()
    options = {
        "device": resolve_device(device.accelerator),
        "batch_size": device.batch_size,
        "workers": device.workers,
        "errors": errors or DecodeErrors(max_error_fraction=device.max_error_fraction),
    }
    added = {} if choices.resize is None else {"resize": choices.resize}
    sets: list[FeatureSet] = []
    outcomes: list[Outcome] = []
    for features in feature_sets(networks, train, test, seed=choices.seed, notify=notify, **options):
        for name in choices.probes:
            notify(f"{name}: {features.name}")
            outcomes += run_probe(name, features, choices.protocols[name], seed=choices.seed, **added)
        sets.append(features)
    check_same_images([each.target for each in sets])
    return sets, outcomes


def score_model(
    model: Model,
    others: Sequence[Model],
    splits: LabelledSplits,
    choices: Scoring,
    *,
    device: Device,
    notify: Callable[[str], Any] = lambda line: None,
) -> Evaluation:
    """Score a model, the baselines and other models on the same images, and compare them; nothing is stored."""
    train, test, errors = splits.train, splits.test, DecodeErrors(max_error_fraction=device.max_error_fraction)
    several = train.multi_labels is not None
    used = tuple(name for name in choices.probes if PROBES[name].several or not several)
    unused = [name for name in choices.probes if name not in used]
    if not used:
        usable = " and ".join(name for name, row in PROBES.items() if row.several)
        raise UserError(f"no probe of {', '.join(unused)} scores several labels an image; use {usable}")
    reading = {"batch_size": device.batch_size, "workers": device.workers}
    where = resolve_device(device.accelerator)
    networks = networks_of(model, others, train, choices, reading | {"device": where, "decode_errors": errors})
    rest = {"device": device, "errors": errors, "notify": notify}
    sets, outcomes = score_networks(networks, train, test, replace(choices, probes=used), **rest)
    if choices.supervised:
        protocol = flipped_like(choices.protocols.supervised, model.recipe)
        notify(f"{SUPERVISED}: {protocol.epochs} epochs")
        (pixels, _), (known, _) = (decode_labelled(part, model.preprocess, **reading) for part in (train, test))
        network, final = model.untrained(), replace(model.preprocess, resize=0)  # the pixels are resized already
        head = train_classifier(network, final, pixels, protocol, seed=choices.seed, device=where)
        predictions = [predict(network, head, final, known.pixels, device=where)]
        outcomes += score_predictions(SUPERVISED, "supervised", settings_of(protocol), predictions, target_of(known))
    scores, comparisons = judge(outcomes, sets[0].target, seed=choices.seed)
    left_out = [*report_unlabelled(train, "training"), *report_unlabelled(test, "test")]
    left_out += [f"{name}: the images have several labels each, which it cannot score" for name in unused]
    left_out += [f"{len(errors.reasons)} images: unreadable"] if errors.reasons else []
    first = scores[0].features
    shots = [s for s in scores if s.probe == "few-shot" and s.features == first and s.metric == "accuracy"]
    curve = {int(str(score.settings["labels"])): score.value for score in shots}
    return Evaluation(
        model=model.name,
        data=splits.data,
        step=model.step,
        train_images=len(sets[0].train.X),
        test_images=len(sets[0].test.X),
        chance=sets[0].target.chance,
        statement=splits.statement,
        scores=scores,
        left_out=tuple(left_out),
        comparisons=comparisons,
        verdict=verdict(comparisons, curve, accuracy_during_training(model)),
    )


def networks_of(
    model: Model, others: Sequence[Model], train: Images | MemoryImages, choices: Scoring, options: dict[str, Any]
) -> Iterator[Network]:
    """Yield the backbone and what it is compared with: initial weights, other models, raw pixels, the untrained
    network.
    """

    def resized(preprocess: Preprocess) -> Preprocess:
        if choices.resize is None:
            return preprocess
        if choices.resize < preprocess.size:
            least = f"expected at least {preprocess.size}, the side of the network's images"
            raise UserError(f"resize is {choices.resize}, {least}")
        return replace(preprocess, resize=choices.resize)

    preprocess = resized(with_depth(model, train).preprocess)
    suffix = "" if choices.dimensions == ":" else f"[{choices.dimensions}]"
    yield Network(f"backbone{suffix}", model.backbone, preprocess, choices.selected)
    if choices.baselines and model.initial is not None:
        yield Network("initial weights", model.initial(), preprocess)
    for other in others:
        yield Network(other.name, other.backbone, resized(with_depth(other, train).preprocess))
    if choices.baselines:
        yield raw_pixels(preprocess)
        generator = torch.Generator().manual_seed(choices.seed)
        untrained = calibrate_batchnorm(model.untrained(), train, preprocess, generator=generator, **options)
        yield Network(f"untrained backbone{suffix}", untrained, preprocess, choices.selected)


def unfinished(model: Model) -> str:
    """Return a line that says how far a run is if its newest checkpoint is not its last; empty for other models."""
    if model.path is None or model.recipe is None or model.step is None:
        return ""
    images = find_checkpoint(model.path, model.step).meta().get("images")
    if not isinstance(images, int) or model.step >= (steps := images // model.recipe.batch_size * model.recipe.epochs):
        return ""
    return f"{model.path} is not finished: the scores are of step {model.step:,} of {steps:,}"


def accuracy_during_training(model: Model) -> dict[float, float]:
    """Return epoch → accuracy of the last probe of a run during its training, up to its checkpoint; empty for other
    models, and for a damaged log, which is no reason to lose the scores.
    """
    log = model.path / "metrics.jsonl" if model.path else None
    if log is None or model.step is None or not log.exists():
        return {}
    try:
        lines = [line for line in log.read_text("utf-8").splitlines() if '"online"' in line and line.endswith("}")]
        rows = [row for row in map(json.loads, lines) if row.get("kind") == "online" and row["step"] <= model.step]
        last = {(row.get("probe"), row["images"]) for row in rows[-1:]}  # a run may continue with other labels
        used = [row for row in rows if (row.get("probe"), row["images"]) in last]
        return {float(row["epoch"]): float(row["accuracy"]) for row in used}
    except (ValueError, KeyError, TypeError):
        return {}


def overlap(model: Model, test: Images | MemoryImages) -> str:
    """Return how many test images are images of pretraining; empty for a model without images of its own."""
    if model.recipe is None:
        return ""
    try:
        own = choose_splits(
            model, None, seed=model.recipe.split_seed, train_subset=bool(model.recipe.data.subset)
        ).train
    except UserError as error:
        return f"the overlap with the images of pretraining was not counted ({error})"
    count = count_overlap(test, own, channels=model.preprocess.channels)
    return f"{count:,} of {len(test):,} test images are also among the {len(own):,} images of pretraining"


def count_overlap(test: Images | MemoryImages, pretraining: Images | MemoryImages, *, channels: int) -> int:
    """Return the number of test images whose decoded pixels, in `channels` channels, equal those of an image of
    pretraining, whatever the file names and formats. Unreadable images are left out.

    >>> from fullrank.images import open_images
    >>> digits = open_images("digits")["all"]
    >>> count_overlap(digits.subset(range(10)), digits.subset(range(7, 20)), channels=1)
    3
    """
    known = {content_hash(pretraining, row, channels) for row in range(len(pretraining))} - {None}
    return sum(content_hash(test, row, channels) in known for row in range(len(test)))


def content_hash(images: Images | MemoryImages, row: int, channels: int) -> bytes | None:
    """Return the hash of the size and the decoded pixels of an image, None if it is unreadable."""
    try:
        image = images.open(row) if isinstance(images, Images) else images.pixels[row].permute(1, 2, 0).cpu().numpy()
        pixels = np.array(decode(image, channels))
    except ImageDecodeError:
        return None
    pixels = pixels.reshape(*pixels.shape[:2], -1)  # one channel with or without an axis of its own
    return hashlib.blake2b(f"{pixels.shape}".encode() + pixels.tobytes(), digest_size=16).digest()
