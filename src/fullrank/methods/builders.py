"""Builders of methods. The names of an objective's tensors select the builder; its signature defines the method's
hyperparameters.
"""

from collections.abc import Callable
from functools import partial, wraps
from typing import Annotated, Any, NamedTuple

from pydantic import Field
from torch import nn

from fullrank.config import Share
from fullrank.errors import UserError
from fullrank.methods.heads import ClipToUnitBall, L2Normalize, Prototypes, build_predictor
from fullrank.methods.joint_embedding import JointEmbedding, QueuedJointEmbedding
from fullrank.methods.method import Method, StateBuffers
from fullrank.methods.teacher_student import TeacherStudent
from fullrank.objectives import OBJECTIVES, Objective, find_state
from fullrank.objectives.combined import CombinedObjective
from fullrank.objectives.signature import hyperparameters, optional_tensor_names, tensor_names

Size = Annotated[int, Field(ge=1, le=10_000_000)]
QueueSize = Annotated[int, Field(ge=0, le=10_000_000)]
Epochs = Annotated[float, Field(ge=0, le=1_000_000)]
Temperature = Annotated[float, Field(ge=1e-6, le=1e6)]
Momentum = tuple[Share, Share]


class Encoder(NamedTuple):
    """A backbone with its projector (base encoder and projection head).

    Attributes:
        dimensions: D of the embeddings.
    """

    backbone: nn.Module
    projector: nn.Module
    dimensions: int


# A function that builds an encoder with new weights.
MakeEncoder = Callable[[], Encoder]
# A function (make_encoder, objective with bound hyperparameters, number of views V, *, hyperparameters of the method)
# → method.
Builder = Callable[..., Method]


def build_siamese(
    make_encoder: MakeEncoder, objective: Objective, views: int, *, shared: bool = True
) -> JointEmbedding:
    """Build the method of an objective that takes Z or R, with one encoder for all views or one per view.

    Args:
        shared: False: each view has a separate backbone and projector; the run saves the backbone of the first view.
    """
    return _joint_embedding(make_encoder, objective, views, shared=shared)


def build_spectral_contrastive(
    make_encoder: MakeEncoder, objective: Objective, views: int, *, shared: bool = True
) -> JointEmbedding:
    """Build the method of the spectral contrastive loss, with Z clipped to the unit ball as in the authors' code, to
    bound the loss below.

    Args:
        shared: False: each view has a separate backbone and projector.
    """
    return _joint_embedding(make_encoder, objective, views, shared=shared, head=lambda D: ClipToUnitBall())


def build_swav(
    make_encoder: MakeEncoder,
    objective: Objective,
    views: int,
    *,
    prototypes: Size = 512,
    freeze: Epochs = 1.0,
    queue: QueueSize = 0,
    queue_start: Epochs = 0.0,
    shared: bool = True,
) -> JointEmbedding:
    """Build the method of SwAV, which supplies the cosines S with prototypes.

    Args:
        prototypes: number K of prototypes (the authors use 3,000).
        freeze: number of epochs at the start in which the prototypes are not trained.
        queue: number of earlier embeddings of each full-size view that take part in the assignment (the authors use
            3,840); 0: none.
        queue_start: epoch from which the queue is used, if it is full by then.
        shared: False: each view has a separate backbone and projector.

    Raises:
        UserError: there is a queue, but the objective takes none.
    """
    if queue and "queue" not in optional_tensor_names(objective):
        takes = "but the objective takes no `queue=None` by position"
        raise UserError(f"method.queue is {queue}, {takes}; give --method.queue 0")
    full = hyperparameters(objective).get("full", views)
    kind = partial(QueuedJointEmbedding, full=full, size=queue, start=queue_start) if queue else JointEmbedding
    head = partial(Prototypes, number=prototypes, freeze=freeze)
    return _joint_embedding(make_encoder, objective, views, shared=shared, head=head, kind=kind, K=prototypes)


def build_corinfomax(
    make_encoder: MakeEncoder, objective: Objective, views: int, *, shared: bool = True
) -> JointEmbedding:
    """Build the method of CorInfoMax, which supplies Z with L2-normalised rows, and the running covariances R and means
    mu of both views.

    Args:
        shared: False: each view has a separate backbone and projector.
    """
    return _joint_embedding(make_encoder, objective, views, shared=shared, head=lambda D: L2Normalize())


def build_simsiam(
    make_encoder: MakeEncoder,
    objective: Objective,
    views: int,
    *,
    predictor: Size = 512,
    momentum: Momentum | None = None,
) -> TeacherStudent:
    """Build the method of SimSiam, which supplies predictions P and targets T: the embeddings, or with `momentum` the
    embeddings of an EMA.

    Args:
        predictor: hidden units of the predictor.
        momentum: first and last momentum of the teacher's EMA, with a half-cosine schedule over the run.
    """
    encoder = make_encoder()
    head = build_predictor(encoder.dimensions, predictor)
    return _teacher_student(encoder, objective, views, head=head, momentum=momentum)


def build_byol(
    make_encoder: MakeEncoder,
    objective: Objective,
    views: int,
    *,
    predictor: Size = 512,
    momentum: Momentum = (0.99, 1.0),
) -> TeacherStudent:
    """Build the method of BYOL, which supplies predictions P, and targets T from an EMA (the authors use 4,096 hidden
    units).

    Args:
        predictor: hidden units of the predictor.
        momentum: first and last momentum of the teacher's EMA, with a half-cosine schedule over the run.
    """
    return build_simsiam(make_encoder, objective, views, predictor=predictor, momentum=momentum)


def build_nnclr(
    make_encoder: MakeEncoder, objective: Objective, views: int, *, predictor: Size = 512, queue: Size = 4096
) -> TeacherStudent:
    """Build the method of NNCLR, which supplies predictions P, the embeddings T, and a queue of earlier embeddings.

    Args:
        predictor: hidden units of the predictor (the authors use 4,096).
        queue: number of embeddings in the queue (the authors use 98,304 on ImageNet).
    """
    encoder = make_encoder()
    head = build_predictor(encoder.dimensions, predictor)
    return _teacher_student(encoder, objective, views, head=head, size=queue)


def build_moco(
    make_encoder: MakeEncoder,
    objective: Objective,
    views: int,
    *,
    queue: Size = 4096,
    momentum: Momentum = (0.99, 0.999),
) -> TeacherStudent:
    """Build the method of MoCo v2, which supplies queries Q, keys K from an EMA, and a queue of earlier keys.

    Args:
        queue: number of keys in the queue (the authors use 65,536 on ImageNet).
        momentum: first and last momentum of the teacher's EMA, with a half-cosine schedule over the run.
    """
    return _teacher_student(make_encoder(), objective, views, momentum=momentum, size=queue)


def build_dino(
    make_encoder: MakeEncoder,
    objective: Objective,
    views: int,
    *,
    prototypes: Size = 4096,
    freeze: Epochs = 1.0,
    momentum: Momentum = (0.996, 1.0),
    temperature_warmup: Epochs = 0.0,
    first_temperature: Temperature = 0.04,
) -> TeacherStudent:
    """Build the method of DINO, which supplies the student's and the teacher's cosines with prototypes, S and T, and
    the centre c of T.

    Args:
        prototypes: number K of prototypes.
        freeze: number of epochs at the start in which the prototypes are not trained.
        momentum: first and last momentum of the teacher's EMA, with a half-cosine schedule over the run.
        temperature_warmup: number of epochs in which the teacher's temperature goes linearly from `first_temperature`
            to the objective's `teacher_temperature`; 0: it is constant.
        first_temperature: the teacher's temperature in the first step of its warm-up.

    Raises:
        UserError: the temperature has a warm-up, but the objective has no `teacher_temperature`.
    """
    encoder = make_encoder()
    head = Prototypes(encoder.dimensions, prototypes, freeze=freeze)
    method = _teacher_student(encoder, objective, views, head=head, momentum=momentum, teacher_head=True, K=prototypes)
    if temperature_warmup:
        last = hyperparameters(objective).get("teacher_temperature")
        if last is None:
            has_none = "but the objective has no teacher_temperature; give --method.temperature-warmup 0"
            raise UserError(f"method.temperature_warmup is {temperature_warmup}, {has_none}")
        warmup = partial(linear_warmup, length=temperature_warmup, first=first_temperature, last=last)
        method.schedules = {"teacher_temperature": warmup}
    return method


def linear_warmup(epoch: float, *, length: float, first: float, last: float) -> float:
    """Return the value at `epoch` of a straight line from `first` at epoch 0 to `last` at epoch `length`, and `last`
    afterwards.

    Source: Caron et al. 2021, Emerging Properties in Self-Supervised Vision Transformers, Section 3.2, for the
    teacher's temperature; the authors' code takes a step at each epoch, with the first and the last value in the first
    and the last epoch of the warm-up.

    >>> [round(linear_warmup(epoch, length=30.0, first=0.04, last=0.07), 3) for epoch in (0.0, 10.0, 30.0, 50.0)]
    [0.04, 0.05, 0.07, 0.07]
    """
    return first + (last - first) * epoch / length if epoch < length else last


def build_tico(
    make_encoder: MakeEncoder, objective: Objective, views: int, *, momentum: Momentum = (0.99, 1.0)
) -> TeacherStudent:
    """Build the method of TiCo, which supplies embeddings Z, targets T from an EMA, and the running covariance C of Z.

    Args:
        momentum: first and last momentum of the teacher's EMA, with a half-cosine schedule over the run.
    """
    return _teacher_student(make_encoder(), objective, views, momentum=momentum)


def _joint_embedding(
    make_encoder: MakeEncoder,
    objective: Objective,
    views: int,
    *,
    shared: bool,
    head: Callable[[int], nn.Module] | None = None,
    kind: Callable[..., JointEmbedding] = JointEmbedding,
    **sizes: int,
) -> JointEmbedding:
    """Build a `JointEmbedding`. `head` builds the head from D; `sizes` are the sizes of the state's axes other than V
    and D.
    """
    encoder, *others = [make_encoder() for _ in range(1 if shared else views)]
    return kind(
        encoder.backbone,
        encoder.projector,
        objective,
        head=head(encoder.dimensions) if head else None,
        view_encoders=[(other.backbone, other.projector) for other in others],
        state=build_state(objective, V=views, D=encoder.dimensions, **sizes),
    )


def _teacher_student(
    encoder: Encoder, objective: Objective, views: int, *, K: int = 0, size: int = 0, **options: Any
) -> TeacherStudent:
    """Build a `TeacherStudent`; K and size are the sizes of the state's axes other than V and D."""
    state = build_state(objective, V=views, D=encoder.dimensions, K=K, size=size)
    return TeacherStudent(encoder.backbone, encoder.projector, objective, state=state, **options)


def build_state(objective: Objective, **sizes: int) -> StateBuffers | None:
    """Build the buffers of an objective's state; None if it has no state."""
    state = find_state(objective)
    return StateBuffers(state, objective, **sizes) if state else None


# Names of an objective's tensors, with or without those of its state → the builder of its method.
BY_TENSORS: dict[tuple[str, ...], Builder] = {
    ("Z",): build_siamese,
    ("R",): build_siamese,
    ("S",): build_swav,
    ("Z", "R", "mu"): build_corinfomax,
    ("P", "T"): build_simsiam,
    ("P", "T", "queue"): build_nnclr,
    ("Q", "K"): build_moco,
    ("S", "T"): build_dino,
    ("Z", "T"): build_tico,
}
# Name of an objective → the builder of its method, if its tensors would select another one.
BY_NAME: dict[str, Builder] = {
    "byol": build_byol,
    "moco_v3": build_byol,
    "ssl_hsic_teacher": build_byol,
    "spectral_contrastive": build_spectral_contrastive,
}


def method_builder(name: str, objective: Objective) -> Builder:
    """Return the builder of an objective's method: by its name, else by the names of its tensors.

    Raises:
        UserError: no builder supplies tensors of those names, or those of all objectives of a sum.

    >>> from fullrank.objectives import frossl
    >>> method_builder("mine:loss", frossl).__name__
    'build_siamese'
    """
    if isinstance(objective, CombinedObjective):
        return combined_builder(objective)
    if name in BY_NAME:
        return BY_NAME[name]
    names, state = tensor_names(objective), find_state(objective)
    embeddings = tuple(name for name in names if name != "labels" and not (state and name in state.tensors))
    library = [find_state(each) for each in OBJECTIVES.values()]
    first, second = (names, embeddings) if state in library else (embeddings, names)  # a state of the user's own
    if builder := BY_TENSORS.get(first) or BY_TENSORS.get(second):
        return builder
    known = ", ".join(f"({', '.join(tensors)})" for tensors in BY_TENSORS)
    raise UserError(
        f"objective '{name}' takes ({', '.join(names)}) by position, expected one of {known}, and the tensors of a "
        "state; make hyperparameters keyword-only (after `*`), declare a state with `@stateful`, or write a builder"
    )


def combined_builder(combined: CombinedObjective) -> Builder:
    """Return the builder of a sum's method: that of the summand that needs more than Z or R, whose networks supply the
    tensors of the others too.

    Raises:
        UserError: two summands need different networks.
    """
    special = {METHODS[each.name]: each for each in combined.summands if METHODS[each.name] is not build_siamese}
    if len(special) > 1:
        names = " and ".join(each.name for each in special.values())
        raise UserError(f"objective '{combined.__name__}': {names} need different networks; leave one out")
    main = next(iter(special.values()), combined.summands[0])

    @wraps(METHODS[main.name])
    def build(make_encoder: MakeEncoder, objective: Objective, views: int, **options: Any) -> Method:
        method = METHODS[main.name](make_encoder, main.objective, views, **options)
        method.objective = objective
        return method

    return build


# Name of a library objective → the builder of its method.
METHODS: dict[str, Builder] = {name: method_builder(name, objective) for name, objective in OBJECTIVES.items()}
