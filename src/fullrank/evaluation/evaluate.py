"""`evaluate`: score the features of a MODEL by probes, beside raw pixels and the untrained network."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from fullrank.errors import UserError
from fullrank.evaluation.features import FeatureSet, Network, calibrate_batchnorm, feature_sets, raw_pixels
from fullrank.evaluation.finetune import SupervisedTraining
from fullrank.evaluation.outcomes import Outcome, score_predictions
from fullrank.evaluation.probes import PROBES, run_probe
from fullrank.evaluation.protocol import FewShotProtocol, Scoring, settings_of
from fullrank.evaluation.score import Evaluation, add_evaluation
from fullrank.evaluation.task import Notify, Task, accuracy_during_training, file_of, open_task, silent
from fullrank.evaluation.verdict import verdict
from fullrank.images import Device, Preprocess, Reading
from fullrank.models import Model, load
from fullrank.models.model import ModelLike, with_depth
from fullrank.models.model_images import Data

# Labels per class of the few-shot curve of `labelled`.
CURVE = (1, 2, 5, 10)
# The feature set of the network that is trained from random weights with the labels.
SUPERVISED = "supervised baseline"


def evaluate(
    model: ModelLike,
    data: Data | None = None,
    *,
    labelled: Data | None = None,
    against: Sequence[ModelLike] = (),
    reading: Reading | None = None,
    device: Device | None = None,
    store: bool = True,
    notify: Notify = silent,
    progress: Notify = silent,
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
        notify: receives a line on the images, and on replaced scores.
        progress: receives the work in progress, such as "raw pixels: knn".
        **scoring: the fields of `Scoring`: `probes=["knn"]`, `protocols={"knn": {"k": 200}}`, `baselines=False` …

    Returns:
        The new scores, the value of guessing, comparisons with their intervals, a verdict, and what was left out.

    Raises:
        AssertionError: the backbone changed during the evaluation.
        UserError: the model or the images do not exist, the images have no labels, or an argument is wrong. Nothing is
            stored then.

    >>> class Shades(torch.utils.data.Dataset):
    ...     targets = [0, 1] * 20
    ...     __len__ = lambda self: 40
    ...     image = torch.ones(3, 8, 8, dtype=torch.uint8)
    ...     __getitem__ = lambda self, i: (self.image * 200 * self.targets[i], self.targets[i])
    >>> result = evaluate("timm-untrained:test_resnet", Shades(), probes=["knn"], baselines=False)
    >>> result.test_images, result.find("knn").name
    (8, 'kNN')
    """
    if labelled is not None and data is not None:
        raise UserError("data and labelled both name the labelled images; give one of them")
    choices = Scoring(**scoring)
    if labelled is not None and choices.protocols.few_shot.labels == FewShotProtocol.labels:
        few_shot = replace(choices.protocols.few_shot, labels=CURVE)
        choices = replace(choices, protocols=replace(choices.protocols, few_shot=few_shot))
    if isinstance(against, ModelLike):
        raise UserError("against is one model, expected a list of models: against=[model]")
    loaded, *others = load_different([model, *against])
    path = file_of(loaded, store=store and choices.selected == slice(None))
    source, elsewhere = (data, False) if labelled is None else (labelled, True)
    task = open_task(loaded, source, choices, reading, device, notify, others=others, elsewhere=elsewhere)
    evaluation = score_model(loaded, others, replace(task, progress=progress), choices)
    if path:
        stored, replaced = add_evaluation(path, evaluation)
        evaluation = replace(evaluation, finetuned=stored.finetuned)
        if replaced:
            notify(f"{replaced} earlier scores of the same images, checkpoint and probes were replaced")
    return evaluation


def load_different(models: Sequence[ModelLike]) -> list[Model]:
    """Load several models.

    Raises:
        UserError: one does not exist, or is given twice.
    """
    loaded = [load(each) for each in models]
    names = [each.name for each in loaded]
    if twice := {name for name in names if names.count(name) > 1}:
        raise UserError(f"model '{twice.pop()}' is given twice; give each model once")
    return loaded


def score_networks(networks: Iterable[Network], task: Task, choices: Scoring) -> tuple[list[FeatureSet], list[Outcome]]:
    """Score the probes on the features of each network, and return the features with the scores, without intervals.

    >>> from fullrank.images import train_and_test
    >>> from fullrank.models.model_images import LabelledSplits
    >>> digits, pixels = train_and_test("digits"), raw_pixels(Preprocess(1, 8, (0.5,), (0.5,)))
    >>> task = Task(LabelledSplits(digits.train, digits.test, "digits", ""))
    >>> _, (outcome, *_) = score_networks([pixels], task, Scoring(probes=("knn",)))
    >>> outcome.score.name, outcome.score.value > 0.9
    ('kNN', True)
    """
    added = {} if choices.resize is None else {"resize": choices.resize}
    sets, outcomes = [], []
    for features in feature_sets(networks, task, seed=choices.seed):
        for name in choices.probes:
            task.progress(f"{features.name}: {name}")
            outcomes += run_probe(name, features, choices.protocols[name], seed=choices.seed, **added)
        sets.append(features)
    if len({len(each.target.labels) for each in sets}) > 1:
        remedy = "remove the unreadable images"
        raise UserError(f"the models cannot read the same test images, so they cannot be compared; {remedy}")
    return sets, outcomes


def score_model(model: Model, others: Sequence[Model], task: Task, choices: Scoring) -> Evaluation:
    """Score a model, the baselines and other models on the same images, and compare them; nothing is stored."""
    multilabel = task.splits.train.multi_labels is not None
    unused = [name for name in choices.probes if multilabel and not PROBES[name].multilabel]
    used = tuple(name for name in choices.probes if name not in unused)
    if not used:
        usable = " and ".join(name for name, row in PROBES.items() if row.multilabel)
        raise UserError(f"no probe of {', '.join(unused)} scores multi-label images; use {usable}")
    networks = networks_of(model, others, task, choices)
    sets, outcomes = score_networks(networks, task, replace(choices, probes=used))
    if choices.supervised:
        same = replace(model, preprocess=preprocess_of(model, task, choices))
        training = SupervisedTraining.of(task, same, choices.protocols.supervised)
        task.notify(f"{SUPERVISED}: {training.protocol.epochs} epochs")
        _, prediction = training.run(model.untrained(), seed=choices.seed, notify=task.notify)
        settings = settings_of(training.protocol)
        outcomes += score_predictions(SUPERVISED, "supervised", settings, [prediction], training.target)
    first = sets[0]
    read = len(first.train.X), len(first.test.X)
    found = task.evaluation(model, outcomes, first.target, read, seed=choices.seed)
    left_out = [f"{name}: the images have several labels each, which it cannot score" for name in unused]
    shots = [s for s in found.scores if (s.probe, s.features, s.metric) == ("few-shot", first.name, "accuracy")]
    curve = {int(str(score.settings["labels"])): score.value for score in shots}
    sentence = verdict(found.comparisons, curve, *accuracy_during_training(model))
    sentence += task.caveat if sentence else ""
    return replace(found, left_out=(*found.left_out, *left_out), verdict=sentence)


def preprocess_of(model: Model, task: Task, choices: Scoring) -> Preprocess:
    """Return the preprocessing of a model, at the bit depth of the images and with the `resize` of the choices."""
    preprocess = with_depth(model, task.splits.train).preprocess
    if choices.resize is not None and choices.resize < preprocess.size:
        least = f"expected at least {preprocess.size}, the side of the network's images"
        raise UserError(f"resize is {choices.resize}, {least}")
    return preprocess if choices.resize is None else replace(preprocess, resize=choices.resize)


def networks_of(model: Model, others: Sequence[Model], task: Task, choices: Scoring) -> Iterator[Network]:
    """Yield the backbone and what it is compared with: initial weights, other models, raw pixels, the untrained
    network.
    """
    preprocess = preprocess_of(model, task, choices)
    suffix = "" if choices.dimensions == ":" else f"[{choices.dimensions}]"
    yield Network(f"backbone{suffix}", model.backbone, preprocess, choices.selected)
    if choices.baselines and model.init is not None:
        yield Network(f"initial weights{suffix}", model.initial(), preprocess, choices.selected)
    for other in others:
        yield Network(other.name, other.backbone, preprocess_of(other, task, choices))
    if choices.baselines:
        yield raw_pixels(preprocess)
        generator = torch.Generator().manual_seed(choices.seed)
        options = {"generator": generator, "device": task.device, "errors": task.errors}
        untrained = calibrate_batchnorm(model.untrained(), task.splits.train, preprocess, **options)
        yield Network(f"untrained backbone{suffix}", untrained, preprocess, choices.selected)
