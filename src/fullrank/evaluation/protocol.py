"""What an evaluation scores, and the numbers of the probes: a frozen dataclass for each. Its fields are flags of
`fullrank evaluate`: `--linear-sgd.lr 0.1`.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, field
from typing import Annotated, Any, ClassVar, Literal

import tyro
from pydantic import BeforeValidator, Field

from fullrank.config import Count, Share, config, from_json
from fullrank.errors import UserError

Number = Annotated[int, Field(ge=1, le=10**9)]
Weight = Annotated[float, Field(ge=0, le=1e12)]
Decay = Annotated[float, Field(ge=0, lt=1)]
Rate = Annotated[float, Field(gt=0, le=1e6)]
# Positive numbers, of which a held-out tenth of the training features selects one.
Candidates = Annotated[tuple[Annotated[float, Field(ge=1e-12, le=1e12)], ...], Field(min_length=1)]
Crop = tuple[Annotated[float, Field(gt=0, le=1)], Annotated[float, Field(gt=0, le=1)]]


@config
class LinearProtocol:
    """Logistic regression by full-batch L-BFGS; a held-out tenth of the training features selects the penalty.

    Attributes:
        penalties: Candidates for the weight of ½‖W‖² relative to the mean loss, in descending order.
        iterations: Maximum number of iterations per fit; few fits need so many.
        standardize: Standardise the features by the statistics of the training images.
    """

    title: ClassVar[str] = "linear (full batch)"
    penalties: Candidates = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5)
    iterations: Number = 100
    standardize: bool = True


@config
class GradientProtocol:
    """A linear classifier that is trained step by step on minibatches; its score is that of the last epoch.

    Attributes:
        lr: Initial learning rate. Several: a held-out tenth of the training features selects one, and all of them train
            the final classifier.
        epochs: Passes over the training images.
        decay: Epochs after which the learning rate is multiplied by `decay_factor`.
        decay_factor: Factor of the learning rate at each epoch of `decay`.
        batch_size: Images per step.
        weight_decay: Weight decay of weights and biases.
        standardize: Standardise the features by the statistics of the training images.
        views: Training images are augmented by a random resized crop and a flip, in this many passes, which the epochs
            take in turn. 0: no augmentation. As many as `epochs`: each epoch has new crops.
        crop: Smallest and largest area of the random crop, as a share of the image's area.
        flip: Probability of a flip left to right.
    """

    title: ClassVar[str] = "linear"
    lr: Candidates
    epochs: Number = 100
    decay: tuple[Number, ...] = (60, 80)
    decay_factor: Share = 0.1
    batch_size: Number = 256
    weight_decay: Weight = 0.0
    standardize: bool = True
    views: Annotated[int, Field(ge=0, le=10**6)] = 0
    crop: Crop = (0.08, 1.0)
    flip: Share = 0.5


@config
class SgdProtocol(GradientProtocol):
    """The probe of FroSSL's paper on CIFAR and STL-10, and of most papers: SGD with momentum.

    Source: Skean et al. 2023 (FroSSL), Section 6.1: lr 0.3, no weight decay, × 0.1 at epochs 60 and 80 of 100, batch
    256. Momentum 0.9, crop and flip: the public configurations of solo-learn, from which the paper's experiments come.

    Attributes:
        lr: Initial learning rate. Several: a held-out tenth of the training features selects one, and all of them train
            the final classifier.
        momentum: Momentum of SGD.
        limit_lr: Limit the learning rate to the largest stable one, 2(1 + momentum)/L. None: on standardised features
            only.
    """

    title: ClassVar[str] = "linear (SGD)"
    lr: Candidates = (0.3,)
    momentum: Decay = 0.9
    limit_lr: bool | None = None

    @property
    def limits_lr(self) -> bool:
        """Whether the learning rate is limited."""
        return self.standardize if self.limit_lr is None else self.limit_lr


@config
class AdamProtocol(GradientProtocol):
    """The probe of FroSSL's paper on ImageNet: Adam on the features as they are.

    Source: Skean et al. 2023 (FroSSL), Section 6.2: lr 5e-3, no weight decay, a step every 10 of 100 epochs. The paper
    does not give the factor of the steps and the batch size; 0.1 is the default of the step schedules of PyTorch and
    solo-learn, and 256 is the paper's batch on CIFAR.

    Attributes:
        lr: Initial learning rate. Several: a held-out tenth of the training features selects one, and all of them train
            the final classifier.
        decay: Epochs after which the learning rate is multiplied by `decay_factor`.
        betas: Decay rates of Adam's averages of the gradient and of its square.
        standardize: Standardise the features by the statistics of the training images.
    """

    title: ClassVar[str] = "linear (Adam)"
    lr: Candidates = (5e-3,)
    decay: tuple[Number, ...] = (10, 20, 30, 40, 50, 60, 70, 80, 90)
    betas: tuple[Decay, Decay] = (0.9, 0.999)
    standardize: bool = False


@config
class KnnProtocol:
    """The k nearest training images by cosine similarity, weighted by exp(cos / temperature).

    Source: Wu et al. 2018 (temperature 0.07, k = 200); k = 20 is the value of DINO and of solo-learn.

    Attributes:
        k: Number of neighbours.
        temperature: Temperature of the weights.
    """

    title: ClassVar[str] = "kNN"
    k: Number = 20
    temperature: Annotated[float, Field(ge=1e-6, le=1e6)] = 0.07


@config
class SvmProtocol:
    """A linear support vector machine for each class against the others; a held-out tenth of the training features
    selects C.

    Attributes:
        C: Candidates for the weight of the sum of squared hinge losses relative to ½‖W‖², in ascending order.
        iterations: Maximum number of iterations per fit.
        standardize: Standardise the features by the statistics of the training images.
    """

    title: ClassVar[str] = "SVM"
    C: Candidates = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
    iterations: Number = 1000
    standardize: bool = True


@config
class FewShotProtocol:
    """Logistic regression on a few labels per class; mean and standard deviation over random draws of the labels.

    Attributes:
        labels: Labels per class; each number is a score.
        draws: Random draws of the labelled images.
        penalties: Candidates for the weight of ½‖W‖²; a held-out tenth of the drawn images selects one, or the middle
            one is taken if there are fewer than ten labels per class.
        standardize: Standardise the features by the statistics of all training images, labelled or not.
    """

    title: ClassVar[str] = "linear, {labels} labels per class"
    labels: Annotated[tuple[Number, ...], Field(min_length=1)] = (2,)
    draws: Number = 20
    penalties: Candidates = (1e-2,)
    standardize: bool = True


@config
class FractionsProtocol(LinearProtocol):
    """Logistic regression on a fraction of the labels of each class; mean and standard deviation over random draws.

    Attributes:
        fractions: Shares of the labels of each class, at least one label per class; each share is a score.
        draws: Random draws of the labelled images.
        penalties: Candidates for the weight of ½‖W‖²; a held-out tenth of the drawn images selects one.
        iterations: Maximum number of iterations per fit.
        standardize: Standardise the features by the statistics of all training images, labelled or not.
    """

    title: ClassVar[str] = "linear, {fractions} of the labels"
    fractions: Annotated[tuple[Annotated[float, Field(ge=1e-9, le=1)], ...], Field(min_length=1)] = (0.01, 0.1)
    draws: Number = 5


@config
class SupervisedProtocol:
    """The supervised baseline, the whole network from random weights: AdamW, warm-up, cosine decay, crops and flips.

    No number is chosen on the labelled images, and the last epoch is scored. The weight decay is that of DeiT (Touvron
    et al. 2021, Table 9). The learning rate was better than 1e-3 on CIFAR-10 with 400 and 4,000 labels
    (docs/verdict.md). A recipe that is tuned to the data can be better.

    Attributes:
        epochs: Epochs of each training.
        lr: Peak of the learning rate.
        weight_decay: Weight decay of AdamW.
        batch_size: Largest number of images of a step.
        crop: Smallest and largest area of the random crop, as a share of the image's area.
        flip: Probability of a flip left to right; of a run whose views have no flips, 0 in any case.
        smoothing: Label smoothing of the cross-entropy.
    """

    title: ClassVar[str] = "network from scratch"
    epochs: Number = 100
    lr: Rate = 3e-3
    weight_decay: Weight = 0.05
    batch_size: Annotated[int, Field(ge=2, le=10**9)] = 64
    crop: Crop = (0.35, 1.0)
    flip: Share = 0.5
    smoothing: Share = 0.0


@config
class FinetuneProtocol(SupervisedProtocol):
    """The whole network from given weights.

    The learning rate is that of DeiT for a batch of 1024 images (Touvron et al. 2021, Table 9). Crop and label
    smoothing are the defaults of timm (`create_transform`, `LabelSmoothingCrossEntropy`).

    Attributes:
        epochs: Epochs of each training.
        lr: Peak of the learning rate.
        crop: Smallest and largest area of the random crop, as a share of the image's area.
        smoothing: Label smoothing of the cross-entropy.
    """

    title: ClassVar[str] = "fine-tuning"
    epochs: Number = 50
    lr: Rate = 1e-3
    crop: Crop = (0.08, 1.0)
    smoothing: Share = 0.1


@config
class Protocols:
    """The numbers of every probe.

    Attributes:
        linear: Full-batch logistic regression.
        linear_sgd: SGD, as in the papers on CIFAR and STL-10.
        linear_imagenet: Adam, as in FroSSL's paper on ImageNet.
        knn: Weighted nearest neighbours.
        svm: Linear support vector machine.
        few_shot: A few labels per class.
        fractions: A fraction of the labels.
        supervised: The supervised baseline.
    """

    linear: LinearProtocol = field(default_factory=LinearProtocol)
    linear_sgd: SgdProtocol = field(default_factory=SgdProtocol)
    linear_imagenet: AdamProtocol = field(default_factory=AdamProtocol)
    knn: KnnProtocol = field(default_factory=KnnProtocol)
    svm: SvmProtocol = field(default_factory=SvmProtocol)
    few_shot: FewShotProtocol = field(default_factory=FewShotProtocol)
    fractions: FractionsProtocol = field(default_factory=FractionsProtocol)
    supervised: SupervisedProtocol = field(default_factory=SupervisedProtocol)

    def __getitem__(self, probe: str) -> Any:
        """Return the protocol of a probe, by its name on the command line.

        >>> Protocols()["linear-sgd"].lr
        (0.3,)
        """
        return getattr(self, probe.replace("-", "_"))


def from_names(given: Any) -> Any:
    """Return a dict, the numbers of some probes, as the protocols of all of them; anything else unchanged.

    >>> from_names({"few-shot": {"draws": 5}}).few_shot.draws
    5
    """
    if not isinstance(given, Mapping):
        return given
    return from_json(Protocols, {name.replace("-", "_"): numbers for name, numbers in given.items()}, "protocols")


SomeProtocols = Annotated[Protocols, tyro.conf.arg(name=""), BeforeValidator(from_names)]
ProbeName = Literal["linear", "linear-sgd", "linear-imagenet", "knn", "svm", "few-shot", "fractions"]


@config
class Scoring:
    """What is scored, and how.

    Attributes:
        probes: linear (full-batch logistic regression), linear-sgd (SGD as in the papers), linear-imagenet (Adam as in
            FroSSL's paper), knn, svm, few-shot (two labels per class), fractions (1 % and 10 % of the labels). The
            flags of each probe are its numbers.
        protocols: The numbers of the probes; in Python also a dict such as `{"knn": {"k": 200}}`.
        baselines: Also score raw pixels and the untrained network.
        supervised: Also train the network of the model from random weights with the labels, and compare.
        train_subset: Train the probes on the images of the run's data.subset, instead of all training images.
        resize: Shorter side of the images before the central square is cropped, such as 256 for a network of 224 px; by
            default that of the model.
        dimensions: Range of feature dimensions to score, such as :360 or 360: (not of raw pixels and other models);
            such scores are not stored.
        seed: Seed of all random draws. If the images have no named splits, the seed of the run splits them.
    """

    probes: Annotated[tuple[ProbeName, ...], Field(min_length=1)] = ("linear", "linear-sgd", "knn", "few-shot")
    protocols: SomeProtocols = field(default_factory=Protocols)
    baselines: bool = True
    supervised: bool = False
    train_subset: bool = False
    resize: Annotated[int, Field(ge=1)] | None = None
    dimensions: str = ":"
    seed: Count = 0

    @property
    def selected(self) -> slice:
        """The dimensions as a slice."""
        start, colon, stop = self.dimensions.partition(":")
        if not colon or not all(bound.isascii() and bound.isdecimal() for bound in (start, stop) if bound):
            raise UserError(f"dimensions is '{self.dimensions}', expected a range such as ':360' or '360:'")
        return slice(int(start) if start else None, int(stop) if stop else None)


# Name of a probe → its protocol.
PROTOCOLS: dict[str, Any] = {name.replace("_", "-"): type(value) for name, value in vars(Protocols()).items()}
PROTOCOLS["finetune"] = FinetuneProtocol


def settings_of(protocol: Any, **changes: Any) -> dict[str, Any]:
    """Return the numbers of a protocol as JSON values; `changes` replace some of them.

    >>> settings_of(FewShotProtocol(), labels=2)
    {'labels': 2, 'draws': 20, 'penalties': [0.01], 'standardize': True}
    """
    return json.loads(json.dumps(asdict(protocol) | changes))


def score_name(probe: str, settings: Mapping[str, Any], metric: str = "accuracy") -> str:
    """Return the text of a score: the title of its probe, each number that is not the default, and the metric.

    >>> score_name("linear-sgd", settings_of(SgdProtocol(lr=(0.1, 1.0), standardize=False)))
    'linear (SGD), lr 0.1 1, standardize no'
    >>> score_name("fractions", {"fractions": 0.01}, "top-5 accuracy")
    'linear, 1 % of the labels, top-5 accuracy'
    """
    ending = [metric] if metric != "accuracy" else []
    if probe not in PROTOCOLS:
        return ", ".join([probe, *ending])
    title, usual = PROTOCOLS[probe].title, settings_of(PROTOCOLS[probe]())
    changed = [
        f"{name.replace('_', ' ')} {_words(value)}"
        for name, value in settings.items()
        if f"{{{name}}}" not in title and usual.get(name) != value
    ]
    shares = {name: f"{100 * value:g} %" for name, value in settings.items() if name == "fractions"}
    title = title.format(**(usual | dict(settings) | shares)).replace(" 1 labels", " 1 label")
    return ", ".join([title, *changed, *ending])


def _words(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return " ".join(map(_words, value)) or "none"
    return repr(value).removesuffix(".0")  # every digit, because two protocols must not have the same name
