"""The result of one cell: a small JSON object, `row.json` in the run directory, from which tables and figures are
drawn. It names its data set by a digest of the pixels.
"""

import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fullrank.config import Count, config, from_json
from fullrank.errors import UserError
from fullrank.files import read_text
from fullrank.images import ImageDecodeError, Images, Reading, open_images
from fullrank.images.dataset_info import COMPARED, evenly_spaced
from fullrank.images.source_uri import absolute_source
from fullrank.recipes import DataConfig

ROW = "row.json"
Setting = str | int | float | bool
# Digest → name of a public data set, whole and without loss, in its original order, with the splits train and test.
KNOWN = {"d062551f7a77": "CIFAR-10", "5aa324e8509d": "MNIST"}


@config
class EvaluationPlan:
    """What is measured on the frozen backbone after training, by the function of `fullrank evaluate`.

    Attributes:
        probes: Names in `fullrank.evaluation.PROBES`. Empty: nothing is evaluated after training.
        transfer: Sources of other labelled data sets, on which the same probes are trained and scored.
        all_images: Train the probes on all training images although the network was trained on `data.subset`. By
            default they are trained on the images of the subset, and on other data sets on at most as many.
    """

    probes: tuple[str, ...] = ("linear", "knn")
    transfer: tuple[str, ...] = ()
    all_images: bool = False

    def data_sets(self, own: DataConfig) -> list[DataConfig]:
        """Return the run's own data set and the others, or none without a probe."""
        return [own, *(DataConfig(source=source) for source in self.transfer)] if self.probes else []

    def union(self, other: "EvaluationPlan") -> "EvaluationPlan":
        """Return the plan of everything in this plan and in another one, whose `all_images` it has."""
        probes, transfer = dict.fromkeys(self.probes + other.probes), dict.fromkeys(self.transfer + other.transfer)
        return replace(other, probes=tuple(probes), transfer=tuple(transfer))

    def covers(self, other: "EvaluationPlan") -> bool:
        """Return whether everything in another plan is measured by this one.

        >>> EvaluationPlan().covers(EvaluationPlan(probes=("knn",)))
        True
        """
        same = self.all_images == other.all_images
        return same and set(self.probes) >= set(other.probes) and set(self.transfer) >= set(other.transfer)


@dataclass(frozen=True)
class OnlineScore:
    """Accuracy of the online classifier on the whole test split after an epoch."""

    epoch: float
    accuracy: float
    top5: float | None = None


@config
class Row:
    """The result of one cell.

    Attributes:
        cell: Name of the cell and of its run directory.
        settings: The values in which the cells of the sweep differ.
        recipe: Name of the recipe.
        error: Why the cell failed, in one line.
        diverged: The run failed because its loss, weights or embeddings were not finite: a result, which training again
            would give again.
        seconds: Duration of the training loop, also over several calls; without the evaluation after training.
        cpu_seconds: CPU time of the training loop, summed over the threads of its first process. Other jobs on the
            machine change it less than `seconds`; it does not hold the time of a GPU. 0: not known.
        online: Scores of the online classifier after the epochs of `probe.epochs`.
        scores: Name of a data set → name of a probe as in `EvaluationPlan` → accuracy in [0, 1]. `data` is the run's
            own data set.
        effective_rank: Effective rank on held-out images after training: "backbone" and "projector".
        data: Name of the data set.
        images: Digest of the images of the data set. Rows with another digest are not comparable.
        train_images: Number of images that the network was trained on.
        test_images: Number of images that the probes were scored on; validation images if `data.validation` holds some
            out.
        fingerprint: `Recipe.fingerprint` of the recipe that was asked for.
        code: Name of a function of the user → digest of its source file. Rows of another version of the function are
            not comparable.
        environment: Hardware, versions, commit.

    >>> Row(cell="a", recipe="digits", objective="frossl", seed=0, status="done").is_done
    True
    """

    cell: str
    settings: dict[str, Setting] = field(default_factory=dict)
    recipe: str
    objective: str
    seed: Count
    status: Literal["done", "failed"]
    error: str = ""
    diverged: bool = False
    steps: Count = 0
    epochs: float = 0.0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    online: tuple[OnlineScore, ...] = ()
    scores: dict[str, dict[str, float]] = field(default_factory=dict)
    effective_rank: dict[str, float] = field(default_factory=dict)
    data: str = ""
    images: str = ""
    train_images: Count = 0
    test_images: Count = 0
    fingerprint: str = ""
    code: dict[str, str] = field(default_factory=dict)
    evaluate: EvaluationPlan = field(default_factory=EvaluationPlan)
    environment: dict[str, Any] = field(default_factory=dict)

    @property
    def is_done(self) -> bool:
        """Whether the run has ended and was evaluated."""
        return self.status == "done"

    @property
    def is_final(self) -> bool:
        """Whether another attempt would give the same result."""
        return self.is_done or self.diverged

    @property
    def state(self) -> str:
        """done, failed or diverged."""
        return "diverged" if self.diverged else self.status

    def has(self, plan: EvaluationPlan) -> bool:
        """Return whether everything in a plan is measured, or never can be."""
        return self.diverged or self.evaluate.covers(plan)

    def score(self, probe: str, data: str = "") -> float | None:
        """Return the accuracy of a probe on a data set, by default the run's own; None if it was not measured."""
        return self.scores.get(data or self.data, {}).get(probe)

    def summary(self) -> str:
        """Return the end of the cell in one line.

        >>> Row(cell="a", recipe="digits", objective="frossl", seed=0, status="done", seconds=3.2).summary()
        'done, 3 s'
        """
        if not self.is_done:
            return f"{self.state}: {self.error}"
        scores = [f"{probe} {100 * share:.1f} %" for probe, share in self.scores.get(self.data, {}).items()]
        return ", ".join(["done", *scores, f"{self.seconds:.0f} s"])


def read_row(run: Path) -> Row | None:
    """Return the row of a run directory, or None if it has none.

    Raises:
        UserError: the file is damaged.
    """
    path = run / ROW
    try:
        return from_json(Row, read_text(path), str(path)) if path.exists() else None
    except (OSError, ValueError) as error:  # UserError is a ValueError
        raise UserError(f"{path} is damaged ({error}); remove it, and the next call measures it again") from error


def require_same_images(rows: Iterable[Row], what: str = "the table") -> None:
    """Check that all rows were measured on the same data set, by its images, not by its name.

    Raises:
        UserError: they were not.
    """
    names = {row.images: row.data for row in rows}
    if len(names) > 1:
        found = ", ".join(f"{name} ({digest})" for digest, name in names.items())
        raise UserError(f"{what} would mix the data sets {found}; keep the runs of each in another folder")


def identify(data: DataConfig) -> tuple[str, str]:
    """Return the name and the digest of a data set.

    The digest is of the names of splits that were asked for and, for each split of the source, of the number of images,
    all labels, and the decoded pixels of a sample: files of another format with the same pixels are the same data set,
    and files with other pixels, such as a compressed copy, are another one. The name is that of a known digest, or else
    the last part of the source.

    Raises:
        UserError: the source cannot be read.

    >>> identify(DataConfig(source="digits"))[0]
    'digits'
    """
    found = digest(absolute_source(data.source), data.reading, data.storage == "streaming")
    name = data.source if ":" in data.source else os.path.basename(os.path.normpath(data.source))
    return KNOWN.get(found, name), found


@lru_cache(maxsize=16)
def digest(source: str, reading: Reading, streaming: bool) -> str:
    """Return the digest that `identify` describes; it is computed once."""
    state = hashlib.sha256(f"{reading.train} {reading.test}\0".encode())
    if streaming:  # a stream has no random access
        state.update(source.encode())
        return state.hexdigest()[:12]
    for name, images in sorted(open_images(source, reading).items()):
        state.update(f"{name} {len(images)}\0".encode())
        state.update(np.asarray(images.labels, dtype=np.int64).tobytes())
        for index in evenly_spaced(len(images), COMPARED):
            state.update(_pixels(images, index))
    return state.hexdigest()[:12]


def _pixels(images: Images, index: int) -> bytes:
    try:
        pixels = np.asarray(images.open(index))
    except (ImageDecodeError, OSError, ValueError):
        return b"unreadable"
    return f"{pixels.shape} {pixels.dtype}\0".encode() + np.ascontiguousarray(pixels).tobytes()
