"""Run cells in processes: as many at a time as there are slots, one process for each."""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from fullrank.errors import Interrupted, UserError
from fullrank.images.parallel import hidden_main, refuse_reimported_script
from fullrank.run.signals import stop_on_signals
from fullrank.sweep.cell import Cell
from fullrank.sweep.folder import is_locked, log_path
from fullrank.sweep.worker import Outcome, work

STOP_TIMEOUT = 300.0

POLL_SECONDS = 0.5
"""Longest time until a signal is passed on, and until a cell that another caller runs is looked at again."""


@dataclass(frozen=True)
class Slot:
    """What one process may use: a number of threads, and GPUs as in CUDA_VISIBLE_DEVICES."""

    threads: int
    gpus: tuple[str, ...] = ()


def slots_for(cells: Sequence[Cell], parallel: int = 0) -> list[Slot]:
    """Return one slot for each process that runs at the same time.

    On GPUs, one process for each `machine.devices` GPUs, or `parallel` processes that share the GPUs in turn. On a CPU,
    one process, or `parallel` processes that share the cores.

    Raises:
        UserError: `parallel` is negative.

    >>> from fullrank.recipes import RECIPES
    >>> len(slots_for([Cell("a", RECIPES["digits"])], 3))
    3
    """
    import torch

    from fullrank.run.precision import on_cuda

    if isinstance(parallel, bool) or not isinstance(parallel, int) or parallel < 0:
        raise UserError(f"--parallel is {parallel!r}, expected a number of processes; 0 means one for each device")
    cores, available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1, 0
    if any(on_cuda(cell.recipe) for cell in cells):
        available = torch.cuda.device_count()
    if not available:
        count = parallel or 1
        threads = torch.get_num_threads() if count == 1 else max(cores // count, 1)
        return [Slot(threads)] * count
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    names = [name.strip() for name in visible.split(",") if name.strip()] or [str(index) for index in range(available)]
    each = max((cell.recipe.machine.devices for cell in cells), default=1)
    groups = [tuple(names[i : i + each]) for i in range(0, len(names) - each + 1, each)] or [tuple(names)]
    count = parallel or len(groups)
    return [Slot(max(cores // count, 1), groups[i % len(groups)]) for i in range(count)]


@dataclass
class _Active:
    cell: Cell
    slot: Slot
    process: Any
    connection: Connection


def run_cells(
    cells: Sequence[Cell],
    folder: Path,
    slots: Sequence[Slot],
    *,
    on_start: Callable[[Cell], Any],
    on_wait: Callable[[Cell], Any],
    on_end: Callable[[Cell, Outcome], Any],
    is_done: Callable[[Cell], bool],
) -> None:
    """Run the cells, each in a process of its own, and report each end; cells that another caller runs are waited for.

    Args:
        cells: the cells to run.
        folder: the folder of the sweep.
        slots: one for each process at the same time.
        on_start: called when the process of a cell starts.
        on_wait: called when another caller runs a cell.
        on_end: called when a cell has ended: done, also by another caller, or failed.
        is_done: returns whether a cell has its row, which another caller may have written.

    Raises:
        Interrupted: SIGINT, SIGTERM or SIGHUP; all processes have stopped after their step, with a checkpoint.
    """
    refuse_reimported_script()
    context = _start_server(slots)
    queue, elsewhere, free, active = list(cells), list[Cell](), list(slots), list[_Active]()
    with stop_on_signals() as flag:
        try:
            while queue or elsewhere or active:
                while queue and free and not flag.signum:
                    cell = queue.pop(0)
                    if is_locked(folder, cell.name):
                        elsewhere.append(cell)
                        on_wait(cell)
                    elif is_done(cell):  # another caller has run it
                        on_end(cell, Outcome("done"))
                    else:
                        try:
                            active.append(_start(context, cell, folder, free[0]))
                        except (EOFError, OSError) as error:
                            on_end(
                                cell,
                                Outcome("failed", f"its process cannot be started ({type(error).__name__} {error})"),
                            )
                        else:
                            free.pop(0)
                            on_start(cell)
                if flag.signum:
                    break
                wait([each.process.sentinel for each in active], timeout=POLL_SECONDS) if active else time.sleep(
                    POLL_SECONDS
                )
                for each in [each for each in active if not each.process.is_alive()]:
                    active.remove(each)
                    free.append(each.slot)
                    outcome = _outcome(each, folder)
                    if outcome.status == "busy":
                        elsewhere.append(each.cell)
                        on_wait(each.cell)
                    else:
                        on_end(each.cell, outcome)
                for cell in [cell for cell in elsewhere if not is_locked(folder, cell.name)]:  # done, failed or stopped
                    elsewhere.remove(cell)
                    queue.append(cell)
            if flag.signum:
                _stop(active)
        finally:
            for each in active:
                each.process.kill()
                each.process.join()
    if flag.signum:
        raise Interrupted(flag.signum, "stopped")


def _start_server(slots: Sequence[Slot]) -> Any:
    """Return the context that starts processes from a server without threads, which has imported what they need."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["fullrank.sweep.worker", "torch.utils.tensorboard", "sklearn.datasets"])
    os.environ.setdefault(
        "PYTORCH_NVML_BASED_CUDA_CHECK", "1"
    )  # so that no import in the server initialises CUDA, which forbids a fork
    with (
        _ignored(signal.SIGINT, signal.SIGHUP),
        hidden_main(),
    ):  # the terminal sends these to the server too, which inherits what is ignored
        forkserver.ensure_running()
    return context


@contextmanager
def _ignored(*numbers: int) -> Iterator[None]:
    """Ignore signals inside the context; a signal that arrives in these milliseconds is lost."""
    if threading.current_thread() is not threading.main_thread():  # only the main thread can handle signals
        yield
        return
    handlers = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _start(context: Any, cell: Cell, folder: Path, slot: Slot) -> _Active:
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=work, args=(cell, folder, slot.threads, slot.gpus, sender), name=cell.name)
    with hidden_main():
        process.start()
    sender.close()
    return _Active(cell, slot, process, receiver)


def _outcome(ended: _Active, folder: Path) -> Outcome:
    """Return the outcome that an ended process has sent, or how it ended without one."""
    ended.process.join()
    try:
        if ended.connection.poll():
            return ended.connection.recv()
    except EOFError:
        pass
    finally:
        ended.connection.close()
    return Outcome(
        "failed",
        f"its process ended with status {ended.process.exitcode}; its output is in {log_path(folder, ended.cell.name)}",
    )


def _stop(active: Sequence[_Active]) -> None:
    """Let all processes stop after their step, with a checkpoint; the caller kills those that have not ended after
    `STOP_TIMEOUT`.
    """
    for each in active:
        _send(each, signal.SIGTERM)
        _send(each, signal.SIGCONT)  # a stopped process handles no signal
    deadline = time.monotonic() + STOP_TIMEOUT
    while (
        any(_send(each, 0) for each in active) and time.monotonic() < deadline
    ):  # also if their server was killed, which knows their end
        time.sleep(0.05)


def _send(active: _Active, signum: int) -> bool:
    """Send a signal to a process, and return whether the process exists."""
    try:
        os.kill(active.process.pid, signum)
    except ProcessLookupError:
        return False
    return True
