"""A backbone that is judged has to stay what it is: eval mode inside, the modes it had before outside, and a proof in between."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain

import torch
from torch import nn


def fingerprint(module: nn.Module) -> str:
    """Return the SHA-256 of every parameter and buffer: name, type, shape and bytes.

    Non-persistent buffers count, and NaNs are equal to themselves, because bytes are compared and not numbers.

    >>> layer = nn.Linear(2, 2)
    >>> before = fingerprint(layer)
    >>> _ = layer.bias.data.add_(1)
    >>> fingerprint(layer) == before
    False
    """
    digest = hashlib.sha256()
    for name, tensor in chain(module.named_parameters(), module.named_buffers()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


@contextmanager
def keep_modes(module: nn.Module) -> Iterator[None]:
    """Give every submodule its train or eval mode back at the end."""
    modes = {part: part.training for part in module.modules()}
    try:
        yield
    finally:
        for part, training in modes.items():
            part.training = training


@contextmanager
def frozen(module: nn.Module) -> Iterator[None]:
    """Put `module` in eval mode for the time of the context.

    Raises:
        AssertionError: a parameter or buffer is not what it was before.
    """
    before = fingerprint(module)
    with keep_modes(module):
        module.eval()
        yield
    if fingerprint(module) != before:  # raised and not asserted: the proof also holds under `python -O`
        raise AssertionError(f"{type(module).__name__} changed its own parameters or buffers while it was evaluated")
