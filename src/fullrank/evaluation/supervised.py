"""Training of a whole network with labels: the supervised baseline, from random weights, and fine-tuning, from any
weights.
"""

import math
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from fullrank.errors import UserError
from fullrank.evaluation.augmented import crop_and_flip
from fullrank.evaluation.outcomes import Prediction, Target
from fullrank.evaluation.protocol import SupervisedProtocol
from fullrank.images import Images, MemoryImages, Preprocess
from fullrank.images.pixel_values import same_form
from fullrank.models.features import multi_labels_of, preprocessed_batches
from fullrank.recipes import Recipe


def decode_labelled(images: Images | MemoryImages, preprocess: Preprocess, **options: Any) -> tuple[MemoryImages, int]:
    """Decode the labelled images at the size of the network, and return them with the number of all that were read.

    Args:
        images: the images; in memory afterwards.
        preprocess: the preprocessing of the network.
        **options: of `preprocessed_batches`.
    """
    batches = list(preprocessed_batches(images, preprocess, **options))
    if not batches:
        raise UserError(f"none of the {len(images)} images can be read; see the reasons in the list of skipped files")
    labels, rows = (torch.cat([getattr(batch, name).cpu() for batch in batches]) for name in ("labels", "indices"))
    several = [multi for batch in batches if (multi := multi_labels_of(images, batch)) is not None]
    multi = torch.cat(several) if several else None
    known = labels >= 0 if multi is None else multi[:, 0] >= 0
    names = [name for batch in batches for name in batch.names]
    decoded = MemoryImages(
        torch.cat(same_form([batch.pixels.cpu() for batch in batches]))[known],
        labels[known],
        tuple(name for name, keep in zip(names, known.tolist(), strict=True) if keep),
        tuple(images.classes),
        torch.as_tensor(images.groups).cpu()[rows][known],
    )
    return (decoded if multi is None else replace(decoded, multi_labels=multi[known])), len(labels)


def target_of(images: MemoryImages) -> Target:
    """Return the labels of labelled images."""
    labels = images.labels.numpy() if images.multi_labels is None else images.multi_labels.numpy() == 1
    return Target(labels, np.asarray(images.groups), tuple(images.classes))


def flipped_like(protocol: Any, recipe: Recipe | None) -> Any:
    """Return the protocol of a training with labels without flips if the views of the run have none."""
    return protocol if recipe is None or all(view.flip for view in recipe.views) else replace(protocol, flip=0.0)


def train_classifier(
    network: nn.Module,
    preprocess: Preprocess,
    train: MemoryImages,
    protocol: SupervisedProtocol,
    *,
    seed: int,
    device: torch.device | str = "cpu",
) -> nn.Linear:
    """Train a network, in place, with a new linear classifier on top, and return the classifier.

    The loss is the cross-entropy; for several labels an image, the mean binary cross-entropy of the classes, without
    label smoothing. Each epoch has every image once, in batches of nearly equal size: none above the batch size, except
    3 for 2. The network ends in eval mode.

    Args:
        network: the network.
        preprocess: its preprocessing.
        train: the labelled images.
        protocol: the numbers of the training.
        seed: seed of the classifier, the order of the images, the crops and dropout.
        device: device of the network.
    """
    pixels, labels, matrix = train.pixels, train.labels, train.multi_labels
    loss: Any = partial(cross_entropy, label_smoothing=protocol.smoothing)
    if matrix is not None:
        labels, loss = matrix.float(), binary_cross_entropy_with_logits
    classes = int(labels.max()) + 1 if matrix is None else matrix.shape[1]
    transform = crop_and_flip(preprocess, crop=protocol.crop, flip=protocol.flip)
    network = network.to(device).requires_grad_(True)
    # no batch of one image, for BatchNorm
    steps = min(math.ceil(len(labels) / protocol.batch_size), max(len(labels) // 2, 1))
    with torch.random.fork_rng(devices=[torch.device(device)] if torch.device(device).type == "cuda" else []):
        torch.manual_seed(seed)
        with torch.no_grad():
            D = network.eval()(preprocess.normalize(pixels[:1].to(device))).shape[1]
        head = nn.Linear(D, classes).to(device)
        parameters = [*network.parameters(), *head.parameters()]
        optimizer = torch.optim.AdamW(parameters, lr=protocol.lr, weight_decay=protocol.weight_decay)
        total = protocol.epochs * steps
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: learning_rate_factor(step, total))
        network.train()
        for epoch in range(protocol.epochs):
            for step, rows in enumerate(torch.randperm(len(labels)).tensor_split(steps), start=epoch * steps):
                views = transform(pixels[rows].to(device), transform.make_params(seed, step, len(rows)))[0][0]
                optimizer.zero_grad()
                loss(head(network(views)), labels[rows].to(device)).backward()
                optimizer.step()
                schedule.step()
        network.eval()
    return head


@torch.inference_mode()
def predict(
    network: nn.Module, head: nn.Linear, preprocess: Preprocess, pixels: Tensor, *, device: Any = "cpu"
) -> Prediction:
    """Return the logits of a network with its classifier."""
    parts: Iterable[Tensor] = pixels.split(256)
    return Prediction(torch.cat([head(network(preprocess.normalize(part.to(device)))).cpu() for part in parts]))


def learning_rate_factor(step: int, steps: int) -> float:
    """Return the factor of the learning rate: linear warm-up over 5 % of the steps, then a half cosine to zero.

    >>> [round(learning_rate_factor(step, 100), 2) for step in (0, 4, 5, 52, 99)]
    [0.2, 1.0, 1.0, 0.51, 0.0]
    """
    warmup = max(steps // 20, 1)
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(steps - warmup, 1)))
