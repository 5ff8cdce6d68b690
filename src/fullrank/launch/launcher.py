"""A run on several processes of this machine: the parent starts them, passes signals on, and says in one line how they ended.

The processes see what torchrun would show them. Torch's own launcher is not used here because it puts signal handlers into the calling
program for good, and because in many of its versions it kills after a fixed time what may still be writing a checkpoint.
"""

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch.distributed import TCPStore

from fullrank.errors import Interrupted, ProcessFailed, UserError
from fullrank.launch.messages import Mailbox, Outcome, Task
from fullrank.launch.signals import StopFlag, stop_on_signals
from fullrank.run.directory import Run, resume_command

WORKER = (sys.executable, "-P", "-m", "fullrank.launch.worker")  # -P: it sees the modules that we see, not those of the working directory
PAUSE = 0.05  # seconds between two looks at the processes
GRACE = 30.0  # seconds that the others have to end when one has died


def run_workers(task: Task, count: int) -> Path:
    """Let `count` processes carry out the task together and return the path of the run.

    Raises:
        UserError: one of them met something that the user can mend.
        Interrupted: SIGINT or SIGTERM came, here or to one of them; a checkpoint has been written.
        ProcessFailed: one of them was killed, crashed or met a bug of ours.
    """
    with TemporaryDirectory(prefix="fullrank-") as folder:
        office = Mailbox(Path(folder))
        office.give(task)
        with stop_on_signals() as flag, processes(folder, count) as workers:
            fallen = wait(workers, flag)
        outcomes, run = office.outcomes(count), office.run()
    for outcome in outcomes.values():
        if outcome.kind == "refused":
            raise UserError(outcome.message)
        if outcome.kind == "stopped":
            raise Interrupted(outcome.signum, outcome.message)
    dead = [rank for rank in fallen if rank not in outcomes] + [rank for rank, outcome in outcomes.items() if outcome.kind == "failed"]
    if dead and flag.signum:
        signal.raise_signal(flag.signum)  # it came before the training, where it acts as it does on one process …
        raise Interrupted(flag.signum, f"stopped before the training; {remedy(run)}")  # … unless that is to ignore it, as under nohup
    if dead:
        # A process that loses another fails too, and reports that: so one that died without a word comes first, then the first report.
        raise obituary(dead[0], count, outcomes.get(dead[0]), fallen.get(dead[0], 0), run)
    assert run is not None, "all ended well, and no run is anywhere"
    return run


@contextmanager
def processes(folder: str, count: int) -> Iterator[list[subprocess.Popen]]:
    """Start the processes, and see to it that none is left afterwards."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # where they meet: its port is free until it has it
    workers: list[subprocess.Popen] = []
    try:
        for rank in range(count):
            # A session of their own: a terminal's Ctrl-C comes to the parent alone, which passes it on once. The pipe ends with us.
            env = environment(rank, count, store.port)
            workers.append(subprocess.Popen([*WORKER, folder], env=env, stdin=subprocess.PIPE, start_new_session=True))
        yield workers
    finally:
        deadline = time.monotonic() + GRACE
        for worker in workers:
            worker.terminate()
        for worker in workers:
            try:
                worker.wait(max(deadline - time.monotonic(), 0))
            except subprocess.TimeoutExpired:  # it waits for the dead
                worker.kill()
                worker.wait()
            assert worker.stdin is not None, "it was given a pipe"
            worker.stdin.close()


def environment(rank: int, count: int, port: int) -> dict[str, str]:
    """Return the environment of a process: what torchrun would say, the modules that we see, and its share of the threads."""
    said = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, "GROUP_RANK": 0}
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": uuid.uuid4(), "TORCHELASTIC_USE_AGENT_STORE": True}
    modules = {"PYTHONPATH": os.pathsep.join(entry or os.getcwd() for entry in sys.path)}
    threads = {"OMP_NUM_THREADS": max(torch.get_num_threads() // count, 1)}
    return {name: str(value) for name, value in (threads | dict(os.environ) | modules | said | meeting).items()}


def wait(workers: list[subprocess.Popen], flag: StopFlag) -> dict[int, int]:
    """Wait until all have ended, or one has ended badly; return the exit statuses of those that have, by rank."""
    passed_on = False
    while True:
        statuses = {rank: worker.poll() for rank, worker in enumerate(workers)}
        fallen = {rank: status for rank, status in statuses.items() if status}
        if fallen or None not in statuses.values():
            return fallen
        if flag.signum and not passed_on:
            passed_on = True
            for worker in workers:
                worker.send_signal(flag.signum)
        time.sleep(PAUSE)


def obituary(rank: int, count: int, outcome: Outcome | None, status: int, run: Path | None) -> ProcessFailed:
    """Say which process died, of what, and how to go on; with its traceback, where it left one."""
    traceback = outcome.message.rstrip() if outcome else ""
    died = f"failed with {traceback.splitlines()[-1]}" if outcome else f"died of {cause(status)}"
    error = ProcessFailed(f"process {rank} of {count} (counted from 0) {died}; {remedy(run)}")
    if traceback:
        error.add_note(traceback)
    return error


def cause(status: int) -> str:
    """Return what a process without a last word died of.

    >>> cause(-9), cause(-11), cause(3)
    ('SIGKILL, as a system short of memory sends it', 'SIGSEGV', 'exit status 3')
    """
    if status > 0:
        return f"exit status {status}"
    return signal.Signals(-status).name + (", as a system short of memory sends it" if -status == signal.SIGKILL else "")


def remedy(run: Path | None) -> str:
    """Return how to go on after a death."""
    if run is None:
        return "nothing was written"
    checkpoints = Run(run).checkpoints
    if not checkpoints:
        return f"no checkpoint was written before; begin anew with: {resume_command(run)}"
    return f"the checkpoint of step {checkpoints[-1].step} is whole; continue with: {resume_command(run)}"
