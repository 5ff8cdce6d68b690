"""Which method an objective takes, by the names of its tensors, with the numbers of what surrounds it in the signature of its builder."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import nn

from fullrank.errors import UserError
from fullrank.methods.heads import ClipToUnitBall, L2Normalize, Prototypes, build_predictor
from fullrank.methods.joint_embedding import JointEmbedding
from fullrank.methods.method import Method
from fullrank.methods.objective_state import ObjectiveState
from fullrank.methods.teacher_student import TeacherStudent
from fullrank.objectives import OBJECTIVES, Objective
from fullrank.objectives.algebra import unit
from fullrank.objectives.corinfomax import corinfomax_moments
from fullrank.objectives.dino import dino_center
from fullrank.objectives.moco import moco_queue
from fullrank.objectives.signature import in_step, tensor_names
from fullrank.objectives.tico import tico_covariance


class Encoder(NamedTuple):
    """A backbone with its projector."""

    backbone: nn.Module
    projector: nn.Module
    dimensions: int
    """D of the embeddings."""


EncoderFactory = Callable[[], Encoder]
"""Makes a branch with fresh weights."""

Builder = Callable[..., Method]
"""(make_encoder, objective with its numbers bound, views V) and its own numbers → the method."""


def siamese(make_encoder: EncoderFactory, objective: Objective, views: int, *, shared: bool = True) -> JointEmbedding:
    """Z, or R: one branch for all views, or a branch with weights of its own for each (`shared=False`; the first view's is kept).

    Args:
        shared: False: each view has a backbone and a projector of its own.
    """
    branch, view_encoders = _branches(make_encoder, views, shared=shared)
    return JointEmbedding(branch.backbone, branch.projector, objective, view_encoders=view_encoders)


def spectral_contrastive(make_encoder: EncoderFactory, objective: Objective, views: int, *, shared: bool = True) -> JointEmbedding:
    """Z in the unit ball, as in the authors' code of the spectral contrastive loss, which has no lower bound on a batch without it.

    Args:
        shared: False: each view has a backbone and a projector of its own.
    """
    branch, view_encoders = _branches(make_encoder, views, shared=shared)
    return JointEmbedding(branch.backbone, branch.projector, objective, head=ClipToUnitBall(), view_encoders=view_encoders)


def swav(
    make_encoder: EncoderFactory, objective: Objective, views: int, *, prototypes: int = 512, freeze: float = 1.0, shared: bool = True
) -> JointEmbedding:
    """S, cosines with prototypes that are frozen for the first `freeze` epochs (SwAV; its authors take 3,000 prototypes).

    Args:
        prototypes: their number K.
        freeze: epochs during which the prototypes do not learn.
        shared: False: each view has a backbone and a projector of its own.
    """
    branch, view_encoders = _branches(make_encoder, views, shared=shared)
    head = Prototypes(branch.dimensions, prototypes, freeze=freeze)
    return JointEmbedding(branch.backbone, branch.projector, objective, head=head, view_encoders=view_encoders)


def corinfomax(make_encoder: EncoderFactory, objective: Objective, views: int, *, shared: bool = True) -> JointEmbedding:
    """Z of unit rows, with running covariances R, from the identity, and means mu, from zero, of both views (CorInfoMax).

    Args:
        shared: False: each view has a backbone and a projector of its own.
    """
    branch, view_encoders = _branches(make_encoder, views, shared=shared)
    start = {"R": torch.eye(branch.dimensions).repeat(2, 1, 1), "mu": torch.zeros(2, branch.dimensions)}
    memory = ObjectiveState(in_step(corinfomax_moments, objective), **start)
    return JointEmbedding(branch.backbone, branch.projector, objective, head=L2Normalize(), view_encoders=view_encoders, memory=memory)


def _branches(make_encoder: EncoderFactory, views: int, *, shared: bool) -> tuple[Encoder, list[tuple[nn.Module, nn.Module]]]:
    """Return the first view's branch, and those of the others where they have weights of their own."""
    first, *others = [make_encoder() for _ in range(1 if shared else views)]
    return first, [(branch.backbone, branch.projector) for branch in others]


def simsiam(
    make_encoder: EncoderFactory, objective: Objective, views: int, *, predictor: int = 512, momentum: tuple[float, float] | None = None
) -> TeacherStudent:
    """P, a prediction through `predictor` hidden units, and T, the embeddings themselves (SimSiam) or, with a `momentum`, as BYOL's.

    Args:
        predictor: hidden units of the predictor.
        momentum: of the target's moving average, first and last, by half a cosine over the run.
    """
    branch = make_encoder()
    head = build_predictor(branch.dimensions, predictor)
    return TeacherStudent(branch.backbone, branch.projector, objective, head=head, momentum=momentum)


def byol(
    make_encoder: EncoderFactory, objective: Objective, views: int, *, predictor: int = 512, momentum: tuple[float, float] = (0.99, 1.0)
) -> TeacherStudent:
    """P, a prediction through `predictor` hidden units, and T from a moving average (BYOL; its authors take 4,096 units).

    Args:
        predictor: hidden units of the predictor.
        momentum: of the target's moving average, first and last, by half a cosine over the run.
    """
    return simsiam(make_encoder, objective, views, predictor=predictor, momentum=momentum)


def moco(
    make_encoder: EncoderFactory, objective: Objective, views: int, *, queue: int = 4096, momentum: tuple[float, float] = (0.99, 0.999)
) -> TeacherStudent:
    """Q, keys K from a moving average, and a queue of earlier keys (MoCo v2; its authors take 65,536 on ImageNet).

    Args:
        queue: keys of earlier batches that are kept.
        momentum: of the target's moving average, first and last, by half a cosine over the run.
    """
    branch = make_encoder()
    memory = ObjectiveState(moco_queue, queue=unit(torch.randn(queue, branch.dimensions), dim=-1))
    return TeacherStudent(branch.backbone, branch.projector, objective, momentum=momentum, memory=memory)


def dino(
    make_encoder: EncoderFactory,
    objective: Objective,
    views: int,
    *,
    prototypes: int = 4096,
    freeze: float = 1.0,
    momentum: tuple[float, float] = (0.996, 1.0),
) -> TeacherStudent:
    """S and T, cosines with prototypes of the online branch and of its moving average, and the centre c of T (DINO).

    Args:
        prototypes: their number K.
        freeze: epochs during which the prototypes do not learn.
        momentum: of the target's moving average, first and last, by half a cosine over the run.
    """
    branch = make_encoder()
    head = Prototypes(branch.dimensions, prototypes, freeze=freeze)
    memory = ObjectiveState(in_step(dino_center, objective), c=torch.zeros(prototypes))
    return TeacherStudent(branch.backbone, branch.projector, objective, head=head, momentum=momentum, ema_head=True, memory=memory)


def tico(make_encoder: EncoderFactory, objective: Objective, views: int, *, momentum: tuple[float, float] = (0.99, 1.0)) -> TeacherStudent:
    """Z, T from a moving average, and the running covariance C of Z, from zero (TiCo).

    Args:
        momentum: of the target's moving average, first and last, by half a cosine over the run.
    """
    branch = make_encoder()
    memory = ObjectiveState(in_step(tico_covariance, objective), C=torch.zeros(branch.dimensions, branch.dimensions))
    return TeacherStudent(branch.backbone, branch.projector, objective, momentum=momentum, memory=memory)


BY_TENSORS: dict[tuple[str, ...], Builder] = {
    ("Z",): siamese,
    ("R",): siamese,
    ("S",): swav,
    ("Z", "R", "mu"): corinfomax,
    ("P", "T"): simsiam,
    ("Q", "K", "queue"): moco,
    ("S", "T", "c"): dino,
    ("Z", "T", "C"): tico,
}
"""Names of an objective's tensors → the builder of its method."""

SPECIAL: dict[str, Builder] = {"byol": byol, "spectral_contrastive": spectral_contrastive}
"""The objectives that take another method than the first of their tensors."""

METHODS: dict[str, Builder] = {name: BY_TENSORS[tensor_names(f)] for name, f in OBJECTIVES.items()} | SPECIAL
"""Name of an objective → the builder of its method."""


def method_builder(name: str, objective: Objective) -> Builder:
    """Return the builder of an objective's method: of the library's own by its name, of another by the names of its tensors.

    Raises:
        UserError: no method supplies tensors of those names.

    >>> from fullrank.objectives import frossl
    >>> method_builder("mine:loss", frossl).__name__
    'joint'
    """
    if name in METHODS:
        return METHODS[name]
    tensors = tensor_names(objective)
    if tensors not in BY_TENSORS:
        known = ", ".join(f"({', '.join(names)})" for names in BY_TENSORS)
        raise UserError(f"objective '{name}' takes ({', '.join(tensors)}) by position, expected one of {known}; numbers go behind a *")
    return BY_TENSORS[tensors]
