"""Inputs and starts of the paper's toy models: Gaussian data of 16 dimensions and additive Gaussian augmentation.

The loss is that of the paper's eq. 2, which its theory is about; its released toy code (facebookresearch/directclr, toy_task) trains with
another, `released_flow`. Learning rates are those of the loss as a mean over the batch; what `fullrank.dynamics` takes is this over N.
"""

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import cross_entropy

from fullrank.dynamics.flow import gradient

DIMENSIONS = 16
DECAY = 0.35  # the singular values of the released toy code's start are exp(−0.35 k)


def generator(*seeds: int) -> torch.Generator:
    """A generator of its own for each tuple of up to three small numbers.

    >>> torch.rand(1, generator=generator(0, 1)).equal(torch.rand(1, generator=generator(1, 0)))
    False
    """
    return torch.Generator().manual_seed(sum(number * 1000**place for place, number in enumerate(seeds)))


def normal(*shape: int, rng: torch.Generator) -> Tensor:
    return torch.randn(*shape, generator=rng, dtype=torch.float64)


def batches(N: int, k: Float[Tensor, " m"], *, rng: torch.Generator, variance: float = 1.0) -> Iterator[Float[Tensor, "2 N m"]]:
    """Batch after batch of N new pairs: anchors x ~ N(0, variance I) and positives x + N(0, diag k).

    >>> next(batches(4, torch.zeros(3), rng=generator(0))).diff(dim=0).abs().max()
    tensor(0., dtype=torch.float64)
    """
    while True:
        x = variance**0.5 * normal(N, len(k), rng=rng)
        yield torch.stack([x, x + k.sqrt() * normal(N, len(k), rng=rng)])


def rotation(rng: torch.Generator) -> Tensor:
    return torch.linalg.qr(normal(DIMENSIONS, DIMENSIONS, rng=rng)).Q


def decaying() -> Tensor:
    """The singular values that both layers start with."""
    return (-DECAY * torch.arange(DIMENSIONS, dtype=torch.float64)).exp()


def unbalanced_start(rng: torch.Generator) -> list[Tensor]:
    """The paper's start: two layers of the same distinct singular values, all four bases random, so that nothing is aligned.

    (The released toy code takes the bases of matrices with entries in [0, 1), whose first vectors nearly agree: mode 1 starts aligned.)
    """
    return [rotation(rng) * decaying() @ rotation(rng).mT for _ in range(2)]


def released_flow(weights: Sequence[Tensor], x: Float[Tensor, "2 N m"]) -> list[Tensor]:
    """Minus the gradient of the loss of the released toy code: inner products of one view with the other, at a temperature of 0.1.

    >>> released_flow([torch.eye(2), torch.eye(2)], torch.eye(2).expand(2, 2, 2))[0].trace() > 0
    tensor(True)
    """

    def loss(weights: tuple[Tensor, ...]) -> Tensor:
        Z1, Z2 = x @ torch.linalg.multi_dot(weights[::-1]).mT
        return cross_entropy(Z1 @ Z2.mT / 0.1, torch.arange(len(Z1)), reduction="sum")

    return [-slope for slope in gradient(loss, tuple(weights))]
