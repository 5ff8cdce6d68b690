"""An objective taken on random groups of dimensions, and summed."""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from fullrank.errors import UserError
from fullrank.methods.step_random import StepRandomModule, shuffled
from fullrank.objectives import Terms


class Grouped(StepRandomModule):
    """An objective of G groups of dimensions, parted at random anew before each step. With I_1 ∪ … ∪ I_G = {1 … D},

        ℒ_G(Z) = Σ_g ℒ(Z[…, I_g])

    Every dimension gets a gradient at each step, and no pair of them is always in one group. The groups are those of all views,
    samples and processes. All tensors that the objective takes are parted alike: along each axis that its signature names like the
    last axis of its first tensor (D, or K where that tensor holds cosines with prototypes). Where a signature names no axes, that is
    the last one of each tensor.

    Args:
        objective: with its numbers bound.
        groups: G; their sizes differ by one at most.
        seed: the parts are a function of (seed, step); before the first step they are those of step 0.

    Source: Jing et al. 2022, Understanding Dimensional Collapse in Contrastive Self-supervised Learning: not in the paper, but a mode
    of its public code, with D = 2048 and G = 8 on InfoNCE, which draws on each process for itself.

    >>> from fullrank.objectives import simclr
    >>> Z = torch.randn(2, 8, 6)
    >>> one = Grouped(simclr, groups=1, seed=0)(Z)
    >>> torch.testing.assert_close(one, simclr(Z))
    """

    def __init__(self, objective: Callable[..., Terms], *, groups: int, seed: int) -> None:
        super().__init__()
        self.objective, self.groups, self.seed, self.step = objective, groups, seed, 0
        self.__signature__ = inspect.signature(objective)  # what tells a method which tensors and numbers an objective takes

    def before_step(self, step: int) -> None:
        """Part the dimensions anew."""
        self.step = step

    def forward(self, *tensors: Tensor) -> Terms:
        """Return the sum of each term over the groups.

        Raises:
            UserError: more groups than dimensions.
        """
        D = tensors[0].shape[-1]
        if self.groups > D:
            raise UserError(f"projector.groups is {self.groups}, but there are {D} dimensions to part; choose 1 to {D} groups")
        names = [_names(parameter.annotation) for parameter in self.__signature__.parameters.values()]
        axes = [_axes_to_part(own, names[0]) for own in names]
        parts = shuffled(self.seed, self.step, D).to(tensors[0].device).tensor_split(self.groups)
        found = [self.objective(*(_part(X, at, rows) for X, at in zip(tensors, axes, strict=False))) for rows in parts]
        return {name: torch.stack([terms[name] for terms in found]).sum() for name in found[0]}


def _names(annotation: Any) -> list[str]:
    """Return how an annotation names the axes of a tensor: ["2", "N", "D"]; [] where it does not."""
    return getattr(annotation, "dim_str", "").split()


def _axes_to_part(names: list[str], first: list[str]) -> list[int]:
    """Return the axes, counted from the last, that are named like the last one of the first tensor; where names are missing, the last."""
    return [axis for axis in range(-len(names), 0) if names[axis] == first[-1]] if names and first else [-1]


def _part(X: Float[Tensor, "..."], axes: list[int], rows: Int64[Tensor, " d"]) -> Float[Tensor, "..."]:
    for axis in axes:
        X = X.index_select(axis, rows)
    return X
