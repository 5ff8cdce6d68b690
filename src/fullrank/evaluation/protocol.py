"""The numbers of the probes of `fullrank evaluate`: a frozen dataclass for each protocol. Its fields are flags:
`--linear-sgd.lr 0.1`.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Annotated, Any

from fullrank.errors import UserError, pick
from fullrank.structure import ASCENDING, Requirement, Share, between, structure, validate
from fullrank.views.config import Area

Number = Annotated[int, between(1, 1_000_000_000)]
Weight = Annotated[float, between(0, 1e12)]
NOT_EMPTY = Requirement("with at least one value, each once", lambda values: 0 < len(values) == len(set(values)))
Candidates = Annotated[tuple[Annotated[float, between(1e-12, 1e12)], ...], NOT_EMPTY]
"""Positive numbers, of which a held-out tenth of the training features selects one."""


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """The numbers of a probe."""

    def __post_init__(self):
        name = next((name for name, kind in PROTOCOLS.items() if kind is type(self)), type(self).__name__)
        validate(self, f"{name}.")


@dataclass(frozen=True, kw_only=True)
class LinearProtocol(Protocol):
    """Logistic regression by full-batch L-BFGS; a held-out tenth of the training features selects the penalty."""

    penalties: Candidates = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5)
    """Candidates for the weight of ½‖W‖² relative to the mean loss, in descending order."""
    iterations: Number = 100
    """Maximum number of iterations per fit; few fits need so many."""
    standardize: bool = True
    """Standardise the features by the statistics of the training images."""


@dataclass(frozen=True, kw_only=True)
class GradientProtocol(Protocol):
    """A linear classifier that is trained step by step on minibatches; its score is that of the last epoch."""

    lr: Candidates
    """Initial learning rate. Several: a held-out tenth of the training features selects one, and all of them train the
    final classifier."""
    epochs: Annotated[int, between(1, 1_000_000)] = 100
    """Passes over the training images."""
    decay: tuple[Number, ...] = (60, 80)
    """Epochs after which the learning rate is multiplied by `decay_factor`."""
    decay_factor: Share = 0.1
    """Factor of the learning rate at each epoch of `decay`."""
    batch_size: Number = 256
    """Images per step."""
    weight_decay: Weight = 0.0
    """Weight decay of weights and biases."""
    standardize: bool
    """Standardise the features by the statistics of the training images."""
    views: Annotated[int, between(0, 1_000_000)] = 0
    """Training images are augmented by a random resized crop and a flip, in this many passes, which the epochs take in
    turn. 0: no
    augmentation. As many as `epochs`: each epoch has new crops."""
    crop: Annotated[tuple[Area, Area], ASCENDING] = (0.08, 1.0)
    """Smallest and largest area of the random crop, as a share of the image's area."""
    flip: Share = 0.5
    """Probability of a flip left to right."""

    def __post_init__(self):
        super().__post_init__()
        if self.views > self.epochs:
            raise UserError(
                f"views is {self.views}, but there are only {self.epochs} epochs; each takes one pass, so give at most {self.epochs}"
            )


@dataclass(frozen=True, kw_only=True)
class SgdProtocol(GradientProtocol):
    """The probe of FroSSL's paper on CIFAR and STL-10, and of most papers: SGD with momentum.

    Source: Skean et al. 2024 (FroSSL), Section 6.1: lr 0.3, no weight decay, × 0.1 at epochs 60 and 80 of 100, batch
    256. Momentum 0.9,
    crop and flip: the public configurations of solo-learn, from which the paper's experiments come.
    """

    lr: Candidates = (0.3,)
    """Initial learning rate. Several: a held-out tenth of the training features selects one, and all of them train the
    final classifier."""
    momentum: Annotated[float, between(0, 0.99999)] = 0.9
    """Momentum of SGD."""
    standardize: bool = True
    """Standardise the features by the statistics of the training images."""
    limit_lr: bool | None = None
    """Limit the learning rate to the largest stable one, 2(1 + momentum)/L. None: on standardised features only."""

    @property
    def limits_lr(self) -> bool:
        """Whether the learning rate is limited."""
        return self.standardize if self.limit_lr is None else self.limit_lr


@dataclass(frozen=True, kw_only=True)
class AdamProtocol(GradientProtocol):
    """The probe of FroSSL's paper on ImageNet: Adam on the features as they are.

    Source: Skean et al. 2024 (FroSSL), Section 6.2: lr 5e-3, no weight decay, a step every 10 of 100 epochs. The paper
    does not give the factor of the steps and the batch size; 0.1 is the default of the step schedules of PyTorch and
    solo-learn, and 256 is the paper's batch on CIFAR.
    """

    lr: Candidates = (5e-3,)
    """Initial learning rate. Several: a held-out tenth of the training features selects one, and all of them train the
    final classifier."""
    decay: tuple[Number, ...] = (10, 20, 30, 40, 50, 60, 70, 80, 90)
    """Epochs after which the learning rate is multiplied by `decay_factor`."""
    betas: tuple[Annotated[float, between(0, 0.99999)], Annotated[float, between(0, 0.9999999)]] = (0.9, 0.999)
    """Decay rates of Adam's averages of the gradient and of its square."""
    standardize: bool = False
    """Standardise the features by the statistics of the training images."""


@dataclass(frozen=True, kw_only=True)
class KnnProtocol(Protocol):
    """The k nearest training images by cosine similarity, weighted by exp(cos / temperature).

    Source: Wu et al. 2018 (temperature 0.07, k = 200); k = 20 is the value of DINO and of solo-learn.
    """

    k: Number = 20
    """Number of neighbours."""
    temperature: Annotated[float, between(1e-6, 1e6)] = 0.07
    """Temperature of the weights."""


@dataclass(frozen=True, kw_only=True)
class SvmProtocol(Protocol):
    """A linear support vector machine for each class against the others; a held-out tenth of the training features
    selects C.
    """

    C: Candidates = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
    """Candidates for the weight of the sum of squared hinge losses relative to ½‖W‖², in ascending order."""
    iterations: Number = 200
    """Maximum number of iterations per fit."""
    standardize: bool = True
    """Standardise the features by the statistics of the training images."""


@dataclass(frozen=True, kw_only=True)
class FewShotProtocol(Protocol):
    """Logistic regression on a few labels per class; mean and standard deviation over random draws of the labelled
    images.
    """

    labels: Annotated[tuple[Number, ...], NOT_EMPTY] = (2,)
    """Labels per class; each number is a score."""
    draws: Number = 20
    """Random draws of the labelled images."""
    penalty: Weight = 1e-2
    """Weight of ½‖W‖² relative to the mean loss."""
    standardize: bool = True
    """Standardise the features by the statistics of all training images, labelled or not."""


@dataclass(frozen=True, kw_only=True)
class FractionsProtocol(Protocol):
    """Logistic regression on a fraction of the labels of each class; mean and standard deviation over random draws."""

    fractions: Annotated[tuple[Annotated[float, between(1e-9, 1)], ...], NOT_EMPTY] = (0.01, 0.1)
    """Shares of the labels of each class, at least one label per class; each share is a score."""
    draws: Number = 5
    """Random draws of the labelled images."""
    penalties: Candidates = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5)
    """Candidates for the weight of ½‖W‖²; a held-out tenth of the drawn images selects one."""
    iterations: Number = 100
    """Maximum number of iterations per fit."""
    standardize: bool = True
    """Standardise the features by the statistics of all training images, labelled or not."""


PROTOCOLS: dict[str, type[Protocol]] = {
    "linear": LinearProtocol,
    "linear-sgd": SgdProtocol,
    "linear-imagenet": AdamProtocol,
    "knn": KnnProtocol,
    "svm": SvmProtocol,
    "few-shot": FewShotProtocol,
    "fractions": FractionsProtocol,
}
"""The protocol of each probe, by the name of the probe."""
DEFAULT_PROBES = ("linear", "linear-sgd", "knn", "few-shot")
"""The probes of `fullrank evaluate` without `--probes`."""


@dataclass(frozen=True, kw_only=True)
class Protocols:
    """The numbers of every probe."""

    linear: LinearProtocol = field(default_factory=LinearProtocol)
    """Full-batch logistic regression."""
    linear_sgd: SgdProtocol = field(default_factory=SgdProtocol)
    """SGD, as in the papers on CIFAR and STL-10."""
    linear_imagenet: AdamProtocol = field(default_factory=AdamProtocol)
    """Adam, as in FroSSL's paper on ImageNet."""
    knn: KnnProtocol = field(default_factory=KnnProtocol)
    """Weighted nearest neighbours."""
    svm: SvmProtocol = field(default_factory=SvmProtocol)
    """Linear support vector machine."""
    few_shot: FewShotProtocol = field(default_factory=FewShotProtocol)
    """A few labels per class."""
    fractions: FractionsProtocol = field(default_factory=FractionsProtocol)
    """A fraction of the labels."""


def resolve_protocols(given: "Mapping[str, Any] | Protocols | None") -> dict[str, Protocol]:
    """Return the protocol of every probe: the given ones, and defaults for the others.

    Args:
        given: probe → a protocol, or some of its numbers: `{"knn": {"k": 200}}`.

    Raises:
        UserError: a probe or a number is unknown, or a value does not fit.

    >>> resolve_protocols({"knn": {"k": 200}})["knn"]
    KnnProtocol(k=200, temperature=0.07)
    """
    if isinstance(given, Protocols):
        return {name: getattr(given, name.replace("-", "_")) for name in PROTOCOLS}
    if given is not None and not isinstance(given, Mapping):
        raise UserError(f"protocols is {given!r:.60}, expected a dict such as {{'knn': {{'k': 200}}}}")
    protocols = {name: kind() for name, kind in PROTOCOLS.items()}
    for name, value in (given or {}).items():
        kind = pick(name, PROTOCOLS, "probe")
        if isinstance(value, Mapping):
            value = structure({**asdict(protocols[name]), **value}, kind, name)
        if not isinstance(value, kind):
            raise UserError(
                f"protocols['{name}'] is {value!r:.60}, expected a {kind.__name__} or a dict of its numbers"
            )
        protocols[name] = value
    return protocols


def protocol_numbers(protocol: Protocol, **changes: Any) -> dict[str, Any]:
    """Return the fields as JSON values; `changes` replace some of them.

    >>> protocol_numbers(FewShotProtocol(), labels=2)
    {'labels': 2, 'draws': 20, 'penalty': 0.01, 'standardize': True}
    """
    numbers = asdict(protocol) | changes
    return {name: list(value) if isinstance(value, tuple) else value for name, value in numbers.items()}


def changed_numbers(protocol: Protocol, *, except_for: str = "") -> str:
    """Return the fields that differ from the defaults, for the name of a score; empty for the defaults.

    >>> changed_numbers(SgdProtocol(lr=(0.1, 1.0), standardize=False)), changed_numbers(SgdProtocol())
    (', lr 0.1 1, standardize no', '')
    """
    default = type(protocol)()
    changed = (
        (f.name, getattr(protocol, f.name))
        for f in fields(protocol)
        if getattr(protocol, f.name) != getattr(default, f.name)
    )
    return "".join(f", {name.replace('_', ' ')} {_words(value)}" for name, value in changed if name != except_for)


def _words(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return " ".join(map(_words, value)) or "none"
    return repr(value).removesuffix(".0")  # every digit, because two protocols must not have the same name
