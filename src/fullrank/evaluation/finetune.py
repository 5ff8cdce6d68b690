"""Fine-tune a MODEL on labelled images, beside the same network from random weights: same recipe, same images, several
seeds.
"""

import json
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import nn

from fullrank.errors import UserError
from fullrank.evaluation.evaluate import Scoring, overlap, scorable_splits, unfinished
from fullrank.evaluation.outcomes import Outcome, Prediction, judge, score_predictions
from fullrank.evaluation.protocol import FinetuneProtocol, settings_of
from fullrank.evaluation.scorable import report_unlabelled
from fullrank.evaluation.score import Evaluation
from fullrank.evaluation.stored import FILE, add_evaluation, read_evaluations
from fullrank.evaluation.supervised import decode_labelled, flipped_like, predict, target_of, train_classifier
from fullrank.evaluation.verdict import verdict
from fullrank.files import atomic_write
from fullrank.images import DecodeErrors
from fullrank.images.reading import Device, Reading
from fullrank.methods import build_backbone
from fullrank.models import Model, load, resolve_device
from fullrank.models.export import CARD, CONFIG, WEIGHTS, write_hub_folder
from fullrank.models.model import ModelLike, with_depth
from fullrank.models.model_images import Data

RANDOM = "random weights"
"""The feature set of the network that starts from random weights."""
CLASSIFIER = "classifier.safetensors"
"""The file of the classifier: weight (K, D) and bias (K,), with the names of the classes as metadata."""


def finetune(
    model: ModelLike,
    labelled: Data | None = None,
    *,
    out: Path | str | None = None,
    seeds: int = 3,
    seed: int = 0,
    reading: Reading | None = None,
    device: Device | None = None,
    store: bool = True,
    overwrite: bool = False,
    notify: Callable[[str], Any] = lambda line: None,
    **protocol: Any,
) -> Evaluation:
    """Train all weights of a model with labels, beside the same network from random weights, and say which is better.

    Each seed trains the network from the weights of the model, from new random weights, and, for a run that began with
    given weights, from these. All have the same recipe, which `FinetuneProtocol` describes. No number is chosen on the
    labelled images, and the last epoch is scored. The result of a run is added to its evaluation.json, and `evaluate`
    repeats it beside its own verdict.

    Args:
        model: a MODEL (see `load`), a `Run`, or a loaded model.
        labelled: source of the labelled images; by default the source of the run. All of them are in memory, at the
            size of the network.
        out: folder for the fine-tuned network of the first seed: model.safetensors, config.json and README.md as
            `export` writes them, and classifier.safetensors, the linear classifier on its features.
        seeds: number of trainings from each start.
        seed: the first seed.
        reading: how the images are read; by default as the run read them.
        device: where the network runs.
        store: add the scores to the evaluation.json of a run; other models and `RUN@STEP` have no such file.
        overwrite: replace existing files of `out`.
        notify: receives a line on the images, one for each training, and one on what was written.
        **protocol: the fields of `FinetuneProtocol`: `epochs=50`, `lr=1e-3`, `weight_decay=0.05`, `batch_size=64` …

    Returns:
        The scores of each start, the mean over the seeds, the paired comparisons, and the sentence `finetuned`. The
        interval of a difference joins the chance of the test images (bootstrap by group) and that of the seeds
        (Student's t), as independent errors.

    Raises:
        UserError: the model or the images do not exist, the images have no labels, an argument is wrong, or a file of
            `out` exists.

    >>> images = torch.arange(40)[:, None, None, None] % 2 * 200 + torch.zeros(40, 3, 32, 32)
    >>> data = (images.to(torch.uint8), [0, 1] * 20)
    >>> result = finetune("timm-untrained:test_resnet", data, seeds=1, epochs=1)
    >>> [(score.features, score.name) for score in result.scores if score.metric == "accuracy"]
    [('backbone', 'fine-tuning, epochs 1'), ('random weights', 'fine-tuning, epochs 1')]
    """
    if seeds < 1:
        raise UserError(f"seeds is {seeds}, expected at least 1")
    given, device = FinetuneProtocol(**protocol), device or Device()
    if out is not None:
        check_folder(Path(out), overwrite=overwrite)
    loaded, where = load(model), resolve_device(device.accelerator)
    splits = scorable_splits(loaded, labelled, reading, Scoring(seed=seed), several=False)
    loaded = with_depth(loaded, splits.train)
    path = loaded.path / FILE if store and loaded.path else None
    if path:
        read_evaluations(path)  # before the work, because a damaged file is an error
    shared = overlap(loaded, splits.test) if labelled is not None else ""
    statement = "; ".join(filter(None, (splits.statement, shared)))
    for line in filter(None, (unfinished(loaded), statement)):
        notify(line)

    errors = DecodeErrors(max_error_fraction=device.max_error_fraction)
    options = {"batch_size": device.batch_size, "workers": device.workers, "decode_errors": errors}
    (pixels, read), (known, read_test) = (
        decode_labelled(images, loaded.preprocess, **options) for images in (splits.train, splits.test)
    )
    numbers, target = flipped_like(given, loaded.recipe), target_of(known)
    starts: dict[str, Callable[[int], nn.Module]] = {"backbone": lambda _: deepcopy(loaded.backbone)}
    if (initial := loaded.initial) is not None:
        starts["initial weights"] = lambda _: initial()
    starts[RANDOM] = lambda number: random_network(loaded, number)
    final = replace(loaded.preprocess, resize=0)  # the pixels are resized already
    trained: dict[str, list[Prediction]] = {name: [] for name in starts}
    first: tuple[nn.Module, nn.Linear] | None = None
    for number in range(seed, seed + seeds):
        for name, build in starts.items():
            done = sum(map(len, trained.values()))
            notify(f"training {done + 1} of {seeds * len(starts)}: seed {number}, from {name}, {numbers.epochs} epochs")
            network = build(number)
            head = train_classifier(network, final, pixels, numbers, seed=number, device=where)
            trained[name].append(predict(network, head, final, known.pixels, device=where))
            first = first or (network, head)
    assert first is not None  # there is at least one seed

    outcomes: list[Outcome] = []
    for name, predictions in trained.items():
        outcomes += score_predictions(name, "finetune", settings_of(numbers), predictions, target)
    scores, comparisons = judge(outcomes, target, seed=seed, seeds=True)
    left_out = [*report_unlabelled(splits.train, "training"), *report_unlabelled(splits.test, "test")]
    left_out += [f"{len(errors.reasons)} images: unreadable"] if errors.reasons else []
    evaluation = Evaluation(
        model=loaded.name,
        data=splits.data,
        step=loaded.step,
        train_images=read,  # as `evaluate` counts, so that its entry of the same images is the same
        test_images=read_test,
        chance=target.chance,
        statement=statement,
        scores=scores,
        left_out=tuple(left_out),
        comparisons=comparisons,
        finetuned=verdict(comparisons),
    )
    if out is not None:
        write_network(loaded, *first, tuple(splits.train.classes), Path(out), overwrite=overwrite, notify=notify)
    if path:
        add_evaluation(path, evaluation)
    return evaluation


def random_network(model: Model, seed: int) -> nn.Module:
    """Build the network of a model with random weights, others for each seed; torch's global generator is unchanged."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return build_backbone(model.spec, channels=model.preprocess.channels)


def check_folder(folder: Path, *, overwrite: bool) -> None:
    """Check before the work that the folder can take the network.

    Raises:
        UserError: it is a file, or has one of the files already.
    """
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file, expected a folder; give another name")
    if taken := [name for name in (WEIGHTS, CONFIG, CARD, CLASSIFIER) if (folder / name).exists() and not overwrite]:
        remedy = "choose another folder, or replace this one with --overwrite (overwrite=True in Python)"
        raise UserError(f"{folder} has a {taken[0]} already; {remedy}")


def write_network(
    model: Model,
    network: nn.Module,
    head: nn.Linear,
    classes: tuple[str, ...],
    folder: Path,
    *,
    overwrite: bool,
    notify: Callable[[str], Any],
) -> None:
    """Write a fine-tuned network as a folder that timm and `load` understand, with its classifier in a file of its
    own.
    """
    name = f"{Path(model.name).name.partition('@')[0]}-finetuned"
    nothing = dict.fromkeys(("projector", "recipe", "path", "step", "initial"))
    tuned = replace(model, name=name, backbone=network.cpu().eval(), classes=classes, **nothing)
    write_hub_folder(tuned, folder, overwrite=overwrite, notify=notify, classes=len(head.bias))
    tensors = {"weight": head.weight.detach().cpu().contiguous(), "bias": head.bias.detach().cpu().contiguous()}
    with atomic_write(folder / CLASSIFIER, overwrite=overwrite) as file:
        file.write_bytes(save(tensors, {"classes": json.dumps(classes)}))
    notify(f"{folder / CLASSIFIER}: the classifier of {len(head.bias)} classes on features of file:{folder / WEIGHTS}")
