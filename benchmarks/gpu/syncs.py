"""Count where a training loop makes the host wait for the device, on a machine without a GPU.

The CPU plays both parts. Tensors that would be on the device are marked: weights, images in memory, and everything
computed from them. An operation that reads the value of a marked tensor would make the host wait for the device:
`item`, `tolist`, `bool`, `nonzero`, a boolean mask as index, the error checks of linear algebra, a blocking copy. An
operation that mixes marked with unmarked tensors would be an error on a GPU, or a hidden copy. The logger may wait
where it logs, evaluates or saves.

On a machine with a GPU, `torch.cuda.set_sync_debug_mode("error")` is the better judge.
"""

import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import fullrank.run.pretrain
from fullrank.images import MemoryImages
from fullrank.run.logger import RunLogger

READING_OPERATIONS = {
    *("_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "bincount", "_linalg_check_errors"),
    *("unique_dim", "_unique", "_unique2", "unique_consecutive", "histc", "allclose"),
}
READING_METHODS = ("tolist", "numpy", "cpu", "__array__", "__dlpack__")
FACTORIES = ("tensor", "as_tensor", "asarray", "from_numpy")  # with a device: the host waits for the copy
INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_"}


class SyncCounter:
    """Counts, by the line of code, the operations that would make the host wait for the device.

    Use `watching` around the loop and `paused` where waiting is allowed. `counts` maps "file:line operation" to the
    number of times.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._on_device: dict[int, StorageWeakRef] = {}
        self._pauses = 0

    def mark(self, *tensors: Tensor) -> None:
        """Say that these tensors are on the device."""
        for tensor in tensors:
            reference = StorageWeakRef(tensor.untyped_storage())  # keeps the address from being used again
            self._on_device[reference.cdata] = reference

    def is_marked(self, tensor: Tensor) -> bool:
        """Return whether a tensor is on the device."""
        return tensor.untyped_storage()._cdata in self._on_device

    def count(self, operation: str) -> None:
        """Count one operation, at the innermost line of the library."""
        if not self._pauses:
            names = ("/fullrank/", "/test")
            frames = [f for f in traceback.extract_stack() if any(name in f.filename for name in names)]
            where = f"{frames[-1].filename.rpartition('/fullrank/')[2]}:{frames[-1].lineno} " if frames else ""
            self.counts[where + operation] += 1

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Count nothing inside the context; tensors are still marked."""
        self._pauses += 1
        try:
            yield
        finally:
            self._pauses -= 1

    @contextmanager
    def watching(self) -> Iterator["SyncCounter"]:
        """Count inside the context."""
        with _Operations(self), _Functions(self):
            yield self


class _Operations(TorchDispatchMode):
    """Marks the results of operations on marked tensors, and counts the operations that read values."""

    def __init__(self, counter: SyncCounter) -> None:
        super().__init__()
        self.counter = counter

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        tensors = _tensors((args, kwargs))
        marked = [self.counter.is_marked(tensor) for tensor in tensors]
        if any(marked):
            name = function.overloadpacket.__name__
            if name in READING_OPERATIONS or (name in INDEXING and _has_mask(args)):
                self.counter.count(name if name in READING_OPERATIONS else f"{name} with a boolean mask")
            elif any(not m and t.dim() and t.numel() > 1 for t, m in zip(tensors, marked, strict=True)):
                self.counter.count(f"{name} of tensors on the device and on the host")
            if name != "_local_scalar_dense":
                self.counter.mark(*_tensors(out))
        elif not tensors and torch._C._current_autograd_node() is not None:
            # autograd makes zeros on the device of the gradient
            self.counter.mark(*_tensors(out))
        return out


class _Functions(TorchFunctionMode):
    """Counts the functions that read values without an operation, and copies to the device."""

    def __init__(self, counter: SyncCounter) -> None:
        super().__init__()
        self.counter = counter

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(function, "__name__", "")
        out = function(*args, **kwargs)
        first = args[0] if args and isinstance(args[0], Tensor) else None
        if first is not None and self.counter.is_marked(first):
            if name in READING_METHODS or (name == "to" and "cpu" in (*args[1:], *kwargs.values())):
                self.counter.count(f"Tensor.{name}")
        elif first is not None and name == "to" and _has_device(args[1:], kwargs):
            if not kwargs.get("non_blocking", False):
                self.counter.count("Tensor.to, a copy to the device that waits")
            out = out.clone()
            self.counter.mark(out)
        elif first is None and isinstance(kwargs.get("device"), torch.device):  # the text "cpu" means the host
            if name in FACTORIES:
                self.counter.count(f"torch.{name} on the device")
            self.counter.mark(*_tensors(out))
        return out


def _tensors(tree: Any) -> list[Tensor]:
    fake = torch._subclasses.FakeTensor
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor) and not isinstance(leaf, fake)]


def _has_mask(args: Any) -> bool:
    return any(tensor.dtype in (torch.bool, torch.uint8) for tensor in _tensors(args[1:2]))


def _has_device(args: Iterable[Any], kwargs: dict[str, Any]) -> bool:
    return any(isinstance(value, torch.device) for value in (*args, *kwargs.values()))


@contextmanager
def in_the_loop(inside: Callable[[], Any], outside: Callable[[], Any]) -> Iterator[None]:
    """Enter `inside` for the loop of every `fullrank.pretrain`, and `outside` where its logger logs, evaluates or
    saves, which may wait."""
    stop_on_signals = fullrank.run.pretrain.stop_on_signals

    @contextmanager
    def watched() -> Iterator[Any]:
        with stop_on_signals() as flag, inside():
            yield flag

    def allowed(owner: Any, name: str) -> Any:
        function = getattr(owner, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            with outside():
                return function(*args, **kwargs)

        return mock.patch.object(owner, name, call)

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(fullrank.run.pretrain, "stop_on_signals", watched))
        for name in ("log_train", "read_terms", "check_weights", "evaluate_spectrum", "save_checkpoint"):
            stack.enter_context(allowed(RunLogger, name))
        stack.enter_context(allowed(MemoryImages, "to"))  # the images are copied once, before the first step
        yield


@contextmanager
def training_loop(counter: SyncCounter) -> Iterator[None]:
    """Count in the loop of every `fullrank.pretrain` inside the context, on a machine without a GPU."""
    init = RunLogger.__init__

    def mark_and_init(self: Any, run: Any, **options: Any) -> None:
        counter.mark(*run.method.state_dict(keep_vars=True).values(), *run.probe.state_dict(keep_vars=True).values())
        if isinstance(run.data.train, MemoryImages):
            counter.mark(run.data.train.pixels, run.data.train.labels)
        init(self, run, **options)

    def copy_to_device(x: Tensor, device: Any) -> Tensor:
        copy = x.clone()
        counter.mark(copy)
        return copy

    with in_the_loop(counter.watching, counter.paused), ExitStack() as stack:
        stack.enter_context(mock.patch.object(RunLogger, "__init__", mark_and_init))
        for name, module in list(sys.modules.items()):
            if name.startswith("fullrank.") and hasattr(module, "to_device"):
                stack.enter_context(mock.patch.object(module, "to_device", copy_to_device))
        yield


def without_waiting() -> Any:
    """Make it an error to wait for the GPU in the loop of `fullrank.pretrain`."""
    return in_the_loop(lambda: sync_debug_mode("error"), lambda: sync_debug_mode("default"))


@contextmanager
def sync_debug_mode(value: str) -> Iterator[None]:
    """Set what torch does when the host waits for the GPU: "default", "warn" or "error"."""
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode(value)
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)
