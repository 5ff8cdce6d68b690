"""The cells of a sweep as jobs, which submitit starts: processes on this machine, an array of SLURM, or this process.

A job is a run of one cell, which can be stopped at any time: the next call goes on from its checkpoint.
"""

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, Literal

import submitit
import submitit.helpers
import torch
from pydantic import Field
from rich.console import Console
from submitit.core.utils import UncompletedJobError

from fullrank.config import config
from fullrank.errors import Interrupted, ProcessFailed, UserError
from fullrank.run.precision import on_cuda
from fullrank.run.signals import stop_on_signals
from fullrank.run.terminal import Terminal, stderr
from fullrank.sweep.cell import run_cell
from fullrank.sweep.grid import Cell

POLL_SECONDS = 0.5
# Time in which stopped jobs finish their step and write a checkpoint; afterwards they are killed.
STOP_SECONDS = 300
# Time before the end of a SLURM job at which it is asked for a checkpoint, and put into the queue again.
SIGNAL_SECONDS = 180
# Ctrl-C, and a terminal that closes.
OF_TERMINAL = (signal.SIGINT, signal.SIGHUP)


@config
class Jobs:
    """Where the cells run, and how many at a time.

    Attributes:
        cluster: local: processes on this machine. slurm: one job array; a job that is preempted or out of time is
            queued again, and goes on from its checkpoint. debug: one after another in this process.
        parallel: Number of runs at the same time. 0: one for each GPU of this machine, or one on a CPU, where several
            share the cores; with slurm, as many as the queue lets run.
        partition: The partition of SLURM.
        hours: The time of each SLURM job.
    """

    cluster: Literal["local", "slurm", "debug"] = "local"
    parallel: Annotated[int, Field(ge=0)] = 0
    partition: str | None = None
    hours: Annotated[float, Field(gt=0)] = 24.0


def attempt(cell: Cell, folder: Path, console: Console) -> str:
    """Run a cell, and return why it failed, or an empty text."""
    try:
        run_cell(cell, folder, console=console)
    except (UserError, ProcessFailed) as error:
        return str(error)
    return ""


class Job(submitit.helpers.Checkpointable):
    """What a job does: attempt a cell in a process of its own. SLURM can queue it again."""

    def __call__(self, cell: Cell, folder: Path, threads: int = 0, gpus: str | None = None) -> str:
        """Run the cell, with a number of CPU threads and the GPUs of CUDA_VISIBLE_DEVICES."""
        if gpus is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = gpus
        if threads:
            torch.set_num_threads(threads)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # submitit would ignore it during the evaluation
        try:
            return attempt(cell, folder, Terminal())
        except Interrupted as stop:
            if stop.signum == signal.SIGUSR2:
                signal.raise_signal(signal.SIGUSR2)  # submitit queues the job again, and ends the process
            return str(stop)


# Number of CPU threads, and GPUs as in CUDA_VISIBLE_DEVICES, which a process may use.
Slot = tuple[int, str | None]


def run_cells(cells: Sequence[Cell], folder: Path, jobs: Jobs) -> Iterator[tuple[Cell, str]]:
    """Run cells as jobs, and yield each when it has ended, with the reason if it failed, else an empty text.

    Args:
        cells: the cells to run.
        folder: the folder of the sweep; the output of the jobs is in its folder logs.
        jobs: where they run.

    Raises:
        UserError: there is no SLURM on this machine.
        Interrupted: SIGINT, SIGTERM or SIGHUP; jobs on this machine have stopped with checkpoints; SLURM goes on.
    """
    if jobs.cluster == "debug":
        for cell in cells:
            yield cell, attempt(cell, folder, stderr())
        return
    local, queue, active = jobs.cluster == "local", list(cells), list[tuple[Cell, Any, Slot]]()
    slots: list[Slot] = slots_for(cells, jobs.parallel) if local else [(0, None)] * len(cells)
    array = None if local else _slurm_array(cells, folder, jobs)
    with stop_on_signals() as flag:
        while active or queue:
            with array.batch() if array and queue else _without_signals():
                while queue and slots and not flag.signum:
                    cell, slot = queue.pop(0), slots.pop(0)
                    executor = array or _local_executor(folder / "logs" / cell.name)
                    active.append((cell, executor.submit(Job(), cell, folder.absolute(), *slot), slot))
            time.sleep(POLL_SECONDS)
            if flag.signum:
                raise Interrupted(flag.signum, (_stop if local else _leave)([job for _, job, _ in active]))
            for cell, job, slot in [each for each in active if each[1].done()]:
                active.remove((cell, job, slot))
                slots.append(slot)
                yield cell, _outcome(job)


def _local_executor(folder: Path) -> submitit.Executor:
    executor = submitit.LocalExecutor(folder)
    executor.update_parameters(timeout_min=10**6, stderr_to_stdout=True)
    return executor


@contextmanager
def _without_signals() -> Iterator[None]:
    """Block the signals of a terminal inside the context: processes that start in it inherit that, so that Ctrl-C
    reaches only this one, which passes it on once.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, OF_TERMINAL)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, OF_TERMINAL)


def _stop(jobs: Sequence[Any]) -> str:
    """Let jobs on this machine stop after their step, with a checkpoint; kill those that have not ended in time."""
    for job in jobs:
        job._process.send_signal(signal.SIGTERM)  # submitit passes it on
    for job in jobs:
        with suppress(subprocess.TimeoutExpired):
            job._process.wait(STOP_SECONDS)
        job._process.kill()
    return "stopped"


def _leave(jobs: Sequence[Any]) -> str:
    """Let the jobs of SLURM go on, and say how to stop them."""
    return f"the jobs go on (scancel {' '.join(sorted({job.job_id.partition('_')[0] for job in jobs}))} stops them)"


def _slurm_array(cells: Sequence[Cell], folder: Path, jobs: Jobs) -> submitit.Executor:
    try:
        executor = submitit.SlurmExecutor(folder / "logs" / "%j")
    except RuntimeError as error:
        raise UserError(f"--cluster slurm: {error} Start the sweep on a machine that has srun") from error
    devices = max(cell.recipe.machine.devices for cell in cells)
    gpus = any(cell.recipe.machine.accelerator != "cpu" for cell in cells)
    executor.update_parameters(
        job_name="fullrank",
        time=max(round(60 * jobs.hours), 1),
        partition=jobs.partition,
        gpus_per_node=devices if gpus else None,
        cpus_per_task=8 * devices,
        array_parallelism=jobs.parallel or len(cells),
        signal_delay_s=SIGNAL_SECONDS,
        stderr_to_stdout=True,
    )
    return executor


def _outcome(job: Any) -> str:
    """Return why an ended job failed, or an empty text."""
    try:
        outcome, value = job._get_outcome_and_result()
    except UncompletedJobError:
        return f"its process ended without a result, as after SIGKILL; its output is in {job.paths.stdout}"
    if outcome == "success":
        return value
    return f"{value.strip().splitlines()[-1][:300]}; the traceback is in {job.paths.stdout}"


def slots_for(cells: Sequence[Cell], parallel: int = 0) -> list[Slot]:
    """Return what each process on this machine may use: a number of threads, and GPUs as in CUDA_VISIBLE_DEVICES.

    On GPUs, there is one process for each `machine.devices` GPUs, or `parallel` processes that share the GPUs in turn.
    On a CPU, one process, or `parallel` processes that share the cores.

    >>> from fullrank.recipes import RECIPES
    >>> len(slots_for([Cell("a", RECIPES["digits"])], 3))
    3
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    available = torch.cuda.device_count() if any(on_cuda(cell.recipe) for cell in cells) else 0
    if not available:
        return [(max(cores // parallel, 1) if parallel > 1 else torch.get_num_threads(), None)] * max(parallel, 1)
    names = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    names, each = names or [str(i) for i in range(available)], max(cell.recipe.machine.devices for cell in cells)
    groups = [",".join(names[i : i + each]) for i in range(0, max(len(names) - each, 0) + 1, each)]
    count = parallel or len(groups)
    return [(max(cores // count, 1), groups[i % len(groups)]) for i in range(count)]
