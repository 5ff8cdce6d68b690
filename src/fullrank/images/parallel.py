"""Map a function over tasks in order, in this process or in worker processes."""

import atexit
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from multiprocessing.reduction import ForkingPickler
from typing import Any, TypeVar
from weakref import WeakSet

import torch
from torch.utils.data import DataLoader, Dataset

from fullrank.errors import UserError, exception_line, explain_errors

Task = TypeVar("Task")
Result = TypeVar("Result")
WORKERS = WeakSet[Any]()  # the processes of all loaders


def parallel_map(function: Callable[[Task], Result], tasks: Iterable[Task], *, workers: int = 0) -> Iterator[Result]:
    """Yield `function(task)` for each task, in the order of the tasks for any number of workers.

    Each worker process receives the pickled `function` once and returns tensors through shared memory (with CUDA,
    pinned memory). The workers end with the iteration. They start from a server process without threads, because
    forking a process with threads, such as torch's, is not safe. They import the user's script only if `function`
    contains an object of the script, such as a data set class; such a script must start workers under `if __name__ ==
    "__main__":`, as with Python 3.14's default.

    Raises:
        UserError: as raised by `function`, unchanged; or a worker cannot be started, because it cannot receive
            `function`; or it was killed.
    """
    if workers == 0:
        yield from map(function, tasks)
        return
    refuse_reimported_script()
    remedy = "define the data set at the top level of a module, or set data.workers to 0"
    with explain_errors("the images cannot be sent to worker processes", remedy):
        pickled = bytes(ForkingPickler.dumps(function))
    loader = DataLoader(
        _FunctionDataset(function),
        batch_size=None,
        sampler=tasks,
        num_workers=workers,
        collate_fn=_identity,
        worker_init_fn=_exit_with_parent,
        pin_memory=torch.cuda.is_available(),
        multiprocessing_context=process_context(),
        generator=torch.Generator(),  # otherwise the loader draws a number from the global generator
    )
    others = {*multiprocessing.active_children()}
    with nullcontext() if b"__main__" in pickled else hidden_main():
        results = iter(loader)
    WORKERS.update({*multiprocessing.active_children()} - others)
    try:
        for result in results:
            if isinstance(result, UserError):
                raise result
            yield result
    except RuntimeError as error:
        if not f"{error}".startswith("DataLoader worker"):
            raise
        remedy = "possibly out of memory; give fewer data.workers; a run goes on with --resume"
        raise UserError(f"a worker that decodes images was killed ({exception_line(error)}); {remedy}") from error


def refuse_reimported_script() -> None:
    """Raise UserError if this process is a worker that imports the user's script, which would start the run of the
    script again.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        remedy = "put the lines that call fullrank under `if __name__ == '__main__':`, or set data.workers to 0"
        raise UserError(f"a worker process imports this script and runs it again; {remedy}")


@contextmanager
def hidden_main() -> Iterator[None]:
    """Hide the path of the main module from `multiprocessing`, so that new processes do not run the user's script."""
    main = sys.modules["__main__"]
    hidden = {name: vars(main).pop(name) for name in ("__file__", "__spec__") if name in vars(main)}
    main.__spec__ = None
    try:
        yield
    finally:
        del main.__spec__
        vars(main).update(hidden)


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
    """Exit when the main process is killed. Torch only watches the server process, which lives as long as its
    workers.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None, "a worker has a parent process"

    def wait_and_exit() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait_and_exit, daemon=True).start()
    # Ctrl-C, a lost terminal, and often SIGTERM reach the whole process group: the parent handles them, and still needs
    # the batches.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


@atexit.register
def _kill_workers() -> None:
    """Kill the workers that are alive at the exit, such as those of a loader in the traceback of an error:
    multiprocessing sends SIGTERM, which they ignore, and then waits for them without end.
    """
    for process in WORKERS:
        process.kill()


def process_context() -> Any:
    """Return the context of new processes: forks of a server, which imports the library once for all of them."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["fullrank.images"])
    return context
