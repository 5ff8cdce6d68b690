"""Training of a whole network with labels: the supervised baseline, from random weights, and fine-tuning, from any
weights.
"""

import math
from dataclasses import dataclass, replace
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
from fullrank.evaluation.task import Task, one_label
from fullrank.images import Images, MemoryImages, Preprocess
from fullrank.images.pixel_values import same_form
from fullrank.models import Model
from fullrank.models.features import multi_labels_of, preprocessed_batches


@dataclass(frozen=True)
class Course:
    """The labelled images of a task in memory, at the size of a network, on which networks are trained and scored.

    Attributes:
        read: Number of training and of test images that could be read, labelled or not.
    """

    train: MemoryImages
    test: MemoryImages
    read: tuple[int, int]
    preprocess: Preprocess
    protocol: SupervisedProtocol
    device: torch.device | str = "cpu"

    @classmethod
    def of(cls, task: Task, model: Model, protocol: SupervisedProtocol) -> "Course":
        """Decode the images; the training has no flips if the views of the model's run have none."""
        options = task.options
        device = options.pop("device")
        (train, read), (test, read_test) = (
            decode_labelled(part, model.preprocess, **options) for part in (task.splits.train, task.splits.test)
        )
        if model.recipe is not None and not all(view.flip for view in model.recipe.views):
            protocol = replace(protocol, flip=0.0)
        preprocess = replace(model.preprocess, resize=0)  # the pixels are resized already
        return cls(train, test, (read, read_test), preprocess, protocol, device)

    @property
    def target(self) -> Target:
        """The labels of the test images."""
        images = self.test
        labels = images.labels.numpy() if images.multi_labels is None else images.multi_labels.numpy() == 1
        return Target(labels, np.asarray(images.groups), tuple(images.classes))

    def take(self, network: nn.Module, *, seed: int) -> tuple[nn.Linear, Prediction]:
        """Train a network, in place, with a new linear classifier, and return the classifier and its predictions."""
        head = train_classifier(network, self.preprocess, self.train, self.protocol, seed=seed, device=self.device)
        return head, predict(network, head, self.preprocess, self.test.pixels, device=self.device)


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
    rows = torch.cat([batch.indices for batch in batches])
    several = [multi for batch in batches if (multi := multi_labels_of(images, batch)) is not None]
    decoded = MemoryImages(
        torch.cat(same_form([batch.pixels.cpu() for batch in batches])),
        torch.cat([batch.labels.cpu() for batch in batches]),
        tuple(name for batch in batches for name in batch.names),
        tuple(images.classes),
        torch.as_tensor(images.groups).cpu()[rows],
        torch.cat(several) if several else None,
    )
    return decoded.subset((one_label(decoded) >= 0).nonzero().flatten().numpy()), len(rows)


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
    labels, loss = train.labels, partial(cross_entropy, label_smoothing=protocol.smoothing)
    classes, transform = int(labels.max()) + 1, crop_and_flip(preprocess, protocol)
    if train.multi_labels is not None:
        labels, loss, classes = train.multi_labels.float(), binary_cross_entropy_with_logits, len(train.multi_labels[0])
    network = network.to(device).requires_grad_(True)
    # no batch of one image, for BatchNorm
    steps = min(math.ceil(len(labels) / protocol.batch_size), max(len(labels) // 2, 1))
    with torch.random.fork_rng(devices=[torch.device(device)] if torch.device(device).type == "cuda" else []):
        torch.manual_seed(seed)
        with torch.no_grad():
            D = network.eval()(preprocess.normalize(train.pixels[:1].to(device))).shape[1]
        head = nn.Linear(D, classes).to(device)
        parameters = [*network.parameters(), *head.parameters()]
        optimizer = torch.optim.AdamW(parameters, lr=protocol.lr, weight_decay=protocol.weight_decay)
        factor = partial(learning_rate_factor, steps=protocol.epochs * steps)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
        network.train()
        for epoch in range(protocol.epochs):
            for step, rows in enumerate(torch.randperm(len(labels)).tensor_split(steps), start=epoch * steps):
                views = transform(train.pixels[rows].to(device), transform.make_params(seed, step, len(rows)))[0][0]
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
    parts = (head(network(preprocess.normalize(part.to(device)))).cpu() for part in pixels.split(256))
    return Prediction(torch.cat(list(parts)))


def learning_rate_factor(step: int, steps: int) -> float:
    """Return the factor of the learning rate: linear warm-up over 5 % of the steps, then a half cosine to zero.

    >>> [round(learning_rate_factor(step, 100), 2) for step in (0, 4, 5, 52, 99)]
    [0.2, 1.0, 1.0, 0.51, 0.0]
    """
    warmup = max(steps // 20, 1)
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(steps - warmup, 1)))
