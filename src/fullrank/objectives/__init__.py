"""Objectives of joint-embedding learning: pure functions of the embeddings of the whole batch, one file each.

Each returns its already weighted terms by name; their sum is the loss to minimise. Tensors are positional and named as in the papers,
numbers are keyword-only and have their default in the signature.
"""

from collections.abc import Callable

from fullrank.objectives.barlow_twins import barlow_twins
from fullrank.objectives.frossl import frossl
from fullrank.objectives.simclr import simclr
from fullrank.objectives.terms import Terms
from fullrank.objectives.vicreg import vicreg

__all__ = ["OBJECTIVES", "TWO_VIEWS", "Objective", "Terms", "barlow_twins", "frossl", "simclr", "vicreg"]

Objective = Callable[..., Terms]
"""Embeddings in, named weighted terms out."""

OBJECTIVES: dict[str, Objective] = {f.__name__: f for f in (frossl, simclr, barlow_twins, vicreg)}
"""Every objective by its name."""

TWO_VIEWS: frozenset[Objective] = frozenset({barlow_twins, vicreg})
"""The objectives that are defined for exactly two views; every other one takes two or more."""
