"""Fine-tune a MODEL on labelled images, beside the same network from random weights: `finetune`."""

import copy
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from rich.table import Column, Table
from torch import nn

from fullrank.atomic import atomic_write
from fullrank.errors import UserError
from fullrank.evaluation.bootstrap import interval, resampled_means, units
from fullrank.evaluation.evaluate import groups_of, why_not_scorable
from fullrank.evaluation.result import Comparison, majority_rate
from fullrank.evaluation.supervised import FINE_TUNING, Supervised, Trained, train_supervised
from fullrank.evaluation.verdict import verdict
from fullrank.exporting import export_weights
from fullrank.images import DecodeErrors
from fullrank.judging import Data, ModelLike, choose_splits, flip_of
from fullrank.loading import Model, export_metadata, load, resolve_device
from fullrank.methods import build_backbone
from fullrank.structure import Count, JsonObject
from fullrank.training.checkpoints import to_safetensors

RANDOM = "the same network from random weights"
"""The alternative in the sentence."""
RESULT, BACKBONE, CLASSIFIER = "finetuning.json", "backbone.safetensors", "classifier.safetensors"
"""The files of the folder."""


@dataclass(frozen=True, kw_only=True)
class FineTuning:
    """The accuracy of a fine-tuned network and of the same network from random weights, for each seed."""

    model: str
    data: str
    statement: str
    """One sentence that describes the training and the test images."""
    train_images: Count
    test_images: Count
    majority: float | None
    """The share of the most frequent class among the test images."""
    seeds: tuple[int, ...]
    """A seed decides the random weights, the classifier's weights, the order of the images, the crops and dropout."""
    fine_tuned: tuple[float, ...]
    """Accuracy on the test images after the last epoch, for each seed."""
    from_scratch: tuple[float, ...]
    comparison: Comparison
    """The mean accuracies over the seeds. The interval of their difference is that of a paired bootstrap over test images and seeds."""
    settings: JsonObject = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        """Return one sentence: better, worse or undecided, and in how many seeds the fine-tuned network is ahead."""
        ahead = sum(ours > theirs for ours, theirs in zip(self.fine_tuned, self.from_scratch, strict=True))
        seeds = f" It is ahead in {ahead} of {len(self.seeds)} seeds." if len(self.seeds) > 1 else ""
        return verdict([self.comparison], name="the model") + seeds

    def to_json(self) -> dict[str, Any]:
        """Return the content of finetuning.json."""
        return asdict(self) | {"verdict": self.verdict}


def finetune(
    model: ModelLike,
    labelled: Data,
    out: str | Path | None = None,
    *,
    seeds: int | Sequence[int] = 3,
    epochs: int = 50,
    lr: float = Supervised.lr,
    weight_decay: float = Supervised.weight_decay,
    batch_size: int = Supervised.batch_size,
    train: str | None = None,
    test: str | None = None,
    overwrite: bool = False,
    device: str | torch.device = "auto",
    workers: int = 0,
    decode_errors: DecodeErrors | None = None,
    notify: Callable[[str], Any] = lambda line: None,
    progress: Callable[[str], Any] = lambda line: None,
) -> FineTuning:
    """Train all weights of a model with a linear classifier on labelled images, and the same network from random weights in the same way.

    Both networks have the recipe of `Supervised`, and its last epoch is scored: no number is chosen on the test images.

    Args:
        model: a MODEL (see `load`), a `Run`, or a loaded model, which is not changed.
        labelled: source of the labelled images, or opened images. Without a test split, a fifth of each class is held out.
        out: folder for backbone.safetensors and classifier.safetensors, the fine-tuned weights of the first seed, and finetuning.json.
            `fullrank.load("file:FOLDER/backbone.safetensors")` loads the backbone.
        seeds: number of seeds, from 0 on, or the seeds.
        epochs: passes over the training images.
        lr: learning rate of AdamW.
        weight_decay: weight decay of AdamW, not of biases and norms.
        batch_size: images per step.
        train: training split; by default that of the run, or 'train'.
        test: test split; by default that of the run, or 'test' or 'validation'.
        overwrite: replace the files of an earlier call.
        device: 'auto', 'cpu', 'cuda' or 'mps'.
        workers: number of processes that decode images; 0 decodes in this process.
        decode_errors: records images that cannot be read; the default stops if more than 10 % are unreadable.
        notify: receives a line on the images.
        progress: receives a short description of each training when it begins.

    Raises:
        UserError: the model or the images do not exist, the images have no labels, an argument is wrong, or a file exists.

    >>> pixels = torch.arange(60).remainder(2).mul(200).byte()[:, None, None, None].expand(60, 3, 8, 8)
    >>> images = torch.utils.data.TensorDataset(pixels, torch.arange(60) % 2)
    >>> result = finetune("timm-untrained:test_resnet", images, seeds=1, epochs=1)
    >>> len(result.fine_tuned), result.test_images
    (1, 12)
    """
    numbers = tuple(range(seeds)) if isinstance(seeds, int) else tuple(seeds)
    if not numbers or not all(isinstance(seed, int) and seed >= 0 for seed in numbers) or len({*numbers}) < len(numbers):
        raise UserError(f"seeds is {seeds!r:.60}, expected a positive number of seeds, or different whole numbers from 0 on")
    for name, value, least in (("epochs", epochs, 1), ("batch_size", batch_size, 2)):
        if not isinstance(value, int) or value < least:
            raise UserError(f"{name} is {value!r:.60}, expected a whole number from {least} on")
    for name, value in (("lr", lr), ("weight_decay", weight_decay)):
        if not (isinstance(value, int | float) and 0 <= value < 1e6):
            raise UserError(f"{name} is {value!r:.60}, expected a number from 0 on")
    folder = None if out is None else check_folder(out, overwrite=overwrite)
    place, loaded = resolve_device(device), load(model)
    splits = choose_splits(loaded, labelled, train=train, test=test, seed=loaded.recipe.split_seed if loaded.recipe else 0)
    if reason := why_not_scorable(splits.train, splits.test):
        raise UserError(f"nothing can be trained: {reason}")
    notify(splits.statement)
    settings: dict[str, Any] = {"epochs": epochs, "lr": lr, "weight_decay": weight_decay, "batch_size": batch_size, "flip": flip_of(loaded)}
    options: dict[str, Any] = {"device": place, "workers": workers, "decode_errors": decode_errors}
    ours: list[Trained] = []
    theirs: list[Trained] = []
    kept: nn.Module | None = None
    for seed in numbers:
        for name, network, trained in (
            ("fine-tuned", copy.deepcopy(loaded.backbone), ours),
            ("from random weights", random_network(loaded, seed), theirs),
        ):
            progress(f"{name}, seed {seed}: {epochs} epochs")
            config = Supervised(network, **settings)
            trained.append(train_supervised(config, loaded.preprocess, splits.train, splits.test, seed=seed, **options))
            kept = kept or network
    labels = ours[0].test.labels
    result = FineTuning(
        model=loaded.name,
        data=splits.data,
        statement=splits.statement,
        train_images=int((torch.as_tensor(splits.train.labels) >= 0).sum()),
        test_images=int((labels >= 0).sum()),
        majority=majority_rate(labels),
        seeds=numbers,
        fine_tuned=tuple(each.result.accuracy for each in ours),
        from_scratch=tuple(each.result.accuracy for each in theirs),
        comparison=compare(hits(ours), hits(theirs), groups_of(splits.test, ours[0].test)),
        settings=Supervised(nn.Identity(), **settings).numbers(),
    )
    if folder is not None and kept is not None:
        write(folder, result, loaded, kept, ours[0].classifier, splits.train.classes, overwrite=overwrite)
    return result


def random_network(model: Model, seed: int) -> nn.Module:
    """Return the network of a model with random weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build_backbone(model.spec, channels=model.preprocess.channels)


def hits(trained: Sequence[Trained]) -> Float[np.ndarray, "n seeds"]:
    """Return 1 for each labelled test image that a network classifies correctly, else 0; one column for each seed."""
    columns = [(each.result.predictions.cpu() == each.test.labels)[each.test.labels >= 0] for each in trained]
    return torch.stack(columns, dim=1).double().numpy()


def compare(ours: Float[np.ndarray, "n seeds"], theirs: Float[np.ndarray, "n seeds"], groups: np.ndarray | None = None) -> Comparison:
    """Compare the mean accuracies over the seeds of two networks on the same test images.

    The interval of the difference is the percentile interval of a bootstrap that resamples the test images, or their groups, and the seeds.
    Both networks have the same resamples: the comparison is paired.

    Args:
        ours: correct classifications of the fine-tuned network, 1 or 0.
        theirs: correct classifications of the network from random weights.
        groups: the group of each test image, -1 for none.

    >>> compare(np.ones((50, 2)), np.zeros((50, 2))).low
    1.0
    """
    n, seeds = ours.shape
    differences = resampled_means(ours - theirs, groups)
    drawn = np.random.default_rng(1).integers(seeds, size=differences.shape)
    low, high = interval(np.take_along_axis(differences, drawn, axis=1).mean(1, keepdims=True))
    return Comparison(
        probe=FINE_TUNING,
        against=RANDOM,
        accuracy=float(ours.mean()),
        reference=float(theirs.mean()),
        difference=float(ours.mean() - theirs.mean()),
        low=float(low[0]),
        high=float(high[0]),
        units=int(units(groups, n).max()) + 1,
        grouped=groups is not None,
    )


def table(result: FineTuning) -> Table:
    """Return the accuracies as a table: a column for each seed, and mean ± standard deviation."""
    several = len(result.seeds) > 1
    columns = [Column(f"seed {seed}", justify="right") for seed in result.seeds]
    drawn = Table(Column("accuracy in %"), *columns, *([Column("mean ± sd", justify="right")] if several else []))
    for name, values in (("fine-tuned", result.fine_tuned), ("from random weights", result.from_scratch)):
        percent = [100 * value for value in values]
        summary = [f"{mean(percent):.1f} ± {stdev(percent):.1f}"] if several else []
        drawn.add_row(name, *(f"{value:.1f}" for value in percent), *summary)
    if result.majority is not None:
        drawn.add_row("most frequent class", *[f"{100 * result.majority:.1f}"] * (len(columns) + several))
    return drawn


def check_folder(out: str | Path, *, overwrite: bool) -> Path:
    """Return the folder of the files.

    Raises:
        UserError: it is a file, or has one of the files already.
    """
    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file, expected a folder; give another name")
    if taken := [name for name in (BACKBONE, CLASSIFIER, RESULT) if (folder / name).exists() and not overwrite]:
        remedy = "choose another folder, or replace the files with --overwrite (overwrite=True in Python)"
        raise UserError(f"{folder} has a {taken[0]} already; {remedy}")
    return folder


def write(
    folder: Path, result: FineTuning, model: Model, backbone: nn.Module, classifier: nn.Linear, classes: Sequence[str], *, overwrite: bool
) -> None:
    """Write the fine-tuned backbone and its classifier as safetensors, and the result as JSON."""
    export_weights(backbone, folder / BACKBONE, export_metadata(model) | {"classes": json.dumps(classes)}, overwrite=overwrite)
    content = to_safetensors(dict(classifier.state_dict()), {"classes": json.dumps(classes)})
    with atomic_write(folder / CLASSIFIER, overwrite=overwrite) as path:
        path.write_bytes(content)
    with atomic_write(folder / RESULT, overwrite=overwrite) as path:
        path.write_text(json.dumps(result.to_json(), indent=2) + "\n")
