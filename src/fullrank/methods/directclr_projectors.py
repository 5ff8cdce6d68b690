"""The projectors that DirectCLR's paper compares, and random groups of dimensions.

Source: Jing et al. 2022, Understanding Dimensional Collapse in Contrastive Self-supervised Learning.
"""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn.utils.parametrizations import orthogonal

from fullrank.errors import UserError
from fullrank.methods.method import StepModule, TrainingLength
from fullrank.objectives import Terms, find_state
from fullrank.objectives.signature import axis_names

# Extra seed that separates the random numbers of `permutation` from all others that depend on (seed, step).
DIMENSIONS_KEY = 1


class Diagonal(nn.Module):
    """The projector z = s r, element by element; s is fixed unless it is `trained`.

    >>> Diagonal(torch.tensor([1.0, 0.0]))(torch.tensor([[3.0, 4.0]]))
    tensor([[3., 0.]])
    """

    def __init__(self, s: Float[Tensor, " D_b"], *, trained: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(s, requires_grad=trained)

    def forward(self, R: Float[Tensor, "n D_b"]) -> Float[Tensor, "n D_b"]:
        """Scale each dimension."""
        return R * self.weight


def fixed_linear(W: Float[Tensor, "D D_b"]) -> nn.Linear:
    """Build the projector z = W r with a matrix W that is not trained.

    >>> fixed_linear(torch.tensor([[0.0, 1.0]]))(torch.tensor([[3.0, 4.0]]))
    tensor([[4.]])
    """
    linear = nn.Linear(*W.mT.shape, bias=False)
    linear.weight = nn.Parameter(W, requires_grad=False)
    return linear


def random_low_rank_matrix(d0: int, D_b: int) -> Float[Tensor, "D_b D_b"]:
    """Return a random W = U S Vᵀ with d0 singular values 1 and all others 0; U and V are uniform over the orthogonal
    matrices.

    >>> torch.linalg.svdvals(random_low_rank_matrix(2, 4)).round(decimals=4).abs()
    tensor([1., 1., 0., 0.])
    """
    U, V = (nn.init.orthogonal_(torch.empty(D_b, d0)) for _ in range(2))  # the d0 columns with singular value 1
    return U @ V.mT


def orthogonal_linear(D_b: int) -> nn.Linear:
    """Build the projector z = Q r, Q = Q_0 exp(A − Aᵀ), with Q_0 uniform over the orthogonal matrices and A, lower
    triangular, trained.

    Source: Casado and Martínez-Rubio 2019, Cheap Orthogonal Constraints in Neural Networks, which DirectCLR's paper
    uses.

    >>> Q = orthogonal_linear(4).weight
    >>> torch.testing.assert_close(Q @ Q.mT, torch.eye(4))
    """
    linear = nn.Linear(D_b, D_b, bias=False)
    nn.init.orthogonal_(linear.weight)  # the parametrization takes this weight as Q_0
    orthogonal(linear, orthogonal_map="matrix_exp")
    return linear


class SubVector(nn.Module):
    """The projector z = r[:d0]; the other dimensions get no gradient.

    >>> SubVector(2)(torch.tensor([[3.0, 4.0, 5.0]]))
    tensor([[3., 4.]])
    """

    def __init__(self, d0: int) -> None:
        super().__init__()
        self.d0 = d0

    def forward(self, R: Float[Tensor, "n D_b"]) -> Float[Tensor, "n d0"]:
        """Return the first d0 dimensions."""
        return R[:, : self.d0]


def permutation(seed: int, step: int, n: int) -> Int64[Tensor, " n"]:
    """Return a random permutation of n dimensions, a function of (seed, step).

    The generator is NumPy's PCG64, seeded by `SeedSequence` from (seed, step), as for the order of the images.

    >>> permutation(0, 3, 8).sort().values
    tensor([0, 1, 2, 3, 4, 5, 6, 7])
    >>> torch.equal(permutation(0, 3, 8), permutation(0, 3, 8)), torch.equal(permutation(0, 3, 8), permutation(0, 4, 8))
    (True, False)
    """
    sequence = np.random.SeedSequence(seed, spawn_key=(step, DIMENSIONS_KEY))
    return torch.from_numpy(np.random.default_rng(sequence).permutation(n))


class RandomDropout(StepModule):
    """The projector that sets all but d0 random dimensions of r to zero, chosen again in each step; in eval mode z = r.

    The same dimensions are dropped for all samples, views and processes. The selected dimensions keep their index,
    because a predictor, a queue or a running covariance needs the same dimension at the same index in every step. An
    objective on L2-normalised embeddings ignores dimensions that are zero.

    Args:
        D_b: dimension of the representation.
        d0: number of selected dimensions.
        seed: seed of the selection, a function of (seed, step); before the first step, the selection is that of step 0.

    >>> dropout = RandomDropout(4, 2, seed=0)
    >>> dropout(torch.ones(3, 4)).sum(1), dropout.eval()(torch.ones(3, 4)).sum(1)
    (tensor([2., 2., 2.]), tensor([4., 4., 4.]))
    """

    dropped: Tensor

    def __init__(self, D_b: int, d0: int, *, seed: int) -> None:
        super().__init__()
        self.d0, self.seed = d0, seed
        self.register_buffer("dropped", permutation(seed, 0, D_b) >= d0, persistent=False)  # a function of (seed, step)

    def before_step(self, step: int, training_length: TrainingLength) -> None:
        """Choose the d0 dimensions."""
        self.dropped.copy_(permutation(self.seed, step, len(self.dropped)) >= self.d0, non_blocking=True)

    def forward(self, R: Float[Tensor, "n D_b"]) -> Float[Tensor, "n D_b"]:
        """Set the dropped dimensions to zero."""
        return R.masked_fill(self.dropped, 0) if self.training else R


class Grouped(StepModule):
    """The sum of an objective over G random groups of dimensions, chosen again in each step. With I_1 ∪ … ∪ I_G = {1 …
    D},

        ℒ_G(Z) = Σ_g ℒ(Z[…, I_g])

    Every dimension gets a gradient in each step, and no pair of dimensions is always in one group. The groups are the
    same for all views, samples and processes. Every tensor of the objective is split along each axis that the signature
    names like the last axis of the first tensor (D, or K for cosines with prototypes). If the signature names no axes,
    each tensor is split along its last axis, but not the labels.

    Args:
        objective: the objective, with its hyperparameters bound.
        groups: number G of groups; their sizes differ by at most one.
        seed: seed of the groups, a function of (seed, step); before the first step, the groups are those of step 0.

    Source: a mode of the public code of Jing et al. 2022 that the paper does not describe, with D = 2048 and G = 8 on
    InfoNCE; there, each process draws different groups.

    >>> from fullrank.objectives import simclr
    >>> Z = torch.randn(2, 8, 6)
    >>> one = Grouped(simclr, groups=1, seed=0)(Z)
    >>> torch.testing.assert_close(one, simclr(Z))
    """

    def __init__(self, objective: Callable[..., Terms], *, groups: int, seed: int) -> None:
        super().__init__()
        self.objective, self.groups, self.seed, self.step = objective, groups, seed, 0
        self.__signature__ = inspect.signature(objective)  # a method reads tensors and hyperparameters from it
        self.state = find_state(objective)

    def before_step(self, step: int, training_length: TrainingLength) -> None:
        """Choose the groups."""
        self.step = step

    def forward(self, *tensors: Tensor, **keywords: Any) -> Terms:
        """Return the sum of each term over the groups; an objective that draws random numbers draws others for each
        group.

        Raises:
            UserError: there are more groups than dimensions.
        """
        D = tensors[0].shape[-1]
        if self.groups > D:
            raise UserError(f"projector.groups is {self.groups}, but there are {D} dimensions; choose 1 to {D} groups")
        named = [axis_names(parameter) for parameter in self.__signature__.parameters.values()]
        axes = [_axes_to_split(names, named[0]) for names in named]
        groups = permutation(self.seed, self.step, D).to(tensors[0].device, non_blocking=True).tensor_split(self.groups)
        parts = [[_select(X, at, group) for X, at in zip(tensors, axes, strict=False)] for group in groups]
        results = [self.objective(*part, **keywords) for part in parts]
        return {name: torch.stack([terms[name] for terms in results]).sum() for name in results[0]}


def _axes_to_split(names: Sequence[str], first: Sequence[str]) -> list[int]:
    """Return the axes, counted from the last, that have the name of the last axis of the first tensor; without names,
    the last axis.
    """
    return [axis for axis in range(-len(names), 0) if names[axis] == first[-1]] if names and first else [-1]


def _select(X: Float[Tensor, "..."], axes: list[int], group: Int64[Tensor, " d"]) -> Float[Tensor, "..."]:
    for axis in axes if X.is_floating_point() else ():
        X = X.index_select(axis, group)
    return X
