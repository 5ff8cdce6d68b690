"""Fine-tune a MODEL on labelled images, beside the same network from random weights: same recipe, same images, several
seeds.
"""

import json
import math
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64
from safetensors.torch import save
from torch import nn

from fullrank.errors import UserError
from fullrank.evaluation.bootstrap import interval, resampled_means, units
from fullrank.evaluation.features import preprocessed_batches
from fullrank.evaluation.judging import (
    add_evaluation,
    check_integer,
    flip_probability,
    overlap_statement,
    unfinished,
)
from fullrank.evaluation.metrics import class_metrics
from fullrank.evaluation.result import Comparison, Evaluation, ProbeResult, ProbeScore, count_classes, majority_rate
from fullrank.evaluation.scorable import report_unlabelled, why_not_scorable
from fullrank.evaluation.supervised import FINE_TUNING, Supervised, decode_labelled, score_classifier, train_classifier
from fullrank.evaluation.verdict import verdict
from fullrank.files import atomic_write
from fullrank.images import DecodeErrors, Images, MemoryImages, Preprocess
from fullrank.images.pixel_values import same_form
from fullrank.methods import build_backbone
from fullrank.models import Model, load, resolve_device
from fullrank.models.export import CARD, CONFIG, WEIGHTS, write_hub_folder
from fullrank.models.model import ModelLike, with_depth
from fullrank.models.model_images import Data, choose_splits
from fullrank.run.evaluations import read_evaluations

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
    epochs: int = 50,
    lr: float = 1e-3,
    weight_decay: float = 0.05,
    batch_size: int = 64,
    train: str | None = None,
    test: str | None = None,
    seed: int = 0,
    store: bool = True,
    device: str | torch.device = "auto",
    workers: int = 0,
    decode_errors: DecodeErrors | None = None,
    overwrite: bool = False,
    notify: Callable[[str], Any] = lambda line: None,
    progress: Callable[[str], Any] = lambda line: None,
) -> Evaluation:
    """Train all weights of a model with labels, beside the same network from random weights, and say which is better.

    Each seed trains the network from the weights of the model, from new random weights, and, for a run that began with
    given weights, from
    these. All have the same recipe: random resized crops of 8 % to 100 % of the area, flips and label smoothing 0.1,
    which are the defaults of timm (`timm.data.create_transform`, `timm.loss.LabelSmoothingCrossEntropy`), and AdamW
    with warm-up and cosine decay as in DeiT (Touvron et al. 2021, Table 9: learning rate 1e-3, weight decay 0.05). No
    number is chosen on the labelled images, and the last epoch is scored. For a run whose views have no flips, there
    are none.

    The result of a run is added to its evaluation.json, and `evaluate` repeats it beside its own verdict.

    Args:
        model: a MODEL (see `load`), a `Run`, or a loaded model.
        labelled: source of the labelled images; by default the source of the run. All of them are in memory, at the
            size of the network.
        out: folder for the fine-tuned network of the first seed: model.safetensors, config.json and README.md as
            `export` writes them, and classifier.safetensors, the linear classifier on its features.
        seeds: number of trainings from each start.
        epochs: epochs of each training.
        lr: peak of the learning rate.
        weight_decay: weight decay.
        batch_size: largest number of images of a step; at least 2.
        train: split to train on; by default that of the run, or 'train'.
        test: split to score; by default that of the run, or 'test' or 'validation'. Without a test split, a fifth of
            the images is held out, whole groups if the images have groups.
        seed: the first seed.
        store: add the scores to the evaluation.json of a run; other models and `RUN@STEP` have no such file.
        device: 'auto', 'cpu', 'cuda' or 'mps'.
        workers: number of processes that decode images; 0 decodes in this process.
        decode_errors: records images that cannot be read.
        overwrite: replace existing files of `out`.
        notify: receives a line on the images, and one on what was written.
        progress: receives a short description of each epoch of each training when the epoch begins.

    Returns:
        One score for each start, the mean over the seeds, the paired comparisons, and the sentence `finetuned`. The
        interval of a difference joins the chance of the test images (bootstrap by group) and that of the seeds
        (Student's t), as independent errors.

    Raises:
        UserError: the model or the images do not exist, the images have no labels, an argument is wrong, or a file of
            `out` exists.

    >>> images = torch.arange(40)[:, None, None, None] % 2 * 200 + torch.zeros(40, 3, 32, 32)
    >>> data = (images.to(torch.uint8), [0, 1] * 20)
    >>> result = finetune("timm-untrained:test_resnet", data, seeds=1, epochs=1)
    >>> [(score.features, score.probe) for score in result.scores]
    [('backbone', 'fine-tuning'), ('random weights', 'fine-tuning')]
    """
    for name, value, least in (
        ("seeds", seeds, 1),
        ("epochs", epochs, 1),
        ("batch_size", batch_size, 2),
        ("seed", seed, 0),
    ):
        check_integer(name, value, least)
    for name, value in (("lr", lr), ("weight_decay", weight_decay)):
        if not isinstance(value, int | float) or not math.isfinite(value) or value < 0 or (name == "lr" and value == 0):
            raise UserError(
                f"{name} is {value!r:.60}, expected a {'positive' if name == 'lr' else 'non-negative'} number"
            )
    if out is not None:
        check_folder(Path(out), overwrite=overwrite)
    device, loaded = resolve_device(device), load(model)
    splits = choose_splits(
        loaded, labelled, train=train, test=test, seed=loaded.recipe.split_seed if loaded.recipe else seed
    )
    if reason := why_not_scorable(splits.train, splits.test):
        raise UserError(f"nothing can be fine-tuned: {reason}")
    loaded = with_depth(loaded, splits.train)
    path = loaded.path / "evaluation.json" if store and loaded.path else None
    if path:
        read_evaluations(path)  # before the work, because a damaged file is an error
    overlap = overlap_statement(loaded, splits.test) if labelled is not None else ""
    statement = "; ".join(filter(None, (splits.statement, overlap)))
    for line in filter(None, (unfinished(loaded), statement)):
        notify(line)

    progress("decoding the images")
    decode_errors = DecodeErrors() if decode_errors is None else decode_errors
    options: dict[str, Any] = {"batch_size": 256, "workers": workers, "decode_errors": decode_errors}
    pixels = decode_labelled(splits.train, loaded.preprocess, **options)
    known, read = decode_test(splits.test, loaded.preprocess, **options)
    classes = count_classes(pixels.labels, known.labels)
    numbers = {"epochs": epochs, "lr": lr, "weight_decay": weight_decay, "batch_size": batch_size}
    recipe: dict[str, Any] = {**numbers, "crop": (0.08, 1.0), "smoothing": 0.1, "flip": flip_probability(loaded)}
    starts: dict[str, Callable[[int], nn.Module]] = {"backbone": lambda _: deepcopy(loaded.backbone)}
    if (initial := loaded.initial) is not None:
        starts["initial weights"] = lambda _: initial()
    starts[RANDOM] = lambda number: random_network(loaded, number)
    trained: dict[str, list[ProbeResult]] = {name: [] for name in starts}
    first: tuple[nn.Module, nn.Linear] | None = None
    final = replace(loaded.preprocess, resize=0)  # the pixels are resized already
    for number in range(seed, seed + seeds):
        for name, build in starts.items():
            training = (
                f"training {sum(map(len, trained.values())) + 1} of {seeds * len(starts)} (seed {number}, from {name})"
            )
            show = Epochs(progress, training, epochs)
            config = Supervised(build(number), **recipe)
            head = train_classifier(config, final, pixels, classes, seed=number, device=device, on_epoch=show)
            trained[name].append(score_classifier(config.network, head, known, final, device=device, batch_size=256)[0])
            first = first or (config.network, head)
    assert first is not None  # there is at least one seed

    groups = known.groups.numpy()
    scores, comparisons = compare(
        trained,
        known.labels,
        None if (groups < 0).all() else groups,
        protocol=Supervised(first[0], **recipe).numbers(),
        classes=tuple(splits.test.classes),
        seed=seed,
    )
    left_out = [*report_unlabelled(splits.train, "training"), *report_unlabelled(splits.test, "test")]
    left_out += [f"{len(decode_errors.reasons)} images: unreadable"] if decode_errors.reasons else []
    evaluation = Evaluation(
        model=loaded.name,
        data=splits.data,
        step=loaded.step,
        train_images=pixels.read,  # as `evaluate` counts, so that its entry of the same images is the same
        test_images=read,
        majority=majority_rate(known.labels),
        statement=statement,
        scores=scores,
        left_out=tuple(left_out),
        comparisons=comparisons,
        finetuned=verdict(comparisons),
    )
    if out is not None:
        write_network(loaded, *first, tuple(splits.train.classes), Path(out), overwrite=overwrite, notify=notify)
    with atomic_write(path, overwrite=True) if path else nullcontext() as draft:
        if path and draft:
            add_evaluation(loaded, evaluation, path, draft, notify)
    return evaluation


class Epochs:
    """Describes the progress of a training: its epoch, and the time that is left, from the time of the epochs before.

    Args:
        progress: receives the description.
        training: which training it is.
        epochs: number of its epochs.
    """

    def __init__(self, progress: Callable[[str], Any], training: str, epochs: int) -> None:
        self._progress, self._training, self._epochs, self._begun = progress, training, epochs, time.perf_counter()

    def __call__(self, epoch: int) -> None:
        """Describe the beginning of an epoch."""
        line = f"{self._training}: epoch {epoch} of {self._epochs}"
        if done := epoch - 1:
            left = (time.perf_counter() - self._begun) / done * (self._epochs - done)
            line += f", about {left:,.0f} s left" if left < 120 else f", about {left / 60:,.0f} minutes left"
        self._progress(line)


def random_network(model: Model, seed: int) -> nn.Module:
    """Build the network of a model with random weights, others for each seed; torch's global generator is unchanged."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return build_backbone(model.spec, channels=model.preprocess.channels)


def decode_test(test: Images | MemoryImages, preprocess: Preprocess, **options: Any) -> tuple[MemoryImages, int]:
    """Decode the labelled test images once for all seeds, and return them with the number of all images that were read.

    The options are those of `preprocessed_batches`.
    """
    batches = list(preprocessed_batches(test, preprocess, **options))
    labels, rows = (torch.cat([getattr(batch, name) for batch in batches]).cpu() for name in ("labels", "indices"))
    kept = labels >= 0
    names = [name for batch in batches for name in batch.names]
    labelled = MemoryImages(
        torch.cat(same_form([batch.pixels.cpu() for batch in batches]))[kept],
        labels[kept],
        tuple(name for name, keep in zip(names, kept.tolist(), strict=True) if keep),
        tuple(test.classes),
        torch.as_tensor(test.groups).cpu()[rows][kept],
    )
    return labelled, len(labels)


def compare(
    trained: dict[str, list[ProbeResult]],
    labels: Int64[torch.Tensor, " n"],
    groups: Int64[np.ndarray, " n"] | None,
    *,
    protocol: dict[str, Any],
    classes: Sequence[str] = (),
    seed: int = 0,
) -> tuple[tuple[ProbeScore, ...], tuple[Comparison, ...]]:
    """Return the scores of each start, and the comparisons of the first start with the others.

    A difference d has two independent errors. The one of the test images is the bootstrap of the mean over the seeds;
    the one of the seeds is t(0.975, S − 1) · sd/√S of the S paired differences. The interval is d ± √(image² + seed²),
    for each end by itself.

    Args:
        trained: start → the result of each seed on the same test images.
        labels: the labels of the test images.
        groups: their groups, None without groups.
        protocol: the numbers of the training.
        classes: names of the classes.
        seed: seed of the resamples.
    """
    y = labels.numpy()
    hits = {
        name: np.stack([result.predictions.cpu().numpy() == y for result in results])
        for name, results in trained.items()
    }  # (S, n)
    values = np.stack([rows.mean(0) for rows in hits.values()], axis=1)  # (n, starts)
    means = resampled_means(values, groups, seed=seed)
    low, high = interval(means)
    scores = []
    for k, (name, results) in enumerate(trained.items()):
        metrics = [class_metrics(y, each.predictions.cpu().numpy(), probabilities_of(each)) for each in results]
        areas = [each.auroc for each in metrics if each.auroc is not None]
        recalls = {label: float(np.mean([each.per_class[label] for each in metrics])) for label in metrics[0].per_class}
        accuracies = hits[name].mean(1)
        score = ProbeScore(
            features=name,
            probe=FINE_TUNING,
            accuracy=float(accuracies.mean()),
            sd=float(accuracies.std(ddof=1)) if len(results) > 1 else None,
            n=len(results),
            protocol=protocol | {"seeds": len(results)},
            low=float(low[k]),
            high=float(high[k]),
            balanced_accuracy=float(np.mean([each.balanced_accuracy for each in metrics])),
            auroc=float(np.mean(areas)) if len(areas) == len(metrics) else None,
            per_class={
                classes[label] if label < len(classes) else str(label): recall for label, recall in recalls.items()
            },
        )
        scores.append(score)
    ours, *others = hits
    comparisons = []
    for k, name in enumerate(others, start=1):
        each = hits[ours].mean(1) - hits[name].mean(1)  # (S,) one difference for each seed
        difference, half = float(each.mean()), seed_half_width(each)
        ends = interval(means[:, :1] - means[:, [k]])
        bottom, top = (math.hypot(float(end[0]) - difference, half) for end in ends)
        comparison = Comparison(
            probe=FINE_TUNING,
            against=name,
            accuracy=scores[0].accuracy,
            reference=scores[k].accuracy,
            difference=difference,
            low=difference - bottom,
            high=difference + top,
            units=int(units(groups, len(y)).max()) + 1,
            grouped=groups is not None,
            seeds=len(each),
            seed_half_width=half,
        )
        comparisons.append(comparison)
    return tuple(scores), tuple(comparisons)


def probabilities_of(result: ProbeResult) -> Float[np.ndarray, "n K"] | None:
    """Return the probabilities of a result in float64."""
    return None if result.probabilities is None else result.probabilities.cpu().double().numpy()


def seed_half_width(differences: Float[np.ndarray, " S"]) -> float:
    """Return half the width of the 95 % interval of the mean of paired differences, t(0.975, S − 1) · sd/√S; 0 for one
    seed.

    >>> round(seed_half_width(np.array([0.01, 0.02, 0.03])), 4)
    0.0248
    """
    from scipy.stats import t

    S = len(differences)
    return 0.0 if S < 2 else float(t.ppf(0.975, S - 1) * differences.std(ddof=1) / math.sqrt(S))


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
    tuned = replace(
        model,
        name=name,
        backbone=network.cpu().eval(),
        classes=classes,
        projector=None,
        recipe=None,
        run=None,
        step=None,
        initial=None,
    )
    write_hub_folder(
        tuned, folder, overwrite=overwrite, notify=notify, classes=len(head.bias)
    )
    tensors = {"weight": head.weight.detach().cpu().contiguous(), "bias": head.bias.detach().cpu().contiguous()}
    with atomic_write(folder / CLASSIFIER, overwrite=overwrite) as file:
        file.write_bytes(save(tensors, {"classes": json.dumps(classes)}))
    notify(
        f"{folder / CLASSIFIER}: the classifier of {len(head.bias)} classes on the features of file:{folder / WEIGHTS}"
    )
