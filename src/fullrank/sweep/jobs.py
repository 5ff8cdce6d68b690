"""The cells of a sweep as jobs, which submitit starts: processes on this machine, an array of SLURM, or this process.

A job is a run of one cell, which can be stopped at any time: the next call goes on from its checkpoint.
"""

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Annotated, Any, Literal

import submitit
import submitit.helpers
import torch
from pydantic import Field
from submitit.core.job_environment import JobEnvironment
from submitit.core.utils import UncompletedJobError

from fullrank.config import config
from fullrank.errors import Interrupted, UserError
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


class Job:
    """What a job does: run a cell. It returns why the cell failed, or an empty text."""

    def __call__(self, cell: Cell, folder: Path, threads: int = 0, gpus: str | None = None) -> str:
        """Run the cell, with a number of CPU threads and the GPUs of CUDA_VISIBLE_DEVICES."""
        if JobEnvironment().cluster == "local":
            with suppress(PermissionError):
                os.setsid()  # the terminal's Ctrl-C reaches only the caller, which passes it on once
        if gpus is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = gpus
        if threads:
            torch.set_num_threads(threads)
        preemption, asked = JobEnvironment._usr_sig(), []
        requeue: Any = signal.getsignal(preemption)

        def ask(signum: int, frame: object) -> None:
            asked.append(signum)
            signal.raise_signal(signal.SIGTERM)  # training writes a checkpoint, and raises Interrupted

        signal.signal(preemption, ask)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        try:
            run_cell(cell, folder, console=Terminal())
        except UserError as error:
            return str(error)
        except Interrupted as stop:
            if asked:
                requeue(preemption, None)  # does not return
            return str(stop)
        return ""

    def checkpoint(self, *arguments: Any, **options: Any) -> submitit.helpers.DelayedSubmission:
        """Return the job that SLURM queues again."""
        return submitit.helpers.DelayedSubmission(self, *arguments, **options)


# Number of CPU threads, and GPUs as in CUDA_VISIBLE_DEVICES, which a process may use.
Slot = tuple[int, str | None]
# Called when a cell has ended: why it failed, or an empty text.
OnEnd = Callable[[Cell, str], Any]


def run_cells(cells: Sequence[Cell], folder: Path, jobs: Jobs, on_end: OnEnd) -> None:
    """Run cells as jobs, and report the end of each.

    Args:
        cells: the cells to run.
        folder: the folder of the sweep; the output of the jobs is in its folder logs.
        jobs: where they run.
        on_end: called for each cell.

    Raises:
        UserError: there is no SLURM on this machine.
        Interrupted: SIGINT, SIGTERM or SIGHUP; jobs on this machine have stopped with checkpoints; SLURM goes on.
    """
    if jobs.cluster == "debug":
        for cell in cells:
            on_end(cell, _run_here(cell, folder))
        return
    local, queue, active = jobs.cluster == "local", list(cells), list[tuple[Cell, Any, Slot]]()
    slots: list[Slot] = slots_for(cells, jobs.parallel) if local else [(0, None)] * len(cells)
    array = None if local else _slurm_array(cells, folder, jobs)
    with stop_on_signals() as flag:
        while active or (queue and not flag.signum):
            with array.batch() if array and queue else nullcontext():
                while queue and slots and not flag.signum:
                    cell, slot = queue.pop(0), slots.pop(0)
                    with _without_interrupts():
                        executor = array or _local_executor(folder / "logs" / cell.name)
                        active.append((cell, executor.submit(Job(), cell, folder.absolute(), *slot), slot))
            if flag.signum and not local:
                numbers = " ".join(sorted({job.job_id.partition("_")[0] for _, job, _ in active}))
                raise Interrupted(flag.signum, f"the jobs go on (scancel {numbers} stops them)")
            if flag.signum:
                _stop([job for _, job, _ in active])
            time.sleep(POLL_SECONDS)
            for each in [each for each in active if each[1].done()]:
                active.remove(each)
                slots.append(each[2])
                if not flag.signum:
                    on_end(each[0], _outcome(each[1]))
    if flag.signum:
        raise Interrupted(flag.signum, "stopped")


def _run_here(cell: Cell, folder: Path) -> str:
    try:
        run_cell(cell, folder, console=stderr())
    except UserError as error:
        return str(error)
    return ""


def _local_executor(folder: Path) -> submitit.Executor:
    executor = submitit.LocalExecutor(folder)
    executor.update_parameters(timeout_min=10**6, stderr_to_stdout=True)
    return executor


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


def _stop(jobs: Sequence[Any]) -> None:
    """Let jobs on this machine stop after their step, with a checkpoint; kill those that have not ended in time."""
    for job in jobs:
        job._process.send_signal(signal.SIGTERM)  # submitit passes it on
    deadline = time.monotonic() + STOP_SECONDS
    while not all(job.done() for job in jobs) and time.monotonic() < deadline:
        time.sleep(0.05)
    for job in jobs:
        job._process.kill()


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Block SIGINT inside the context: processes that start in it inherit that; Ctrl-C reaches only this one."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])


def _outcome(job: Any) -> str:
    """Return why an ended job failed, or an empty text."""
    try:
        outcome, value = job._get_outcome_and_result()
    except UncompletedJobError:
        return f"its process ended without a result, as after SIGKILL; its output is in {job.paths.stdout}"
    if outcome == "success":
        return value
    return f"{value.strip().splitlines()[-1][:300]}; the traceback is in {job.paths.stdout}"


def slots_for(cells: Sequence[Cell], parallel: int = 0) -> list[tuple[int, str | None]]:
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
        count = parallel or 1
        return [(torch.get_num_threads() if count == 1 else max(cores // count, 1), None)] * count
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    names = [name.strip() for name in visible.split(",") if name.strip()] or [str(index) for index in range(available)]
    each = max(cell.recipe.machine.devices for cell in cells)
    groups = [",".join(names[i : i + each]) for i in range(0, len(names) - each + 1, each)] or [",".join(names)]
    count = parallel or len(groups)
    return [(max(cores // count, 1), groups[i % len(groups)]) for i in range(count)]
