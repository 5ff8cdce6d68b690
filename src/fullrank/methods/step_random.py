"""What is drawn anew before each step, as a function of (seed, step) alone."""

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor, nn

DIMENSIONS = 1  # a word of its own beside seed and step, so that dimensions are not drawn from the numbers of anything else


class StepRandomModule(nn.Module):
    """Abstract: a module with a random choice that holds for one step; `Method.before_step` tells it which.

    The choice is the same on every process and for every view and piece of a batch, and a resumed run makes it again.
    """

    def before_step(self, step: int) -> None:
        """Draw for optimizer step `step` (from 0)."""
        raise NotImplementedError


def shuffled(seed: int, step: int, n: int) -> Int64[Tensor, " n"]:
    """Return the permutation of n dimensions that belongs to a step.

    It is NumPy's PCG64, whose state `SeedSequence` hashes from (seed, step), as the order of the images is.

    >>> shuffled(0, 3, 8).sort().values
    tensor([0, 1, 2, 3, 4, 5, 6, 7])
    >>> torch.equal(shuffled(0, 3, 8), shuffled(0, 3, 8)), torch.equal(shuffled(0, 3, 8), shuffled(0, 4, 8))
    (True, False)
    """
    return torch.from_numpy(np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(step, DIMENSIONS))).permutation(n))
