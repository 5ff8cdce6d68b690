"""The order of the data: which images a step sees, as a function of (seed, step) alone."""

from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from fullrank.errors import UserError


def batch_indices(seed: int, step: int, batch: int, n: int) -> Int64[Tensor, " batch"]:
    """Return the images of one step: a slice of the permutation of its epoch.

    An epoch is n // batch steps, and the incomplete batch at its end is dropped (it differs from epoch to epoch). Epoch e is
    permuted by NumPy's PCG64, whose 128 bits of state `SeedSequence(seed, spawn_key=(e,))` hashes from the pair, so that different
    pairs have unrelated permutations. (A torch generator on the CPU uses 32 bits of its seed only: over many runs of many epochs
    that is too few to rule a collision out.)

    Args:
        seed: Seed of the run.
        step: The step, from 0; any step costs one permutation at most.
        batch: Images a step, over all processes.
        n: Images in the set.

    Raises:
        UserError: the batch is larger than the set.

    >>> epoch = torch.cat([batch_indices(0, step, 3, 9) for step in range(3)])
    >>> epoch.sort().values
    tensor([0, 1, 2, 3, 4, 5, 6, 7, 8])
    """
    if not 0 < batch <= n:
        raise UserError(f"a batch of {batch} images, from a set of {n}; choose a batch from 1 to {n}")
    epoch, within = divmod(step, n // batch)
    return torch.from_numpy(permutation(seed, epoch, n)[within * batch : (within + 1) * batch].copy())


@lru_cache(maxsize=2)
def permutation(seed: int, epoch: int, n: int) -> np.ndarray:
    """Return the permutation of one epoch; the last two are kept."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(epoch,))).permutation(n)
