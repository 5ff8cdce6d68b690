"""Objectives of joint-embedding learning: pure functions of the embeddings of the whole batch, one file each.

An objective returns weighted terms by name; their sum is the loss to minimise. Tensors are positional arguments, named
as in the papers; hyperparameters are keyword-only, with the default in the signature.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

from fullrank.objectives.barlow_twins import barlow_twins
from fullrank.objectives.byol import byol
from fullrank.objectives.combined import CombinedObjective
from fullrank.objectives.corinfomax import corinfomax
from fullrank.objectives.corinfomax_batch import corinfomax_batch
from fullrank.objectives.dino import dino
from fullrank.objectives.directclr import directclr
from fullrank.objectives.directclr_paper import directclr_paper
from fullrank.objectives.emp_ssl import emp_ssl
from fullrank.objectives.frossl import frossl
from fullrank.objectives.ivne import ivne
from fullrank.objectives.lejepa import lejepa
from fullrank.objectives.mmcr import mmcr
from fullrank.objectives.moco import moco
from fullrank.objectives.moco_v3 import moco_v3
from fullrank.objectives.nnclr import nnclr
from fullrank.objectives.rdmreg import rdmreg
from fullrank.objectives.signature import ObjectiveState, stateful, tensor_names
from fullrank.objectives.simclr import simclr
from fullrank.objectives.simmer import simmer
from fullrank.objectives.simsiam import simsiam
from fullrank.objectives.spectral_contrastive import spectral_contrastive
from fullrank.objectives.ssl_hsic import ssl_hsic
from fullrank.objectives.ssl_hsic_teacher import ssl_hsic_teacher
from fullrank.objectives.swav import swav
from fullrank.objectives.terms import Terms, total
from fullrank.objectives.tico import tico
from fullrank.objectives.vibcreg import vibcreg
from fullrank.objectives.vicreg import vicreg
from fullrank.objectives.visreg import visreg
from fullrank.objectives.wmse import wmse

__all__ = [
    "OBJECTIVES", "Objective", "ObjectiveState", "Terms", "barlow_twins", "byol", "corinfomax", "corinfomax_batch",
    "dino", "directclr", "directclr_paper", "emp_ssl", "find_objective", "find_state", "frossl", "ivne", "lejepa",
    "mmcr", "moco", "moco_v3", "nnclr", "rdmreg", "simclr", "simmer", "simsiam", "spectral_contrastive", "ssl_hsic",
    "ssl_hsic_teacher", "stateful", "swav", "tico", "total", "vibcreg", "vicreg", "visreg", "wmse",
]  # fmt: skip

# A function of embeddings, and of a state if there is one, that returns named weighted terms.
Objective = Callable[..., Terms]
# Every objective by its name.
OBJECTIVES: dict[str, Objective] = {
    f.__name__: f
    for f in (
        *(simclr, moco, moco_v3, nnclr, swav, spectral_contrastive),  # compare samples
        *(simsiam, byol, dino),  # predict
        *(vicreg, vibcreg, barlow_twins, wmse, corinfomax, corinfomax_batch, frossl, tico),  # compare dimensions
        *(ssl_hsic, ssl_hsic_teacher, ivne, simmer),  # kernels and entropies
        *(lejepa, visreg, rdmreg, mmcr, emp_ssl),  # distributions
        *(directclr, directclr_paper),  # without a projector
    )
}

# Objectives of sums over the samples, which several processes can add up (`fullrank.distributed.on_shards`).
OF_SUMS = (frossl, vicreg, vibcreg, barlow_twins, corinfomax, corinfomax_batch, tico, ivne, emp_ssl)


def is_of_sums(objective: Callable[..., Any]) -> bool:
    """Return whether an objective, perhaps with bound hyperparameters, or each summand of a sum is in `OF_SUMS`.

    >>> is_of_sums(partial(frossl, invariance=2.0)), is_of_sums(simclr), is_of_sums(find_objective("frossl + simclr"))
    (True, False, False)
    """
    while isinstance(objective, partial):
        objective = objective.func
    if isinstance(objective, CombinedObjective):
        return all(is_of_sums(summand.objective) for summand in objective.summands)
    return objective in OF_SUMS


@cache
def find_objective(name: str) -> Objective:
    """Return the objective of that name, or a sum of objectives such as "frossl + 0.5 byol" (`CombinedObjective`).

    Raises:
        UserError: there is no such objective.

    >>> find_objective("frossl").__name__
    'frossl'
    """
    return OBJECTIVES[name] if name in OBJECTIVES else CombinedObjective(name, OBJECTIVES)


_STATES: list[ObjectiveState] = [f.state for f in OBJECTIVES.values() if hasattr(f, "state")]  # pyright: ignore[reportFunctionMemberAccess]


def find_state(objective: Callable[..., Any]) -> ObjectiveState | None:
    """Return the state of an objective; None if it has none.

    A state that `stateful` attached comes first. Otherwise, the function has the state of a library objective if it
    takes all tensors of that state and the embeddings that the update needs, by the same names.

    >>> list(find_state(moco).tensors), find_state(simclr)
    (['queue'], None)
    >>> list(find_state(lambda Z, R, mu: {}).tensors)
    ['R', 'mu']
    """
    names = set(tensor_names(objective))
    while isinstance(objective, partial):
        objective = objective.func
    if state := getattr(objective, "state", None):
        return state
    return next((state for state in _STATES if set(tensor_names(state.update)) <= names), None)
