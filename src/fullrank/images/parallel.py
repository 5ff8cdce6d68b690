"""One function over many tasks, in order, in this process or in worker processes."""

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


def parallel(work: Callable[[Task], Result], tasks: Iterable[Task], *, workers: int = 0) -> Iterator[Result]:
    """Yield `work(task)` for each task, in the order of the tasks whatever the number of workers.

    With workers, `work` travels to them once and must be picklable, and results with tensors come back through shared memory
    (and pinned, where there is CUDA). The processes live as long as the iteration. They start from a server process without
    threads, since a process with threads (as torch has) is not safe to fork; so, as with Python's own default from 3.14 on, a
    script that asks for workers does so under `if __name__ == "__main__":`.

    Raises:
        UserError: as raised by `work`, unchanged.
    """
    if workers == 0:
        yield from map(work, tasks)
        return
    loader = DataLoader(
        _Work(work),
        batch_size=None,
        sampler=tasks,
        num_workers=workers,
        collate_fn=_unchanged,
        worker_init_fn=_end_with_parent,
        pin_memory=torch.cuda.is_available(),
        multiprocessing_context=_context(),
        generator=torch.Generator(),  # otherwise the loader takes a number from the global generator
    )
    for result in loader:
        if isinstance(result, UserError):
            raise result
        yield result


class _Work(Dataset):
    def __init__(self, work: Callable[[Any], Any]):
        self.work = work

    def __getitem__(self, task: Any) -> Any:
        try:
            return self.work(task)
        except UserError as error:
            return error  # as a result: the loader would wrap an exception in a page of traceback


def _unchanged(result: Any) -> Any:
    return result


def _end_with_parent(worker: int) -> None:
    """Let a worker end when the process that reads from it was killed: torch watches the server process, which lives as long as we do."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "a worker has been started by someone"

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    # Ctrl-C, and many a SIGTERM, goes to the whole group of processes: the parent decides what it means, and still needs the batches.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def _context() -> Any:
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "fullrank.images"])  # import once, not once a worker
    return context
