"""Judge a MODEL in one line: `evaluate` scores its features, `measure_spectrum` measures their spectra.

The commands of the same names call these functions. Without `data`, they take the held-out images of the run.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fullrank.arguments import parse_slice
from fullrank.errors import UserError
from fullrank.evaluation import encoder_spectrum, evaluate_backbone
from fullrank.evaluation.names import TOP5
from fullrank.evaluation.overlap import content_hash, count_overlap
from fullrank.evaluation.protocol import DEFAULT_PROBES, FewShotProtocol, Protocols
from fullrank.evaluation.result import Evaluation, ProbeScore
from fullrank.evaluation.scorable import why_not_scorable
from fullrank.evaluation.spectrum import EncoderModel
from fullrank.evaluation.supervised import Supervised
from fullrank.files import atomic_write
from fullrank.images import DecodeErrors, Images, MemoryImages, Preprocess
from fullrank.models import Model, load, resolve_device
from fullrank.models.model import ModelLike, with_depth
from fullrank.models.model_images import Data, choose_splits, held_out_images
from fullrank.recipes import read_recipe
from fullrank.run import Run
from fullrank.run.evaluations import merge_evaluation, read_evaluations, to_json
from fullrank.spectrum import Spectrum

CURVE = (1, 2, 5, 10)
"""Labels per class of the few-shot curve."""


def evaluate(
    model: ModelLike,
    data: Data | None = None,
    *,
    labelled: Data | None = None,
    against: Sequence[ModelLike] = (),
    supervised: bool = False,
    supervised_epochs: int = 100,
    train: str | None = None,
    test: str | None = None,
    train_subset: bool = False,
    probes: Sequence[str] = DEFAULT_PROBES,
    protocols: Mapping[str, Any] | Protocols | None = None,
    resize: int | None = None,
    baselines: bool = True,
    dimensions: slice | str = slice(None),
    seed: int = 0,
    store: bool = True,
    batch_size: int = 512,
    device: str | torch.device = "auto",
    workers: int = 0,
    decode_errors: DecodeErrors | None = None,
    notify: Callable[[str], Any] = lambda line: None,
    progress: Callable[[str], Any] = lambda line: None,
) -> Evaluation:
    """Score the features of a model by probes, and compare them with raw pixels and the untrained network.

    The scores of a run are added to its evaluation.json, which keeps the scores of all data sets, checkpoints and
    probes: a new score replaces only an old score of the same images, checkpoint, feature set, probe and protocol.
    `Run.evaluations` reads them.

    Args:
        model: a MODEL (see `load`), a `Run`, or a loaded model.
        data: source of the labelled images; by default the source of the run.
        labelled: labelled images from another place than the images of pretraining. This is `data` with two additions:
            the test images that are also images of pretraining are counted, by their pixels, and few-shot probes have
            1, 2, 5 and 10 labels per class.
        against: other models, which are scored on the same images and compared with the model.
        supervised: also train the network of the model from scratch with the labels alone, and compare.
        supervised_epochs: epochs of this training.
        train: split that the probes are trained on; by default that of the run, or 'train'.
        test: split that the probes are scored on; by default that of the run, or 'test' or 'validation'. Without a test
            split, a fifth of the images is held out. A run with `data.validation` is scored on its validation images,
            unless `data` or `test` is given.
        train_subset: train the probes on the images of the run's `data.subset`, instead of all training images.
        probes: names in `fullrank.evaluation.PROBES`: 'linear', 'linear-sgd', 'linear-imagenet', 'knn', 'svm',
            'few-shot', 'fractions'.
        protocols: probe → its protocol, or some of its numbers: `{"knn": {"k": 200}}` (see
            `fullrank.config.PROTOCOLS`).
        resize: shorter side of the images before the central square is cropped, such as 256 for a network of 224 px; by
            default that of the model.
        baselines: also score raw pixels and the untrained network.
        dimensions: dimensions of the features to score: `slice(360)` or ':360'. Such scores are not stored.
        seed: seed of all random draws. The seed of the run, if there is one, chooses the held-out images.
        store: add the scores to the evaluation.json of a run; other models and `RUN@STEP` have no such file.
        batch_size: images per forward pass.
        device: 'auto', 'cpu', 'cuda' or 'mps'.
        workers: number of processes that decode images; 0 decodes in this process.
        decode_errors: records images that cannot be read; the default stops the evaluation if more than 10 % are
            unreadable.
        notify: receives a line on an unfinished run, one on the images, and one on replaced scores.
        progress: receives a short description of each step when the step begins.

    Returns:
        The new scores, with the majority rate and what was left out.

    Raises:
        UserError: the model or the images do not exist, the images have no labels, or an argument is wrong. Nothing is
            written.

    >>> class Circles(torch.utils.data.Dataset):
    ...     targets = [0, 1] * 20
    ...     __len__ = lambda self: 40
    ...     __getitem__ = lambda self, i: (torch.full((3, 8, 8), 200 * self.targets[i], dtype=torch.uint8), self.targets[i])
    >>> result = evaluate("timm-untrained:test_resnet", Circles(), probes=["knn"], baselines=False)
    >>> result.test_images, [(score.features, score.probe) for score in result.scores]
    (8, [('backbone', 'kNN')])
    """
    if isinstance(probes, str):
        raise UserError(f"probes is '{probes}', expected a list of names: probes=['{probes}']")
    selected = parse_slice(dimensions) if isinstance(dimensions, str) else dimensions
    if not isinstance(selected, slice):
        raise UserError(f"dimensions is {dimensions!r}, expected a slice or a range such as ':360'")
    if labelled is not None:
        if data is not None:
            raise UserError("data and labelled both name the labelled images; give one of them")
        data, protocols = labelled, with_curve(protocols)
    device, loaded = resolve_device(device), load(model)
    supervised_epochs = check_integer("supervised_epochs", supervised_epochs, 1)
    baseline = Supervised(loaded.untrained(), supervised_epochs, flip=flip_probability(loaded)) if supervised else None
    split_seed = loaded.recipe.split_seed if loaded.recipe else check_integer("seed", seed, 0)
    splits = choose_splits(loaded, data, train=train, test=test, seed=split_seed, train_subset=train_subset)
    preprocess = _resized(with_depth(loaded, splits.train).preprocess, resize)
    references = _references(loaded, against, resize, splits.train, baselines=baselines)
    path = loaded.path / "evaluation.json" if store and loaded.path and selected == slice(None) else None
    if path:
        read_evaluations(path)  # before the work, because a damaged file is an error
    if line := unfinished(loaded):
        notify(line)
    if labelled is not None:
        splits = replace(
            splits, statement="; ".join(filter(None, (splits.statement, overlap_statement(loaded, splits.test))))
        )
    notify(splits.statement)
    with atomic_write(path, overwrite=True) if path else nullcontext() as draft:
        evaluation = evaluate_backbone(
            loaded.backbone.to(device),
            loaded.untrained() if baselines else None,
            preprocess,
            splits.train,
            splits.test,
            device=device,
            seed=check_integer("seed", seed, 0),
            probes=probes,
            protocols=protocols,
            baselines=baselines,
            references=references,
            supervised=baseline,
            training=_accuracy_during_training(loaded),
            dimensions=selected,
            model=loaded.name,
            data=splits.data,
            step=loaded.step,
            statement=splits.statement,
            batch_size=check_integer("batch_size", batch_size, 1),
            workers=check_integer("workers", workers, 0),
            decode_errors=decode_errors,
            progress=progress,
        )
        if resize is not None:
            evaluation = replace(evaluation, scores=tuple(_with_resize(score, resize) for score in evaluation.scores))
        if path and draft:
            merged = add_evaluation(loaded, evaluation, path, draft, notify)
            evaluation = replace(evaluation, finetuned=merged.finetuned)
    return evaluation


def add_evaluation(
    model: Model, evaluation: Evaluation, path: Path, draft: Path, notify: Callable[[str], Any]
) -> Evaluation:
    """Write the evaluations of a run with a new one to the draft of its evaluation.json, and return the entry that has
    the new scores.
    """
    _check_same_run(model)
    stored = read_evaluations(path)  # again, because another process may have added scores
    evaluations, replaced = merge_evaluation(stored, evaluation)
    draft.write_text(json.dumps(to_json(evaluations), indent=2) + "\n")
    if replaced:
        notify(f"{len(replaced)} earlier scores of the same images, checkpoint and probes were replaced")
    return evaluations[-1]


def with_curve(protocols: Mapping[str, Any] | Protocols | None) -> Mapping[str, Any] | Protocols:
    """Return the protocols with 1, 2, 5 and 10 labels per class for the few-shot probe, unless its labels are given.

    >>> with_curve({"knn": {"k": 5}})["few-shot"]
    {'labels': (1, 2, 5, 10)}
    """
    if isinstance(protocols, Protocols):
        if protocols.few_shot.labels != FewShotProtocol.labels:
            return protocols
        return replace(protocols, few_shot=replace(protocols.few_shot, labels=CURVE))
    given = dict(protocols or {})
    few_shot = given.get("few-shot", {})
    if isinstance(few_shot, FewShotProtocol):
        return (
            given
            if few_shot.labels != FewShotProtocol.labels
            else given | {"few-shot": replace(few_shot, labels=CURVE)}
        )
    return given | {"few-shot": {"labels": CURVE, **few_shot}} if isinstance(few_shot, Mapping) else given


def _references(
    model: Model, against: Sequence[ModelLike], resize: int | None, images: Images | MemoryImages, *, baselines: bool
) -> dict[str, tuple[Any, Preprocess]]:
    """Return the networks that the backbone is compared with: the weights that the run began with, and the other
    models.
    """
    if isinstance(against, str | Path | Run | Model):
        raise UserError("against is one model, expected a list of models: against=[model]")
    references = {}
    if baselines and model.initial is not None:
        references["initial weights"] = (model.initial(), _resized(model.preprocess, resize))
    for other in map(load, against):
        if other.name == model.name or other.name in references:
            raise UserError(f"model '{other.name}' is given twice; give each model once")
        references[other.name] = (other.backbone, _resized(with_depth(other, images).preprocess, resize))
    return references


def flip_probability(model: Model) -> float:
    """Return the probability of a flip for a training with labels: none if the run has views without flips."""
    return 0.5 if model.recipe is None or all(view.flip for view in model.recipe.views) else 0.0


def overlap_statement(model: Model, test: Images | MemoryImages) -> str:
    """Return how many test images are images of pretraining; empty for a model without images of its own."""
    if model.recipe is None:
        return ""
    try:
        own = choose_splits(
            model,
            None,
            train=None,
            test=None,
            seed=model.recipe.split_seed,
            train_subset=bool(model.recipe.data.subset),
        ).train
    except UserError as error:
        return f"the overlap with the images of pretraining was not counted ({error})"
    channels = model.preprocess.channels
    if all(content_hash(test, row, channels) is None for row in range(len(test))):  # one readable image ends this
        return ""  # nothing can be read, which is an error as soon as the images are decoded
    count = count_overlap(test, own, channels=channels)
    return f"{count:,} of {len(test):,} test images are also among the {len(own):,} images of pretraining"


def check_scorable(
    model: Model,
    data: Data | None,
    *,
    train: str | None = None,
    test: str | None = None,
    train_subset: bool = False,
    seed: int = 0,
) -> None:
    """Check that a data set has the labels for scores; the arguments are those of `evaluate`.

    Raises:
        UserError: the images do not exist, or lack labels.
    """
    split_seed = model.recipe.split_seed if model.recipe else seed
    splits = choose_splits(model, data, train=train, test=test, seed=split_seed, train_subset=train_subset)
    if reason := why_not_scorable(splits.train, splits.test, several=True):
        raise UserError(f"nothing can be scored: {reason}")


def unfinished(model: Model) -> str:
    """Return a line that says how far a run is if its newest checkpoint is not its last; empty for other models."""
    if model.path is None or model.recipe is None or model.step is None:
        return ""
    images = Run(model.path).checkpoint(model.step).meta().get("images")
    if not isinstance(images, int) or model.step >= (steps := images // model.recipe.batch_size * model.recipe.epochs):
        return ""
    return f"{model.path} is not finished: the scores are of step {model.step:,} of {steps:,}"


def _accuracy_during_training(model: Model) -> dict[float, float]:
    """Return epoch → accuracy of the last probe of a run during its training, up to its checkpoint; empty for other
    models.
    """
    if model.path is None or model.step is None:
        return {}
    rows = [row for row in Run(model.path).metrics.online if row.step <= model.step]
    same = [
        row for row in rows if (row.probe, row.images) == (rows[-1].probe, rows[-1].images)
    ]  # a run may continue with other labels
    return {row.epoch: row.accuracy for row in same}


def _resized(preprocess: Preprocess, resize: int | None) -> Preprocess:
    if resize is None:
        return preprocess
    if check_integer("resize", resize, 1) < preprocess.size:
        raise UserError(f"resize is {resize}, expected at least {preprocess.size}, the side of the network's images")
    return replace(preprocess, resize=resize)


def _with_resize(score: ProbeScore, resize: int) -> ProbeScore:
    """Return a score whose name and protocol have the side of the resized images."""
    name, top, five = score.probe.partition(TOP5)
    return replace(score, probe=f"{name}, resize {resize}{top}{five}", protocol={**score.protocol, "resize": resize})


def _check_same_run(model: Model) -> None:
    """Check that a run was not replaced by another one while it was evaluated.

    Raises:
        UserError: it was.
    """
    if (
        model.path
        and model.recipe
        and replace(read_recipe(model.path / "recipe.json"), epochs=model.recipe.epochs).fingerprint
        != model.recipe.fingerprint
    ):
        raise UserError(
            f"{model.path} was replaced by another run during the evaluation, so its scores are not stored; evaluate again"
        )


def measure_spectrum(
    model: ModelLike | EncoderModel,
    data: Data | None = None,
    *,
    split: str | None = None,
    batch_size: int = 512,
    device: str | torch.device = "auto",
    workers: int = 0,
    decode_errors: DecodeErrors | None = None,
) -> dict[str, Spectrum]:
    """Return the spectra of backbone and projector on a set of images, batch by batch: memory does not limit the number
    of images.

    Args:
        model: a MODEL (see `load`), a `Run`, a loaded model, or another object with `backbone`, `projector` and
            `preprocess`.
        data: source of the images, or opened images; by default the held-out images of the run.
        split: name of the split; by default the held-out images of the source.
        batch_size: images per forward pass.
        device: 'auto', 'cpu', 'cuda' or 'mps'.
        workers: number of processes that decode images; 0 decodes in this process.
        decode_errors: records images that cannot be read; the default stops the function if more than 10 % are
            unreadable.

    Returns:
        A `Spectrum` by location: "backbone", and "projector" if the model has a projector with layers.

    Raises:
        AssertionError: the backbone changed during the evaluation.
        UserError: the model or the images do not exist, too many images are unreadable, or an embedding is not finite.

    >>> measure_spectrum("timm-untrained:test_resnet", torch.zeros(8, 3, 16, 16, dtype=torch.uint8))["backbone"].D
    96
    """
    device = resolve_device(device)
    loaded = model if isinstance(model, EncoderModel) else load(model)
    images = held_out_images(loaded, data, split)
    loaded = with_depth(loaded, images) if isinstance(loaded, Model) else loaded
    return encoder_spectrum(
        loaded,
        images,
        batch_size=check_integer("batch_size", batch_size, 1),
        device=device,
        workers=check_integer("workers", workers, 0),
        decode_errors=decode_errors,
    )


def check_integer(name: str, value: Any, least: int) -> int:
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < least:
        raise UserError(f"{name} is {value!r:.60}, expected an integer of at least {least}")
    return int(value)
