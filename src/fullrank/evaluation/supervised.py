"""Training of a whole network with labels: the supervised baseline, from random weights, and fine-tuning, from any
weights.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from fullrank.evaluation.augmented import Augmentation
from fullrank.evaluation.features import Features, extract_features, multi_labels_of, preprocessed_batches
from fullrank.evaluation.multi_label import MultiLabelResult
from fullrank.evaluation.result import ProbeResult, count_classes, topk_accuracy
from fullrank.images import DecodeErrors, Images, MemoryImages, Preprocess
from fullrank.images.pixel_values import same_form

SUPERVISED = "labels alone"
"""The feature set of the baseline in a score."""
FROM_SCRATCH = "network from scratch"
"""Its probe in a score."""
FINE_TUNING = "fine-tuning"
"""The probe of a score whose network was trained from given weights."""


@dataclass(frozen=True)
class Supervised:
    """How the network is trained: AdamW with warm-up and cosine decay, random crops and flips; the last epoch is
    scored.

    No number is chosen on the labelled images. Learning rate 1e-3 and weight decay 0.05 are those of DeiT for a batch
    of 1024 images (Touvron et al. 2021, Table 9); 5 % of the steps are warm-up. A recipe that is tuned to the data can
    be better.
    """

    network: nn.Module
    """The network, which is trained in place."""
    epochs: int = 100
    lr: float = 1e-3
    weight_decay: float = 0.05
    batch_size: int = 64
    crop: tuple[float, float] = (0.35, 1.0)
    """Smallest and largest area of the random crop, as a share of the image's area."""
    flip: float = 0.5
    """Probability of a flip left to right; 0 for a run whose views have no flips."""
    smoothing: float = 0.0
    """Label smoothing of the cross-entropy."""

    def numbers(self) -> dict[str, Any]:
        """Return the settings as JSON values."""
        names = ("epochs", "lr", "weight_decay", "batch_size", "flip", "smoothing")
        return {name: getattr(self, name) for name in names} | {"crop": list(self.crop)}


def train_supervised(
    config: Supervised,
    preprocess: Preprocess,
    train: Images | MemoryImages,
    test: Images | MemoryImages,
    *,
    seed: int = 0,
    device: torch.device | str = "cpu",
    batch_size: int = 512,
    workers: int = 0,
    decode_errors: DecodeErrors | None = None,
) -> ProbeResult | MultiLabelResult:
    """Train the network with a linear classifier on the labelled training images, and score the test images.

    The loss is the cross-entropy; for several labels an image, the mean binary cross-entropy of the classes, without
    label smoothing.

    All training images are in memory, at the size of the network.

    Args:
        config: the network and how it is trained.
        preprocess: the preprocessing of the backbone.
        train: training images; those without a label are left out.
        test: test images.
        seed: seed of the classifier, the order of the images, the crops and dropout.
        device: device of the network.
        batch_size: images per forward pass on the test images.
        workers: number of processes that decode images; 0 decodes in this process.
        decode_errors: records images that cannot be read.
    """
    options: dict[str, Any] = {"batch_size": batch_size, "workers": workers, "decode_errors": decode_errors}
    labelled = decode_labelled(train, preprocess, **options)
    if labelled.labels.ndim == 2:
        head = train_classifier(config, preprocess, labelled, labelled.labels.shape[1], seed=seed, device=device)
        features = extract_features(config.network, test, preprocess, device=device, **options)
        with torch.inference_mode():
            return MultiLabelResult(head(features.X.to(device)).sigmoid().cpu())
    classes = count_classes(labelled.labels, torch.as_tensor(test.labels).cpu())
    head = train_classifier(config, preprocess, labelled, classes, seed=seed, device=device)
    return score_classifier(config.network, head, test, preprocess, device=device, **options)[0]


class LabelledPixels(NamedTuple):
    """Images with labels, in memory on the CPU, at the size of the network."""

    pixels: Tensor
    """(n, C, S, S), uint8, or float32 in [0, 1] for images of more than 8 bits."""
    labels: Tensor
    """int64: class numbers (n,), or 1 for each class that an image has (n, K)."""
    read: int
    """Number of images that were read, with those without a label."""


def decode_labelled(train: Images | MemoryImages, preprocess: Preprocess, **options: Any) -> LabelledPixels:
    """Decode the training images that have a label; the options are those of `preprocessed_batches`."""
    parts = []
    for part in preprocessed_batches(train, preprocess, **options):
        several = multi_labels_of(train, part)
        parts.append((part.pixels.cpu(), part.labels.cpu() if several is None else several.long()))
    pixels, labels = torch.cat(same_form([part for part, _ in parts])), torch.cat([part for _, part in parts])
    labelled = labels.reshape(len(labels), -1)[:, 0] >= 0
    return LabelledPixels(pixels[labelled], labels[labelled], len(labels))


def train_classifier(
    config: Supervised,
    preprocess: Preprocess,
    train: LabelledPixels,
    classes: int,
    *,
    seed: int,
    device: torch.device | str = "cpu",
    on_epoch: Callable[[int], Any] = lambda epoch: None,
) -> nn.Linear:
    """Train the network of the configuration, in place, with a new linear classifier on top, and return the classifier.

    Each epoch has every image once, in batches of nearly equal size: none above `config.batch_size`, except 3 for 2.
    The network ends in eval mode.

    Args:
        config: the network and how it is trained.
        preprocess: the preprocessing of the network.
        train: the training images.
        classes: number of classes.
        seed: seed of the classifier, the order of the images, the crops and dropout.
        device: device of the network.
        on_epoch: receives the number of each epoch, from 1, when it begins.
    """
    pixels, labels, _ = train
    transform = Augmentation(config.crop, config.flip).transform(preprocess)
    loss = partial(cross_entropy, label_smoothing=config.smoothing) if labels.ndim == 1 else _binary_cross_entropy
    network = config.network.to(device).requires_grad_(True)
    steps = min(
        math.ceil(len(labels) / config.batch_size), max(len(labels) // 2, 1)
    )  # no batch of one image, for BatchNorm
    devices = [torch.device(device)] if torch.device(device).type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        with torch.no_grad():
            D = network.eval()(preprocess.normalize(pixels[:1].to(device))).shape[1]
        head = nn.Linear(D, classes).to(device)
        parameters = [*network.parameters(), *head.parameters()]
        optimizer = torch.optim.AdamW(parameters, lr=config.lr, weight_decay=config.weight_decay)
        total = config.epochs * steps
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: learning_rate_factor(step, total))
        network.train()
        for epoch in range(config.epochs):
            on_epoch(epoch + 1)
            for step, rows in enumerate(torch.randperm(len(labels)).tensor_split(steps), start=epoch * steps):
                views = transform(pixels[rows].to(device), transform.make_params(seed, step, len(rows)))[0][0]
                optimizer.zero_grad()
                loss(head(network(views)), labels[rows].to(device)).backward()
                optimizer.step()
                schedule.step()
        network.eval()
    return head


def _binary_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return binary_cross_entropy_with_logits(logits, labels.to(logits))


def score_classifier(
    network: nn.Module,
    head: nn.Linear,
    test: Images | MemoryImages,
    preprocess: Preprocess,
    *,
    device: torch.device | str,
    **options: Any,
) -> tuple[ProbeResult, Features]:
    """Return the result of a network with a classifier on the test images, and their features; `options` go to
    `extract_features`.
    """
    features = extract_features(network, test, preprocess, device=device, **options)
    with torch.inference_mode():
        logits = head(features.X.to(device)).cpu()
    return topk_accuracy(logits, features.labels), features


def learning_rate_factor(step: int, steps: int) -> float:
    """Return the factor of the learning rate: linear warm-up over 5 % of the steps, then a half cosine to zero.

    >>> [round(learning_rate_factor(step, 100), 2) for step in (0, 4, 5, 52, 99)]
    [0.2, 1.0, 1.0, 0.51, 0.0]
    """
    warmup = max(steps // 20, 1)
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(steps - warmup, 1)))
