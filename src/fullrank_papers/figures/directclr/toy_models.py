"""Data and initial weights of the paper's toy models: Gaussian data of 16 dimensions with additive Gaussian
augmentation.

The loss is the paper's eq. 2, which its theory is about. The authors' toy code (facebookresearch/directclr, toy_task)
uses another loss, see `fig5.released_flows`. Learning rates in the figures belong to the mean of the loss over the
batch; `fullrank_papers.theory` takes this divided by N.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from fullrank_papers.figures.numerics import normal
from fullrank_papers.theory.infonce_alignment import balanced_layers

DIMENSIONS = 16
# The initial singular values, as in the authors' toy code.
START = (-0.35 * torch.arange(DIMENSIONS, dtype=torch.float64)).exp()


@dataclass(frozen=True)
class ToySize:
    """Data and training of a toy model."""

    N: int  # samples per batch
    steps: int
    learning_rate: float  # for the mean of the loss over the batch

    @property
    def rate(self) -> float:
        """The learning rate for the sum of the loss over the batch, as in `fullrank_papers.theory`."""
        return self.learning_rate / self.N

    @property
    def end(self) -> float:
        """The time at the last step."""
        return self.rate * self.steps


def seeded_generator(*seeds: int) -> torch.Generator:
    """Return a generator for a tuple of up to three small numbers; different tuples give different random numbers.

    >>> torch.rand(1, generator=seeded_generator(0, 1)).equal(torch.rand(1, generator=seeded_generator(1, 0)))
    False
    """
    return torch.Generator().manual_seed(sum(number * 1000**place for place, number in enumerate(seeds)))


def sample_batches(
    N: int, k: Float[Tensor, " m"], *, rng: torch.Generator, variance: float = 1.0
) -> Iterator[Float[Tensor, "2 N m"]]:
    """Yield batches of N new pairs without end: anchors x ~ N(0, variance I) and positives x + N(0, diag k).

    >>> next(sample_batches(4, torch.zeros(3), rng=seeded_generator(0))).diff(dim=0).abs().max()
    tensor(0., dtype=torch.float64)
    """
    while True:
        x = variance**0.5 * normal(N, len(k), rng=rng)
        yield torch.stack([x, x + k.sqrt() * normal(N, len(k), rng=rng)])


def random_rotation(rng: torch.Generator) -> Tensor:
    """Return a random orthogonal matrix."""
    return torch.linalg.qr(normal(DIMENSIONS, DIMENSIONS, rng=rng)).Q


def paper_start(rng: torch.Generator) -> list[Tensor]:
    """Return the paper's initial layers: equal and distinct singular values, and four random bases, so nothing is
    aligned.

    (The authors' toy code takes the bases of matrices with entries in [0, 1). Their first vectors nearly agree, so mode
    1 starts aligned.)
    """
    return [random_rotation(rng) * START @ random_rotation(rng).mT for _ in range(2)]


def balanced_start(rng: torch.Generator) -> list[Tensor]:
    """Return two balanced layers, W₁W₁ᵀ = W₂ᵀW₂, with the singular values of `paper_start`."""
    return balanced_layers(random_rotation(rng) * START.square() @ random_rotation(rng).mT, 2)
