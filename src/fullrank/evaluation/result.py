"""Results of probes: the accuracy of one probe, and the scores of an evaluation (an entry of evaluation.json)."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from fullrank.structure import Count, JsonObject, structure

MANY_CLASSES = 10  # top-5 accuracy is reported for more classes than this: with 10 classes, chance alone gives 50 %


@dataclass(frozen=True)
class ProbeResult:
    """The accuracy and the predictions of a probe on the test images."""

    accuracy: float
    """Share of the labelled test images that are classified correctly, in [0, 1]."""
    top5: float | None
    """Share of the labelled test images with the correct class among the five highest logits; None for 10 classes or
    fewer."""
    predictions: Int64[Tensor, " n"]
    """The predicted class of each test image, labelled or not."""
    chosen: dict[str, float] = field(default_factory=dict)
    """What was chosen on held-out training features, or limited: `{"penalty": 1e-3}`."""
    note: str = ""
    """What a reader of the accuracy must know."""
    probabilities: Float[Tensor, "n K"] | None = field(default=None, repr=False)
    """The predicted probability of each class, for each test image: shares of the votes, or the softmax of the
    logits."""


@dataclass(frozen=True, kw_only=True)
class ProbeScore:
    """The accuracy of one probe on one feature set: the mean and the standard deviation over n repetitions."""

    features: str
    """Name of the feature set, such as 'backbone' or 'raw pixels'."""
    probe: str
    """Name of the probe, with every number of its protocol that is not the default: 'kNN', 'kNN, k 200'."""
    accuracy: float
    """Share of test images that are classified correctly, in [0, 1]; or the value of another `metric`."""
    sd: float | None = None
    n: Count = 1
    protocol: JsonObject = field(default_factory=dict)
    """The numbers of the protocol, by name; empty in files of earlier versions."""
    chosen: JsonObject = field(default_factory=dict)
    """What was chosen on held-out training features, or limited: `{"penalty": 0.001}`."""
    note: str = ""
    """What a reader of the accuracy must know, such as a limited learning rate."""
    low: float | None = None
    """Lower end of the 95 % interval of the accuracy: bootstrap over the test images, or over their groups; None for
    top 5."""
    high: float | None = None
    """Upper end of the interval. The interval does not contain the chance of training, nor that of the draws of
    labels."""
    balanced_accuracy: float | None = None
    """Mean of the recalls of the classes."""
    balanced_accuracy_interval: tuple[float, float] | None = None
    """Ends of its 95 % interval, from the same resamples as those of the accuracy; only for the main probe."""
    auroc: float | None = None
    """Mean over the classes of the area under the ROC curve of one class against the others."""
    auroc_interval: tuple[float, float] | None = None
    """Ends of its 95 % interval; only for the main probe."""
    per_class: JsonObject = field(default_factory=dict)
    """Class → the share of its test images that are classified correctly (recall)."""
    confusion: tuple[tuple[Count, ...], ...] = ()
    """Number of test images by true class (row) and predicted class (column); () for more than 30 classes."""
    metric: str = "accuracy"
    """What `accuracy`, `low` and `high` are: 'accuracy', or 'mean average precision' for several labels an image.
    `per_class` then has the average precisions."""
    positives: JsonObject = field(default_factory=dict)
    """Class → the number of test images that have it; only for several labels an image."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The accuracy of the backbone minus that of an alternative, by one probe, on the same test images."""

    probe: str
    against: str
    """The feature set of the alternative."""
    accuracy: float
    """Accuracy of the backbone."""
    reference: float
    """Accuracy of the alternative."""
    difference: float
    low: float
    """Lower end of the 95 % interval of the difference: paired bootstrap over the test images, or over their groups."""
    high: float
    """Upper end of the interval."""
    units: Count
    """Number of test images, or of groups of them, that are resampled."""
    grouped: bool = False
    """Whether test images of one group are resampled together."""
    seeds: Count = 1
    """Number of trainings with other random numbers, of which both accuracies are the mean."""
    metric: str = "accuracy"
    """What is compared, as in `ProbeScore.metric`."""
    seed_half_width: float = 0.0
    """The part of the interval that comes from the seeds, t(0.975, seeds − 1) · sd/√seeds; 0 for one seed and for
    frozen features."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The scores of one model on one data set."""

    model: str
    """The model argument of the command line."""
    data: str = ""
    """The source URI of the test images with their split: 'hf:uoft-cs/cifar10[test]', or 'digits (held out)'."""
    step: Count | None = None
    """The step of the checkpoint, None if the model is not a run."""
    train_images: Count
    test_images: Count
    chance: float | None = None
    """For several labels an image, the mean average precision of equal scores: the mean share of the test images that
    have a class."""
    majority: float | None = None
    """The share of the most frequent class among the labelled test images: the accuracy of guessing this class every
    time."""
    statement: str
    """One sentence that describes the training and the test images."""
    scores: tuple[ProbeScore, ...] = ()
    left_out: tuple[str, ...] = ()
    """Descriptions of what was not scored, with the reason."""
    comparisons: tuple[Comparison, ...] = ()
    """The backbone against each other feature set, by the main probe: the first linear probe on all labels, or else the
    first probe."""
    verdict: str = ""
    """One sentence: better or worse than the strongest alternative, or undecided."""
    finetuned: str = ""
    """The same sentence about fine-tuning: these weights against random weights. `fullrank finetune` writes it."""

    def to_json(self) -> dict[str, Any]:
        """Return one entry of evaluation.json."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any], *, source: str = "evaluation") -> "Evaluation":
        """Build an evaluation from one entry of evaluation.json.

        Raises:
            UserError: a field is missing, unknown or of the wrong type.

        >>> score = ProbeScore(features="backbone", probe="kNN", accuracy=0.5)
        >>> evaluation = Evaluation(model="run", train_images=8, test_images=2, statement="", scores=(score,))
        >>> Evaluation.from_json(evaluation.to_json()) == evaluation
        True
        """
        return structure(value, cls, source)


def majority_rate(y: Int64[Tensor, " n"]) -> float | None:
    """Return the share of the most frequent class among the labels, None without labels; -1 is no label.

    >>> majority_rate(torch.tensor([0, 2, 2, 2, -1]))
    0.75
    """
    labels = y[y >= 0]
    return labels.bincount().max().item() / len(labels) if len(labels) else None


def topk_accuracy(logits: Float[Tensor, "n K"], y: Int64[Tensor, " n"]) -> ProbeResult:
    """Compare the logits of K classes with labels; rows labelled -1 are predicted but not scored.

    >>> topk_accuracy(torch.eye(3), torch.tensor([0, 2, -1]))
    ProbeResult(accuracy=0.5, top5=None, predictions=tensor([0, 1, 2]), chosen={}, note='')
    """
    labelled = y >= 0
    assert labelled.any(), "no test image has a label"
    best = logits.topk(min(5, logits.shape[1]), dim=1).indices
    hits = (best == y[:, None])[labelled].cpu().double()  # on the CPU, as MPS has no float64
    top5 = hits.sum(1).mean().item() if logits.shape[1] > MANY_CLASSES else None
    return ProbeResult(hits[:, 0].mean().item(), top5, best[:, 0], probabilities=logits.softmax(1))


def drop_unlabelled(
    X: Float[Tensor, "n D"], y: Int64[Tensor, " n"]
) -> tuple[Float[Tensor, "m D"], Int64[Tensor, " m"]]:
    """Return the rows that have a label."""
    labelled = y >= 0
    return X[labelled], y[labelled]


def count_classes(*labels: Int64[Tensor, " _"]) -> int:
    """Return the number of classes; class indices start at 0.

    >>> count_classes(torch.tensor([0, -1]), torch.tensor([4]))
    5
    """
    return int(torch.cat(labels).max()) + 1
