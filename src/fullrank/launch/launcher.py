"""A run on several processes of this machine: the parent starts them, passes signals on, and reports in one line how they ended.

The processes see the environment that torchrun would give them. Torch's own launcher is not used: it leaves signal handlers in the
calling program, and in many versions it kills processes after a fixed time, even while they write a checkpoint.
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
from fullrank.launch.signals import StopFlag, stop_on_signals
from fullrank.launch.worker import WorkerFiles, WorkerResult, WorkerSpec
from fullrank.run.directory import Run, resume_command

WORKER = (sys.executable, "-P", "-m", "fullrank.launch.worker")  # -P: modules of the working directory are not importable by accident
POLL_INTERVAL = 0.05  # seconds
SHUTDOWN_TIMEOUT = 30.0  # seconds that the other processes have to end when one has failed


def run_workers(spec: WorkerSpec, count: int) -> Path:
    """Run `count` processes and return the path of their run.

    Raises:
        UserError: one of them raised it.
        Interrupted: SIGINT or SIGTERM came, here or to one of them; a checkpoint has been written.
        ProcessFailed: one of them was killed, crashed or met a bug of this library.
    """
    with TemporaryDirectory(prefix="fullrank-") as folder:
        files = WorkerFiles(Path(folder))
        files.write_spec(spec)
        with stop_on_signals() as flag, start_processes(folder, count) as processes:
            exit_statuses = wait_for_processes(processes, flag)
        results, run = files.read_results(count), files.read_run_path()
    for result in results.values():
        if result.status == "user error":
            raise UserError(result.message)
        if result.status == "interrupted":
            raise Interrupted(result.signum, result.message)
    # A process that loses another fails too, and writes a result: one that died without a result is therefore named first.
    failed = [rank for rank in exit_statuses if rank not in results]
    failed += [rank for rank, result in results.items() if result.status == "failed"]
    if failed and flag.signum:
        signal.raise_signal(flag.signum)  # it came before the training, and acts as it does on one process …
        raise Interrupted(flag.signum, f"stopped before the training; {describe_progress(run)}")  # … unless it is ignored, as by nohup
    if failed:
        raise failure_error(failed[0], count, results.get(failed[0]), exit_statuses.get(failed[0], 0), run)
    assert run is not None, "all processes succeeded, but no run was written"
    return run


@contextmanager
def start_processes(folder: str, count: int) -> Iterator[list[subprocess.Popen]]:
    """Start the processes inside the context, and end those that are left afterwards."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # their rendezvous, on a free port
    processes: list[subprocess.Popen] = []
    try:
        for rank in range(count):
            # In a session of its own, a process does not receive the terminal's Ctrl-C, which the parent passes on. The pipe closes with
            # the parent.
            env = worker_environment(rank, count, store.port)
            processes.append(subprocess.Popen([*WORKER, folder], env=env, stdin=subprocess.PIPE, start_new_session=True))
        yield processes
    finally:
        deadline = time.monotonic() + SHUTDOWN_TIMEOUT
        for process in processes:
            process.terminate()
        for process in processes:
            try:
                process.wait(max(deadline - time.monotonic(), 0))
            except subprocess.TimeoutExpired:  # it waits for a process that has failed
                process.kill()
                process.wait()
            assert process.stdin is not None, "each process has a pipe"
            process.stdin.close()


def worker_environment(rank: int, count: int, port: int) -> dict[str, str]:
    """Return the environment of a process: torchrun's variables, the parent's import path, and its share of the threads."""
    ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, "GROUP_RANK": 0}
    rendezvous = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "TORCHELASTIC_RUN_ID": uuid.uuid4(),
        "TORCHELASTIC_USE_AGENT_STORE": True,
    }
    modules = {"PYTHONPATH": os.pathsep.join(entry or os.getcwd() for entry in sys.path)}
    threads = {"OMP_NUM_THREADS": max(torch.get_num_threads() // count, 1)}
    return {name: str(value) for name, value in (threads | dict(os.environ) | modules | ranks | rendezvous).items()}


def wait_for_processes(processes: list[subprocess.Popen], flag: StopFlag) -> dict[int, int]:
    """Wait until all processes have succeeded or one has failed; return the nonzero exit statuses by rank."""
    signal_sent = False
    while True:
        statuses = {rank: process.poll() for rank, process in enumerate(processes)}
        failed = {rank: status for rank, status in statuses.items() if status}
        if failed or None not in statuses.values():
            return failed
        if flag.signum and not signal_sent:
            signal_sent = True
            for process in processes:
                process.send_signal(flag.signum)
        time.sleep(POLL_INTERVAL)


def failure_error(rank: int, count: int, result: WorkerResult | None, exit_status: int, run: Path | None) -> ProcessFailed:
    """Return the error that names the failed process, its cause and how to continue; its traceback, if there is one, is a note."""
    traceback = result.message.rstrip() if result else ""
    failure = f"failed with {traceback.splitlines()[-1]}" if result else f"died of {describe_exit(exit_status)}"
    error = ProcessFailed(f"process {rank} of {count} (counted from 0) {failure}; {describe_progress(run)}")
    if traceback:
        error.add_note(traceback)
    return error


def describe_exit(status: int) -> str:
    """Return the cause of death of a process that wrote no result.

    >>> describe_exit(-9), describe_exit(-11), describe_exit(3)
    ('SIGKILL, as a system short of memory sends it', 'SIGSEGV', 'exit status 3')
    """
    if status > 0:
        return f"exit status {status}"
    return signal.Signals(-status).name + (", as a system short of memory sends it" if -status == signal.SIGKILL else "")


def describe_progress(run: Path | None) -> str:
    """Return the last checkpoint of a run and the command that continues it."""
    if run is None:
        return "nothing was written"
    checkpoints = Run(run).checkpoints
    if not checkpoints:
        return f"no checkpoint was written before; start again with: {resume_command(run)}"
    return f"the checkpoint of step {checkpoints[-1].step} is complete; continue with: {resume_command(run)}"
