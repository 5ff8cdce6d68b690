"""Count the peak memory of a function: by the allocator on a GPU, else by the storages that its operations create.

On the device "meta" tensors have a shape but no data. The count there takes milliseconds at any size, also for a function that does not fit
into memory, and equals that of torch's profiler on the CPU.
"""

import weakref
from collections.abc import Callable

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def peak_bytes(work: Callable[[], object], device: str) -> int:
    """Return the largest number of bytes that a call holds at once, beyond those that were allocated before it."""
    if not device.startswith("cuda"):
        with CountStorages() as count:
            work()
        return count.peak
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    work()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


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
            if isinstance(t, torch.Tensor) and (key := id(storage := t.untyped_storage())) not in self.alive and key not in given:
                self.alive[key] = storage.nbytes()
                self.held += storage.nbytes()
                weakref.finalize(storage, self._free, key)
        self.peak = max(self.peak, self.held)
        return result

    def _free(self, key: int) -> None:
        self.held -= self.alive.pop(key, 0)
