"""Map a function over tasks in order, in this process or in worker processes."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import torch
from torch.utils.data import DataLoader, Dataset

from fullrank.errors import UserError

Task = TypeVar("Task")
Result = TypeVar("Result")


def parallel_map(function: Callable[[Task], Result], tasks: Iterable[Task], *, workers: int = 0) -> Iterator[Result]:
    """Yield `function(task)` for each task, in the order of the tasks for any number of workers.

    Each worker process receives the pickled `function` once and returns tensors through shared memory (with CUDA, pinned memory). The
    workers end with the iteration. They start from a server process without threads, because forking a process with threads, such as
    torch's, is not safe. Therefore a script must start workers under `if __name__ == "__main__":`, as with Python 3.14's default.

    Raises:
        UserError: as raised by `function`, unchanged.
    """
    if workers == 0:
        yield from map(function, tasks)
        return
    loader = DataLoader(
        _FunctionDataset(function),
        batch_size=None,
        sampler=tasks,
        num_workers=workers,
        collate_fn=_identity,
        worker_init_fn=_exit_with_parent,
        pin_memory=torch.cuda.is_available(),
        multiprocessing_context=_multiprocessing_context(),
        generator=torch.Generator(),  # otherwise the loader draws a number from the global generator
    )
    for result in loader:
        if isinstance(result, UserError):
            raise result
        yield result


class _FunctionDataset(Dataset):
    def __init__(self, function: Callable[[Any], Any]):
        self.function = function

    def __getitem__(self, task: Any) -> Any:
        try:
            return self.function(task)
        except UserError as error:
            return error  # returned, because the loader would wrap a raised exception in a long traceback


def _identity(result: Any) -> Any:
    return result


def _exit_with_parent(worker: int) -> None:
    """Exit when the main process is killed. Torch only watches the server process, which lives as long as its workers."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "a worker has a parent process"

    def wait_and_exit() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait_and_exit, daemon=True).start()
    # Ctrl-C, a lost terminal, and often SIGTERM reach the whole process group: the parent handles them, and still needs the batches.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def _multiprocessing_context() -> Any:
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "fullrank.images"])  # imported once instead of once per worker
    return context
