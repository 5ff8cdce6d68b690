"""What a model is judged on: labelled images, and how networks run on them; with the lines that describe them."""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int64

from fullrank.errors import Notify, UserError
from fullrank.errors import silent as silent
from fullrank.evaluation.outcomes import Outcome, Target, judge
from fullrank.evaluation.protocol import Scoring
from fullrank.evaluation.score import FILE, Evaluation, read_evaluations
from fullrank.files import read_jsonl
from fullrank.images import AnyImages, DecodeErrors, Device, ImageDecodeError, Images, Reading, as_images, decode
from fullrank.images.source_uri import absolute_source
from fullrank.models import Model
from fullrank.models.loading import find_checkpoint
from fullrank.models.model_images import Data, LabelledSplits, choose_splits

# With fewer labelled test images, an accuracy says nothing, and there are no tables of it.
LEAST_TESTED = 5


@dataclass(frozen=True)
class Task:
    """Labelled images, and how networks run on them.

    Attributes:
        device: Where networks run, and how images come to them.
        notify: Receives lines.
        progress: Receives the work in progress, of which the last counts.
        caveat: A sentence for the verdict if test images are images of pretraining.
    """

    splits: LabelledSplits
    device: Device = field(default_factory=Device)
    notify: Notify = silent
    progress: Notify = silent
    caveat: str = ""

    @cached_property
    def errors(self) -> DecodeErrors:
        """The images that could not be read."""
        return DecodeErrors(max_error_fraction=self.device.max_error_fraction)

    def evaluation(
        self,
        model: Model,
        outcomes: Sequence[Outcome],
        target: Target,
        read: tuple[int, int],
        *,
        seed: int,
        seeds: bool = False,
    ) -> Evaluation:
        """Return the scores with their intervals and comparisons; `read` are the numbers of training and of test images
        that could be read, `seed` and `seeds` are those of `judge`.
        """
        scores, comparisons = judge(outcomes, target, seed=seed, seeds=seeds)
        left_out = [
            f"{missing} of {len(images)} {name} images: unlabelled"
            for name, images in (("training", self.splits.train), ("test", self.splits.test))
            if (missing := len(images) - len(labelled_rows(images)))
        ]
        left_out += [f"{len(self.errors.reasons)} images: unreadable"] if self.errors.reasons else []
        return Evaluation(
            model=model.name,
            step=model.step,
            data=self.splits.data,
            statement=self.splits.statement,
            train_images=read[0],
            test_images=read[1],
            chance=target.chance,
            scores=scores,
            comparisons=comparisons,
            left_out=tuple(left_out),
        )


def open_task(
    model: Model,
    data: Data | None,
    choices: Scoring,
    reading: Reading | None,
    device: Device | None,
    notify: Notify,
    *,
    others: Sequence[Model] = (),
    multilabel: bool = True,
    elsewhere: bool = False,
) -> Task:
    """Return the images for training and for scoring probes, after telling the user what they are; `elsewhere`: whether
    they come from another place than those of pretraining, which may contain them. `others` are models that are scored
    on the same images.

    Raises:
        UserError: the images do not exist, or lack labels.
    """
    seed = model.recipe.split_seed if model.recipe else choices.seed
    splits = choose_splits(model, data, reading, seed=seed, train_subset=choices.train_subset)
    if reason := why_not_scorable(splits.train, splits.test, multilabel=multilabel):
        raise UserError(f"nothing can be scored: {reason}")
    shared, caveat = overlap(model, splits.test) if elsewhere else ("", "")
    if favoured := [other.name for other in others if trained_on_held_out(other, splits, seed)]:
        favour = f"{', '.join(favoured)} held out other images of this source, and learned from some of the test images"
        notify(f"warning: {favour}")
        caveat += f" Note: {favour}."
    statement = "; ".join(filter(None, (splits.statement, shared)))
    for line in filter(None, (unfinished(model), statement)):
        notify(line)
    return Task(replace(splits, statement=statement), device or Device(), notify, caveat=caveat)


def trained_on_held_out(model: Model, splits: LabelledSplits, seed: int) -> bool:
    """Return whether the test images are the fifth of a source that `seed` holds out, and a run with another seed had
    the same source.
    """
    if model.recipe is None or model.recipe.split_seed == seed:
        return False
    source, own = getattr(splits.test, "source", ""), absolute_source(model.recipe.data.source)
    return source == getattr(splits.train, "source", "") and source.partition("[")[0] == own


def file_of(model: Model, *, store: bool) -> Path | None:
    """Return the evaluation.json to which scores are added, None if there is none.

    Raises:
        UserError: it is damaged; found before the work.
    """
    path = model.path / FILE if store and model.path else None
    if path:
        read_evaluations(path)
    return path


def labelled_rows(images: AnyImages) -> Int64[torch.Tensor, " m"]:
    """Return the rows of the images that have labels."""
    labels = images.labels if images.multi_labels is None else images.multi_labels[:, 0]
    return (torch.as_tensor(labels).cpu() >= 0).nonzero().flatten()


def why_not_scorable(train: AnyImages, test: AnyImages, *, multilabel: bool = False) -> str:
    """Return the reason why no probe can be scored, or an empty string; `multilabel`: whether images with several
    labels can be scored.
    """
    of_train, of_test = (f" of {source}" if (source := getattr(part, "source", "")) else "" for part in (train, test))
    if train.multi_labels is None and test.multi_labels is None:
        classes, tested = len(torch.as_tensor(train.labels)[labelled_rows(train)].unique()), len(labelled_rows(test))
        if classes == 0:
            remedy = "name labelled images with --labelled SOURCE: class folders, or a table with a label column"
            return f"the training images{of_train} have no labels; {remedy}"
        divides, needed = classes > 1, "images of two classes"
    elif not multilabel:
        only = "which only fullrank evaluate scores; name a column of one label each with --data.label-column"
        return f"the images{of_train} have several labels each, {only}"
    elif train.multi_labels is None or test.multi_labels is None or tuple(train.classes) != tuple(test.classes):
        return "the training and the test images have labels of other forms or classes; give the same for both"
    else:
        Y, tested = torch.as_tensor(train.multi_labels), int((torch.as_tensor(test.multi_labels) == 1).any(1).sum())
        divides, needed = ((Y == 1).any(0) & (Y == 0).any(0)).any(), "images with a class and images without it"
    if not divides:
        return f"the labels of the training images{of_train} are all the same, but a probe needs {needed}"
    remedy = f"expected at least {LEAST_TESTED}; label more images, or name another test split"
    return f"{tested} of the test images{of_test} have labels, {remedy}" if tested < LEAST_TESTED else ""


def unfinished(model: Model) -> str:
    """Return a line that says how far a run is if its newest checkpoint is not its last; empty for other models."""
    if model.path is None or model.recipe is None or model.step is None:
        return ""
    images = find_checkpoint(model.path, model.step).meta().get("images")
    if not isinstance(images, int) or model.step >= (steps := images // model.recipe.batch_size * model.recipe.epochs):
        return ""
    return f"{model.path} is not finished: the scores are of step {model.step:,} of {steps:,}"


def accuracy_during_training(model: Model) -> tuple[dict[float, float], int]:
    """Return epoch → accuracy of the last probe of a run during its training, up to its checkpoint, and its number of
    test images; nothing for other models, and for a damaged log, which is not a reason to lose the scores.
    """
    if model.path is None or model.step is None:
        return {}, 0
    try:
        rows, _ = read_jsonl(model.path / "metrics.jsonl")
        rows = [row for row in rows if row.get("kind") == "online" and row["step"] <= model.step]
        probe, images = next(((row.get("probe"), row["images"]) for row in reversed(rows)), ("", 0))
        rows = [row for row in rows if (row.get("probe"), row["images"]) == (probe, images)]  # not with other labels
        if not isinstance(images, int) or images < 0 or not all(0 <= row["accuracy"] <= 1 for row in rows):
            raise ValueError("values out of range")
        return {row["epoch"]: row["accuracy"] for row in rows}, images
    except (ValueError, KeyError, TypeError):
        return {}, 0


def overlap(model: Model, test: AnyImages) -> tuple[str, str]:
    """Return how many test images are images of pretraining, and a sentence for the verdict if there are any; empty for
    a model without images of its own, and without a readable test image.
    """
    if model.recipe is None:
        return "", ""
    own = {"seed": model.recipe.split_seed, "train_subset": bool(model.recipe.data.subset)}
    try:
        pretraining = choose_splits(model, None, **own).train
    except UserError as error:
        return f"the overlap with the images of pretraining was not counted ({error})", ""
    count, readable = count_overlap(test, pretraining, channels=model.preprocess.channels)
    line = f"{count:,} of {readable:,} test images are also among the {len(pretraining):,} images of pretraining"
    caveat = f" Note: {count:,} of the test images are images of pretraining, which favours the backbone."
    return line if readable else "", caveat if count else ""


def count_overlap(test: AnyImages, pretraining: AnyImages, *, channels: int) -> tuple[int, int]:
    """Return the number of test images whose decoded pixels, in `channels` channels, equal those of an image of
    pretraining, whatever the file names and formats, and the number of test images that can be read.

    >>> from fullrank.images import open_images
    >>> digits = open_images("digits")["all"]
    >>> count_overlap(digits.subset(range(10)), digits.subset(range(7, 20)), channels=1)
    (3, 10)
    """

    def contents(images: Images) -> Iterator[bytes]:
        for row in range(len(images)):
            with suppress(ImageDecodeError):
                pixels = np.array(decode(images.open(row), channels))
                shape = (*pixels.shape[:2], channels)  # one channel with or without an axis of its own
                yield hashlib.blake2b(f"{shape}".encode() + pixels.tobytes(), digest_size=16).digest()

    tested = list(contents(as_images(test)))
    known = set(contents(as_images(pretraining))) if tested else set()
    return sum(content in known for content in tested), len(tested)
