"""Which method an objective takes, by the names of its tensors, with the numbers of what surrounds it in the signature of its builder."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import nn

from fullrank.errors import UserError
from fullrank.methods.asymmetric import Asymmetric
from fullrank.methods.heads import Prototypes, ShortRows, UnitRows, build_predictor
from fullrank.methods.joint import JointEmbedding
from fullrank.methods.memory import Memory
from fullrank.methods.method import Method
from fullrank.objectives import OBJECTIVES, Objective
from fullrank.objectives.algebra import unit
from fullrank.objectives.corinfomax import corinfomax_moments
from fullrank.objectives.dino import dino_center
from fullrank.objectives.moco import moco_queue
from fullrank.objectives.signature import in_step, tensors_of
from fullrank.objectives.tico import tico_covariance


class Branch(NamedTuple):
    """A backbone with its projector."""

    backbone: nn.Module
    projector: nn.Module
    dimensions: int
    """D of the embeddings."""


Grow = Callable[[], Branch]
"""Makes a branch with fresh weights."""

Builder = Callable[..., Method]
"""(grow, objective with its numbers bound, views V) and its own numbers → the method."""


def joint(grow: Grow, objective: Objective, views: int, *, shared: bool = True) -> JointEmbedding:
    """Z, or R: one branch for all views, or a branch with weights of its own for each (`shared=False`; the first view's is kept).

    Args:
        shared: False: each view has a backbone and a projector of its own.
    """
    branch, siblings = _branches(grow, views, shared=shared)
    return JointEmbedding(branch.backbone, branch.projector, objective, siblings=siblings)


def bounded(grow: Grow, objective: Objective, views: int, *, shared: bool = True) -> JointEmbedding:
    """Z in the unit ball, as in the authors' code of the spectral contrastive loss, which has no lower bound on a batch without it.

    Args:
        shared: False: each view has a backbone and a projector of its own.
    """
    branch, siblings = _branches(grow, views, shared=shared)
    return JointEmbedding(branch.backbone, branch.projector, objective, head=ShortRows(), siblings=siblings)


def clustered(
    grow: Grow, objective: Objective, views: int, *, prototypes: int = 512, freeze: float = 1.0, shared: bool = True
) -> JointEmbedding:
    """S, cosines with prototypes that are frozen for the first `freeze` epochs (SwAV; its authors take 3,000 prototypes).

    Args:
        prototypes: their number K.
        freeze: epochs during which the prototypes do not learn.
        shared: False: each view has a backbone and a projector of its own.
    """
    branch, siblings = _branches(grow, views, shared=shared)
    head = Prototypes(branch.dimensions, prototypes, freeze=freeze)
    return JointEmbedding(branch.backbone, branch.projector, objective, head=head, siblings=siblings)


def tracked(grow: Grow, objective: Objective, views: int, *, shared: bool = True) -> JointEmbedding:
    """Z of unit rows, with running covariances R, from the identity, and means mu, from zero, of both views (CorInfoMax).

    Args:
        shared: False: each view has a backbone and a projector of its own.
    """
    branch, siblings = _branches(grow, views, shared=shared)
    start = {"R": torch.eye(branch.dimensions).repeat(2, 1, 1), "mu": torch.zeros(2, branch.dimensions)}
    memory = Memory(in_step(corinfomax_moments, objective), **start)
    return JointEmbedding(branch.backbone, branch.projector, objective, head=UnitRows(), siblings=siblings, memory=memory)


def _branches(grow: Grow, views: int, *, shared: bool) -> tuple[Branch, list[tuple[nn.Module, nn.Module]]]:
    """Return the first view's branch, and those of the others where they have weights of their own."""
    first, *others = [grow() for _ in range(1 if shared else views)]
    return first, [(branch.backbone, branch.projector) for branch in others]


def predicted(
    grow: Grow, objective: Objective, views: int, *, predictor: int = 512, momentum: tuple[float, float] | None = None
) -> Asymmetric:
    """P, a prediction through `predictor` hidden units, and T, the embeddings themselves (SimSiam) or, with a `momentum`, as BYOL's.

    Args:
        predictor: hidden units of the predictor.
        momentum: of the target's moving average, first and last, by half a cosine over the run.
    """
    branch = grow()
    head = build_predictor(branch.dimensions, predictor)
    return Asymmetric(branch.backbone, branch.projector, objective, head=head, momentum=momentum)


def bootstrapped(
    grow: Grow, objective: Objective, views: int, *, predictor: int = 512, momentum: tuple[float, float] = (0.99, 1.0)
) -> Asymmetric:
    """P, a prediction through `predictor` hidden units, and T from a moving average (BYOL; its authors take 4,096 units).

    Args:
        predictor: hidden units of the predictor.
        momentum: of the target's moving average, first and last, by half a cosine over the run.
    """
    return predicted(grow, objective, views, predictor=predictor, momentum=momentum)


def queued(grow: Grow, objective: Objective, views: int, *, queue: int = 4096, momentum: tuple[float, float] = (0.99, 0.999)) -> Asymmetric:
    """Q, keys K from a moving average, and a queue of earlier keys (MoCo v2; its authors take 65,536 on ImageNet).

    Args:
        queue: keys of earlier batches that are kept.
        momentum: of the target's moving average, first and last, by half a cosine over the run.
    """
    branch = grow()
    memory = Memory(moco_queue, queue=unit(torch.randn(queue, branch.dimensions), dim=-1))
    return Asymmetric(branch.backbone, branch.projector, objective, momentum=momentum, memory=memory)


def distilled(
    grow: Grow,
    objective: Objective,
    views: int,
    *,
    prototypes: int = 4096,
    freeze: float = 1.0,
    momentum: tuple[float, float] = (0.996, 1.0),
) -> Asymmetric:
    """S and T, cosines with prototypes of the online branch and of its moving average, and the centre c of T (DINO).

    Args:
        prototypes: their number K.
        freeze: epochs during which the prototypes do not learn.
        momentum: of the target's moving average, first and last, by half a cosine over the run.
    """
    branch = grow()
    head = Prototypes(branch.dimensions, prototypes, freeze=freeze)
    memory = Memory(in_step(dino_center, objective), c=torch.zeros(prototypes))
    return Asymmetric(branch.backbone, branch.projector, objective, head=head, momentum=momentum, average_head=True, memory=memory)


def averaged(grow: Grow, objective: Objective, views: int, *, momentum: tuple[float, float] = (0.99, 1.0)) -> Asymmetric:
    """Z, T from a moving average, and the running covariance C of Z, from zero (TiCo).

    Args:
        momentum: of the target's moving average, first and last, by half a cosine over the run.
    """
    branch = grow()
    memory = Memory(in_step(tico_covariance, objective), C=torch.zeros(branch.dimensions, branch.dimensions))
    return Asymmetric(branch.backbone, branch.projector, objective, momentum=momentum, memory=memory)


BY_TENSORS: dict[tuple[str, ...], Builder] = {
    ("Z",): joint,
    ("R",): joint,
    ("S",): clustered,
    ("Z", "R", "mu"): tracked,
    ("P", "T"): predicted,
    ("Q", "K", "queue"): queued,
    ("S", "T", "c"): distilled,
    ("Z", "T", "C"): averaged,
}
"""Names of an objective's tensors → the builder of its method."""

SPECIAL: dict[str, Builder] = {"byol": bootstrapped, "spectral_contrastive": bounded}
"""The objectives that take another method than the first of their tensors."""

METHODS: dict[str, Builder] = {name: BY_TENSORS[tensors_of(f)] for name, f in OBJECTIVES.items()} | SPECIAL
"""Name of an objective → the builder of its method."""


def builder_of(name: str, objective: Objective) -> Builder:
    """Return the builder of an objective's method: of the library's own by its name, of another by the names of its tensors.

    Raises:
        UserError: no method supplies tensors of those names.

    >>> from fullrank.objectives import frossl
    >>> builder_of("mine:loss", frossl).__name__
    'joint'
    """
    if name in METHODS:
        return METHODS[name]
    tensors = tensors_of(objective)
    if tensors not in BY_TENSORS:
        known = ", ".join(f"({', '.join(names)})" for names in BY_TENSORS)
        raise UserError(f"objective '{name}' takes ({', '.join(tensors)}) by position, expected one of {known}; numbers go behind a *")
    return BY_TENSORS[tensors]
