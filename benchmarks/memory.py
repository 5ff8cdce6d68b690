"""Measure the peak memory of a function: by the allocator on a GPU, by torch's profiler on the CPU, or by shapes.

Tensors of a `FakeTensorMode` or on the device "meta" have a shape but no data. Counting the storages that operations
create takes milliseconds at any size, also for a function that does not fit into memory. It misses the temporaries
inside an operation, such as those of `logsumexp`.
"""

import os
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import accumulate
from unittest import mock

import torch
from torch.fx.experimental import _config as fx_config
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

Work = Callable[[], object]


def peak_bytes(work: Work, device: str) -> int:
    """Return the largest number of bytes that a call holds at once, beyond those that were allocated before it."""
    return profiled_peak(work) if device == "cpu" else allocator_peak(work)


def allocator_peak(work: Work) -> int:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    work()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def profiled_peak(work: Work) -> int:
    with quiet(), profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as recorded:
        work()
    events = [event for event in recorded.profiler.kineto_results.events() if event.name() == "[memory]"]
    return max(accumulate(event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())), default=0)


@contextmanager
def quiet() -> Iterator[None]:
    """Discard what the profiler's C++ code writes to stderr."""
    stderr = os.dup(2)
    try:
        with open(os.devnull, "w") as nothing:
            os.dup2(nothing.fileno(), 2)
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)


def counted_peak(work: Work) -> int:
    """Return what `peak_bytes` returns for tensors without data."""
    with CountStorages() as count, shapes_only():
        work()
    return count.peak


class CountStorages(TorchDispatchMode):
    """Follow the storages that operations create, until they are freed."""

    def __init__(self):
        super().__init__()
        self.alive: dict[int, int] = {}
        self.held = self.peak = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given = {id(t.untyped_storage()) for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
        result = func(*args, **(kwargs or {}))
        for t in tree_leaves(result):
            if (
                isinstance(t, torch.Tensor)
                and (key := id(storage := t.untyped_storage())) not in self.alive
                and key not in given
            ):
                self.alive[key] = storage.nbytes()
                self.held += storage.nbytes()
                weakref.finalize(storage, self._free, key)
        self.peak = max(self.peak, self.held)
        return result

    def _free(self, key: int) -> None:
        self.held -= self.alive.pop(key, 0)


@contextmanager
def shapes_only() -> Iterator[None]:
    """Let a loss run on tensors without data: `.item()` returns 1, and on "meta" a mask without the diagonal selects
    every element."""
    with (
        mock.patch.object(torch.Tensor, "item", return_value=1.0),
        fx_config.patch(meta_nonzero_assume_all_nonzero=True),
    ):
        yield
