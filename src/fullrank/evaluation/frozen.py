"""Contexts for frozen modules: restore train and eval modes, and verify that no parameter or buffer changed."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain

import torch
from torch import nn


def state_hash(module: nn.Module) -> str:
    """Return the SHA-256 of every parameter and buffer: name, type, shape and bytes.

    The hash includes non-persistent buffers. NaNs are equal if their bytes are.

    >>> layer = nn.Linear(2, 2)
    >>> before = state_hash(layer)
    >>> _ = layer.bias.data.add_(1)
    >>> state_hash(layer) == before
    False
    """
    digest = hashlib.sha256()
    for name, tensor in chain(module.named_parameters(), module.named_buffers()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


@contextmanager
def restore_modes(module: nn.Module) -> Iterator[None]:
    """Restore the train or eval mode of every submodule at the end of the context."""
    modes = {submodule: submodule.training for submodule in module.modules()}
    try:
        yield
    finally:
        for submodule, training in modes.items():
            submodule.training = training


@contextmanager
def verify_frozen(module: nn.Module) -> Iterator[None]:
    """Put `module` in eval mode during the context, and verify at the end that no parameter or buffer changed.

    Raises:
        AssertionError: a parameter or buffer changed.
    """
    before = state_hash(module)
    with restore_modes(module):
        module.eval()
        yield
    if state_hash(module) != before:  # no `assert`, which `python -O` would skip
        raise AssertionError(f"{type(module).__name__} changed its parameters or buffers during evaluation")
