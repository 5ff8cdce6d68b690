"""Seeds: a hash of (seed, step, …), so that random numbers are a function of the step and of nothing before it."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


def mix(*words: int) -> int:
    """Hash integers to 32 bits, the part of a seed that torch's CPU generator uses.

    h ← fmix32(h ⊕ word) for each word, with the finaliser of MurmurHash3 (Appleby 2011). The hash is one-to-one in the
    last word, so the steps of a run (if fewer than 2³²) have different hashes.

    >>> len({mix(7, step) for step in range(1000)})
    1000
    """
    h = 0x9E3779B9
    for word in words:
        h ^= word & 0xFFFFFFFF
        h = (h ^ h >> 16) * 0x85EBCA6B & 0xFFFFFFFF
        h = (h ^ h >> 13) * 0xC2B2AE35 & 0xFFFFFFFF
        h ^= h >> 16
    return h


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch's CPU generator inside the context, and restore its state afterwards.

    >>> with seeded(0):
    ...     first = torch.rand(())
    >>> with seeded(0):
    ...     torch.equal(torch.rand(()), first)
    True
    """
    with torch.random.fork_rng(devices=()):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed the GPUs' generators too
        yield
