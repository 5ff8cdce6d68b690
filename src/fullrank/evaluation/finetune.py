"""Training of a whole network with labels: the supervised baseline, from random weights, and `finetune`, from the
weights of a MODEL and beside them from random weights: same recipe, same images, several seeds.
"""

import json
import math
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from fullrank.errors import UserError
from fullrank.evaluation.features import crop_and_flip
from fullrank.evaluation.outcomes import Prediction, Target, score_predictions
from fullrank.evaluation.protocol import FinetuneProtocol, Scoring, SupervisedProtocol, settings_of
from fullrank.evaluation.score import Evaluation, add_evaluation
from fullrank.evaluation.task import Notify, Task, file_of, labelled_rows, open_task, silent
from fullrank.evaluation.verdict import verdict
from fullrank.images import Device, MemoryImages, Preprocess, Reading, as_images
from fullrank.images.load import load_preprocessed
from fullrank.models import Model, load, resolve_device
from fullrank.models.export import CARD, CONFIG, WEIGHTS, check_folder, write_hub_folder
from fullrank.models.features import with_progress
from fullrank.models.model import ModelLike, with_depth
from fullrank.models.model_images import Data
from fullrank.training.config import ScheduleConfig
from fullrank.training.schedules import lr_factor

# The feature set of the network that starts from random weights.
RANDOM = "random weights"
# The file of the classifier: weight (K, D) and bias (K,), with the names of the classes as metadata.
CLASSIFIER = "classifier.safetensors"


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
    notify: Notify = silent,
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
    given = FinetuneProtocol(**protocol)
    if out is not None:
        check_folder(Path(out), (WEIGHTS, CONFIG, CARD, CLASSIFIER), overwrite=overwrite)
    loaded = load(model)
    path, options = file_of(loaded, store=store), dict[str, Any](multilabel=False, elsewhere=labelled is not None)
    task = open_task(loaded, labelled, Scoring(seed=seed), reading, device, notify, **options)
    loaded = with_depth(loaded, task.splits.train)
    training = SupervisedTraining.of(task, loaded, given)
    starts: dict[str, Callable[[int], nn.Module]] = {"backbone": lambda _: deepcopy(loaded.backbone)}
    if loaded.init is not None:
        starts["initial weights"] = lambda _: loaded.initial()
    starts[RANDOM] = loaded.untrained
    trained: dict[str, list[Prediction]] = {name: [] for name in starts}
    first: list[Any] = []
    for number in range(seed, seed + seeds):
        for name, build in starts.items():
            count = f"training {sum(map(len, trained.values())) + 1} of {seeds * len(starts)}"
            notify(f"{count}: seed {number}, from {name}, {training.protocol.epochs} epochs")
            network = build(number)
            head, prediction = training.run(network, seed=number, notify=notify)
            trained[name].append(prediction)
            first = first or [network, head]
    settings, target = settings_of(training.protocol), training.target
    outcomes = [
        outcome
        for name, predictions in trained.items()
        for outcome in score_predictions(name, "finetune", settings, predictions, target)
    ]
    read = len(training.train), len(training.test)
    evaluation = task.evaluation(loaded, outcomes, target, read, seed=seed, seeds=True)
    evaluation = replace(evaluation, finetuned=verdict(evaluation.comparisons) + task.caveat)
    if path:
        add_evaluation(path, evaluation)  # before OUT, which may turn out not to be writable
    if out is not None:
        network, head = first
        about: dict[str, Any] = dict.fromkeys(("projector", "recipe", "path", "step", "init"))
        about |= {"name": f"{Path(loaded.name).name.partition('@')[0]}-finetuned"}
        tuned = replace(loaded, backbone=network.cpu().eval(), classes=tuple(task.splits.train.classes), **about)
        tensors = {"weight": head.weight.detach().cpu(), "bias": head.bias.detach().cpu()}
        extra = {CLASSIFIER: save(tensors, {"classes": json.dumps(tuned.classes)})}
        write_hub_folder(tuned, out, overwrite=overwrite, notify=notify, classes=len(head.bias), extra=extra)
        what = f"the classifier of {len(head.bias)} classes on features of file:{Path(out) / WEIGHTS}"
        notify(f"{Path(out) / CLASSIFIER}: {what}")
    return evaluation


@dataclass(frozen=True)
class SupervisedTraining:
    """The readable images of a task in memory, at the size of a network, on which networks are trained and scored."""

    train: MemoryImages
    test: MemoryImages
    preprocess: Preprocess
    protocol: SupervisedProtocol
    device: torch.device

    @classmethod
    def of(cls, task: Task, model: Model, protocol: SupervisedProtocol) -> "SupervisedTraining":
        """Decode the images; the training has no flips if one of the views of the model's run has none."""
        decoding = model.preprocess.decoding(task.device, task.errors)
        splits = as_images(task.splits.train), as_images(task.splits.test)
        train, test = (load_preprocessed(part, model.preprocess, decoding) for part in splits)
        if model.recipe is not None and not all(view.flip for view in model.recipe.views):
            protocol = replace(protocol, flip=0.0)
        preprocess = replace(model.preprocess, resize=0)  # the pixels are resized already
        return cls(train, test, preprocess, protocol, resolve_device(task.device.accelerator))

    @property
    def target(self) -> Target:
        """The labels of the labelled test images."""
        return Target.of(self.test, labelled_rows(self.test))

    def run(self, network: nn.Module, *, seed: int, notify: Notify = silent) -> tuple[nn.Linear, Prediction]:
        """Train a network, in place, with a new linear classifier, and return the classifier and its predictions.

        The loss is the cross-entropy; for multi-label images, the mean binary cross-entropy of the classes,
        without label smoothing. Each epoch has every image once, in batches of nearly equal size: none above the batch
        size, except 3 for 2. The network ends in eval mode.

        Args:
            network: the network.
            seed: seed of the classifier, the order of the images, the crops and dropout.
            notify: receives the progress.
        """
        protocol, device, images, labelled = self.protocol, self.device, self.train, labelled_rows(self.train)
        labels, loss = images.labels, partial(cross_entropy, label_smoothing=protocol.smoothing)
        classes, transform = int(labels.max()) + 1, crop_and_flip(self.preprocess, protocol)
        if images.multi_labels is not None:
            labels, loss = images.multi_labels.float(), binary_cross_entropy_with_logits
            classes = labels.shape[1]
        network = network.to(device).requires_grad_(True)
        # no batch of one image, for BatchNorm
        steps = min(math.ceil(len(labelled) / protocol.batch_size), max(len(labelled) // 2, 1))
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(seed)
            with torch.no_grad():
                D = network.eval()(self.preprocess.normalize(images.pixels[:1].to(device))).shape[1]
            head = nn.Linear(D, classes).to(device)
            parameters = [*network.parameters(), *head.parameters()]
            optimizer = torch.optim.AdamW(parameters, lr=protocol.lr, weight_decay=protocol.weight_decay)
            total = protocol.epochs * steps  # warm-up over 5 % of them, then a half cosine
            factor = partial(lr_factor, ScheduleConfig(warmup=max(total // 20, 1)), steps_per_epoch=1, total=total)
            schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
            network.train()
            for epoch in with_progress(range(protocol.epochs), protocol.epochs, "epochs", notify):
                order = labelled[torch.randperm(len(labelled))]
                for step, rows in enumerate(order.tensor_split(steps), start=epoch * steps):
                    params = transform.make_params(seed, step, len(rows))
                    views = transform(images.pixels[rows].to(device), params)[0][0]
                    optimizer.zero_grad()
                    loss(head(network(views)), labels[rows].to(device)).backward()
                    optimizer.step()
                    schedule.step()
        network.eval()
        with torch.inference_mode():
            tests = (self.test.pixels[rows].to(device) for rows in labelled_rows(self.test).split(256))
            logits = torch.cat([head(network(self.preprocess.normalize(pixels))).cpu() for pixels in tests])
        return head, Prediction(logits)
